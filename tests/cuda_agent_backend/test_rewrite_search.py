"""Rewritten forms on their way through the agent: regions, schedules, candidates, and a judge that knows only the
original task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sketch_kit import sample
from test_partition import operators, regions
from test_tools import Scripted, run
from torch import Tensor
from torch.fx import Graph
from torch.nn import functional as F

from cuda_agent_backend.agent.tools.toolbox import Toolbox
from cuda_agent_backend.codegen.alternatives import PARAMETER, Alternatives, named, split
from cuda_agent_backend.codegen.api import analyse, as_it_stands, generate, schedules
from cuda_agent_backend.codegen.covered_task import Analysis
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.graph.edit import Editor, argument, aten, calls
from cuda_agent_backend.graph.edit import replace as put
from cuda_agent_backend.partition.estimate import saving
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.rewrite.forms import rewritten
from cuda_agent_backend.rewrite.rule import Rule
from cuda_agent_backend.tools import tables
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.judge import Judge
from sandbox.judge.settings import JudgeSettings, Timeouts
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task
from sandbox.verdict import Correct, Outcome, Wrong

Function = Callable[..., Any]


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


X, W, B = randn(64, 96), randn(96, 80), randn(80)


def linear_mean(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w.t(), b).mean(1, keepdim=True) * 1.5


def diagonal(v: Tensor, w: Tensor) -> Tensor:
    return torch.diag(v) @ w


def pooled(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 4).sum((1, 2, 3))


def traces(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).diagonal(dim1=-2, dim2=-1).sum(-1)


RIGHT: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "sum_of_product": (linear_mean, (X, W, B)),
    "diagonal_product": (diagonal, (randn(96), W)),
    "diagonal_of_product": (traces, (randn(3, 48, 64), randn(3, 64, 48))),
    "sum_of_pooling": (pooled, (randn(4, 6, 16, 16),)),
    "merged_sums": (lambda x: x.mean(-1).mean(-1), (randn(4, 6, 32, 32),)),
}


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory, native_dir: Path) -> Iterator[Judge]:
    """A judge for cpu with short time-outs."""
    folder = tmp_path_factory.mktemp("judge")
    with Judge(
        JudgeSettings("cpu", scratch_dir=folder, native_dir=native_dir, timeouts=Timeouts(run=5.0))
    ) as made:
        yield made


def task_of(function: Function, inputs: Sequence[Tensor]) -> Task:
    return sample(function, *inputs).task


def alternatives(task: Task) -> Alternatives:
    found = analyse(task)
    assert isinstance(found, Alternatives), found
    return found


def candidate_of(task: Task, rule: Rule) -> Candidate:
    """The first candidate for a task that one rule has rewritten."""
    form = rewritten(task, [rule])
    assert form is not None
    analysis = as_it_stands(form.task)
    assert not isinstance(analysis, NotCovered), analysis
    made = generate(analysis, schedules(analysis)[0])
    assert isinstance(made, Candidate), made
    return made


def test_the_cheapest_form_comes_first_and_the_original_second() -> None:
    analysis = alternatives(task_of(linear_mean, (X, W, B)))
    proposed = schedules(analysis)
    names = [split(schedule)[0] for schedule in proposed]
    assert "sum_of_product" in names[0] and names[1] == ""
    assert len(set(proposed)) == len(proposed)
    assert "sum_of_product: " in analysis.family and "; or " in analysis.family


def test_a_schedule_says_which_form_it_is_for_and_survives_json() -> None:
    task = task_of(linear_mean, (X, W, B))
    analysis = alternatives(task)
    for schedule in schedules(analysis)[:2]:
        first = generate(analysis, schedule)
        again = generate(alternatives(task), Schedule.from_json(schedule.to_json()))
        assert isinstance(first, Candidate) and first == again
        assert first.label == schedule.to_json()
        assert (PARAMETER in json.loads(first.label)[0]) == bool(split(schedule)[0])


def test_a_form_that_there_is_not_is_a_reason() -> None:
    analysis = alternatives(task_of(linear_mean, (X, W, B)))
    found = generate(analysis, Schedule.of({"rewrite": "magic", "lanes": "inner"}))
    assert isinstance(found, NotCovered) and "magic" in found.reason
    assert "the task as it stands" in found.reason


def test_names_go_onto_schedules_and_off_again() -> None:
    plain = Schedule.of({"lanes": "inner"}, {"rows": 96})
    tagged = named(plain, "merged_sums")
    assert tagged is not None and split(tagged) == ("merged_sums", plain)
    assert named(plain, "") == plain and split(plain) == ("", plain)
    assert named(Schedule(()), "merged_sums") is None


def test_people_see_the_rewrite() -> None:
    label = '[{"lanes":"inner","rewrite":"merged_scales+sum_of_product"},{"lanes":"outer"}]'
    assert tables.sketch_name(label) == "merged_scales, sum_of_product: inner + outer"


def test_an_input_that_is_read_no_more_stays_in_the_plan() -> None:
    task = task_of(lambda b, x, w: torch.addmm(b, x, w, beta=0).sum(1), (B, X, W))
    analysis = alternatives(task)
    made = generate(analysis, schedules(analysis)[0])
    assert isinstance(made, Candidate)
    assert list(made.plan.input_specs) == list(task.inputs)
    assert list(made.plan.output_specs) == list(task.output_specs)


def test_the_tools_work_on_rewritten_forms_as_on_any() -> None:
    tools = Toolbox(task_of(linear_mean, (X, W, B)), Scripted())
    look = run(tools, "look")
    assert "sum_of_product" in look["sketch"]
    for schedule in look["schedules"][:3]:
        assert run(tools, "sketch", schedule=schedule)["ok"]
    assert not run(tools, "sketch", schedule=[{"rewrite": "magic"}])["ok"]


@pytest.mark.parametrize("name", RIGHT)
def test_the_judge_finds_rewritten_candidates_correct(name: str, judge: Judge) -> None:
    task = task_of(*RIGHT[name])
    analysis = alternatives(task)
    schedule = schedules(analysis)[0]
    assert name in split(schedule)[0]
    made = generate(analysis, schedule)
    assert isinstance(made, Candidate)
    found = judge.verify(task, made)
    assert isinstance(found, Correct), found


def _windows_forgotten(graph: Graph) -> bool:
    """Wrong: the sum of an average pooling is not the sum of what is pooled."""
    for node in calls(graph, "avg_pool2d"):
        (total,) = node.users
        at = Editor(graph, total)
        put(total, at.call(aten.sum.dim_IntList, argument(node, "self"), [1, 2, 3]))
    return True


def _zeros_forgotten(graph: Graph) -> bool:
    """Wrong for NaN and infinities only: the zeros beside the diagonal are not multiplied."""
    for node in calls(graph, "mm"):
        at = Editor(graph, node)
        (vector,) = (n for n in graph.nodes if n.op == "placeholder" and n.meta["val"].dim() == 1)
        scale = at.call(aten.unsqueeze.default, vector, 1)
        put(node, at.call(aten.mul.Tensor, argument(node, "mat2"), scale))
    return True


def _bias_forgotten(graph: Graph) -> bool:
    """Wrong: an input that is needed is not read."""
    for node in calls(graph, "addmm"):
        put(node, Editor(graph, node).call(aten.mm.default, *node.args[1:]))
    return True


WRONG: dict[str, tuple[Callable[[Graph], bool], Function, tuple[Tensor, ...]]] = {
    "windows forgotten": (_windows_forgotten, *RIGHT["sum_of_pooling"]),
    "zeros forgotten": (_zeros_forgotten, *RIGHT["diagonal_product"]),
    "bias forgotten": (_bias_forgotten, linear_mean, (X, W, B)),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_judge_refuses_a_rewrite_that_does_not_hold(name: str, judge: Judge) -> None:
    apply, function, inputs = WRONG[name]
    task = task_of(function, inputs)
    once = Rule(name, _only_once(apply), exact=False)
    found: Outcome = judge.verify(task, candidate_of(task, once))
    assert isinstance(found, Wrong), found


def _only_once(apply: Callable[[Graph], bool]) -> Callable[[Graph], bool]:
    applied: list[bool] = []

    def first(graph: Graph) -> bool:
        if applied:
            return False
        applied.append(apply(graph))
        return True

    return first


def offered(function: Function, *inputs: Tensor) -> list[list[str]]:
    return [operators(region) for region in regions(function, *inputs) if region.reason is None]


def test_a_product_that_vanishes_shares_a_region_with_all_around_it() -> None:
    small = randn(16, 32), randn(32, 24)
    assert offered(lambda x, w: (torch.exp(x) @ w).sum(1), *small) == [["exp", "mm", "sum"]]
    assert offered(lambda x, w: (torch.exp(x) @ w).amax(1), *small) == [["exp"], ["amax"]]
    halves = tuple(x.bfloat16() for x in small)
    assert offered(lambda x, w: (x @ w * 2).sum(1), *halves) == [["mm", "mul", "sum"]]


def test_a_product_with_a_diagonal_shares_a_region_with_what_makes_it() -> None:
    (found,) = offered(lambda v, w: torch.relu(torch.diag(v) @ w), randn(32), randn(32, 24))
    assert {"where", "mm", "relu"} <= set(found)


def test_a_product_of_which_diagonals_are_read_shares_a_region_with_them() -> None:
    x, w = randn(16, 32), randn(32, 24)
    assert offered(lambda x, w: (torch.exp(x) @ w).diagonal().sum(), x, w) == [
        ["exp", "mm", "diagonal", "sum"]
    ]
    assert offered(lambda x, w: (x @ w * 2).exp().diagonal(1).tanh(), x, w) == [
        ["mm", "mul", "exp", "diagonal", "tanh"]
    ]

    def two(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        return y.diagonal().sum() + y.diagonal(2).amax()

    assert offered(two, x, w) == [["mm", "diagonal", "sum", "diagonal", "amax", "add"]]


def test_a_product_whose_diagonal_is_put_out_as_it_is_does_not_vanish() -> None:
    """The output is a view of the product, which a region would put out instead."""

    def both(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        diagonal = (x @ w).diagonal()
        return diagonal, diagonal.sum()

    functions: tuple[Function, ...] = (
        lambda x, w: (x @ w).diagonal(),
        lambda x, w: (x @ w).diagonal()[None],
        both,
    )
    for function in functions:
        found = offered(function, randn(16, 32), randn(32, 24))
        assert all("mm" not in region for region in found)


def test_a_product_that_is_needed_otherwise_does_not_vanish() -> None:
    def twice(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        return y.sum(1), y.exp()

    found = offered(twice, randn(16, 32), randn(32, 24))
    assert all("mm" not in region for region in found)


def test_what_vanishes_promises_more_than_what_stays() -> None:
    def promise(function: Function) -> float:
        (region,) = (r for r in regions(function, randn(256, 128), randn(128, 64)) if not r.reason)
        assert isinstance(region, Region)
        return saving(region)

    assert promise(lambda x, w: (x @ w).sum(1)) > promise(lambda x, w: (x @ w).amax(1))


def test_a_product_that_no_sketch_takes_is_covered_only_where_it_vanishes() -> None:
    doubles = X.double(), W.double()
    task = replace(task_of(lambda x, w: (x @ w).sum(1), doubles), target="cuda")
    assert isinstance(as_it_stands(task), NotCovered)
    found = analyse(task)
    assert isinstance(found, Alternatives)
    assert [name for name, _ in found.forms] == ["sum_of_product"]


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("name", ["sum_of_product", "diagonal_product", "diagonal_of_product"])
def test_rewritten_forms_compile_for_cuda(name: str, tmp_path: Path) -> None:
    task = replace(task_of(*RIGHT[name]), target="cuda")
    analysis, device = analyse(task), DeviceFacts()
    assert isinstance(analysis, Alternatives), analysis
    made = generate(analysis, schedules(analysis, device)[0], device)
    assert isinstance(made, Candidate), made
    found = compile_candidate(made, tmp_path, "sm_90a", 120)
    assert isinstance(found, Compiled), found


def test_a_kernel_of_means_and_variances_of_columns_is_right_on_infinities(judge: Judge) -> None:
    task = task_of(lambda x: torch.var_mean(x, 0), (torch.randn(256, 64),))
    found = analyse(task)
    assert isinstance(found, Analysis)
    made = generate(found, schedules(found)[0])
    assert isinstance(made, Candidate)
    outcome = judge.verify(task, made, thorough=True)
    assert "not finite" not in outcome.reason, outcome  # rounding may go either way of 64 numbers
