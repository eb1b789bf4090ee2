"""Products in the cheaper order: where it is found, what it gives, and what happens where it does not hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sketch_kit import KEY, Sample, sample
from test_partition import operators, regions
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from cuda_agent_backend.codegen import api
from cuda_agent_backend.codegen.alternatives import split
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.graph.edit import name_of
from cuda_agent_backend.rewrite.catalogue import RULES
from cuda_agent_backend.rewrite.forms import Form, forms, rewritten
from cuda_agent_backend.rewrite.orders import chains_of
from cuda_agent_backend.rewrite.rules.product_order import RULE
from sandbox import launcher
from sandbox.accuracy.oracle import run_eager, run_oracle
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.graph.build import build_graph
from sandbox.judge import Judge
from sandbox.judge.settings import JudgeSettings, Timeouts
from sandbox.plan.candidate import Candidate
from sandbox.verdict import Correct

Function = Callable[..., Any]
Case = tuple[Function, tuple[Tensor, ...]]


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def scores_without_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-2, -1)
    return (scores @ v) / scores.sum(dim=-1, keepdim=True)


def forms_of_rows(x: Tensor, factor: Tensor) -> Tensor:
    return (((x @ (factor @ factor.t())) * x).sum(1) + 1e-6).sqrt()


HEADS = tuple(randn(2, 3, 96, n) for n in (16, 16, 18))
CASES: dict[str, Case] = {
    # Scaled so that no tanh is flat: where most are, errors are those of the few that are not.
    "the first result is large": (
        lambda a, b, c: torch.tanh((a @ b) @ c * 0.01),
        (randn(90, 70), randn(70, 80), randn(80, 3)),
    ),
    "the second operand is a product": (forms_of_rows, (randn(120, 64), randn(64, 5))),
    "a transposed product": (
        lambda a, b, c: (a @ b).t() @ c,
        (randn(90, 70), randn(70, 80), randn(90, 2)),
    ),
    "a transposed product behind": (
        lambda a, b, c: c @ (a @ b).t(),
        (randn(64, 4), randn(4, 80), randn(3, 80)),
    ),
    "with a bias": (
        lambda a, b, c, d: torch.addmm(d, a @ b, c),
        (randn(90, 70), randn(70, 80), randn(80, 3), randn(3)),
    ),
    "batches": (lambda a, b, c: (a @ b) @ c, (randn(3, 50, 8), randn(3, 8, 60), randn(3, 60, 4))),
    "heads, and a sum of rows": (scores_without_softmax, HEADS),
    "a batch of one behind a matrix": (
        lambda a, b, c: torch.bmm(torch.mm(a, b)[None], c),
        (randn(90, 8), randn(8, 80), randn(1, 80, 3)),
    ),
    "a matrix behind a batch of one": (
        lambda a, b, c: torch.mm(c, torch.bmm(a, b).squeeze(0).t()),
        (randn(1, 64, 4), randn(1, 4, 80), randn(3, 80)),
    ),
    "three": (
        lambda a, b, c, d: ((a @ b) @ c) @ d,
        (randn(60, 50), randn(50, 70), randn(70, 60), randn(60, 2)),
    ),
}
X, W = randn(90, 70), randn(70, 80)


def with_both_sums(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    first = a @ b
    return first @ c, first.sum(0), first.sum(1)


NOT: dict[str, Case] = {
    "sums of rows and of columns": (with_both_sums, (X, W, randn(80, 3))),
    "the order is the cheaper one": (lambda a, b, c: (a @ b) @ c, (X, randn(70, 5), randn(5, 80))),
    "it saves little": (lambda a, b, c: (a @ b) @ c, (X, W, randn(80, 60))),
    "the first is needed": (lambda a, b, c: ((a @ b) @ c, a @ b), (X, W, randn(80, 3))),
    "something lies between": (lambda a, b, c: (a @ b).relu() @ c, (X, W, randn(80, 3))),
    "one of them scales": (
        lambda v, b, c: (torch.diag(v) @ b) @ c,
        (randn(70), W, randn(80, 3)),
    ),
    "a square": (lambda a, b: (a @ b) @ (a @ b), (randn(90, 4), randn(4, 90))),
    "with an addend": (
        lambda a, b, c, d: torch.addmm(d, a, b) @ c,
        (X, W, randn(80, 3), randn(80)),
    ),
}


def tidied(it: Sample) -> Form | None:
    return rewritten(it.task, [rule for rule in RULES if rule.exact or rule is RULE])


def best(it: Sample) -> Form:
    form, *_ = forms(it.task)
    assert RULE.name in form.rules, form.rules
    return form


@pytest.mark.parametrize("name", CASES)
def test_the_other_order_is_the_same_with_less_work(name: str) -> None:
    it = sample(CASES[name][0], *CASES[name][1])
    form = best(it)
    made = run_oracle(form.task, build_graph(form.task), it.inputs).outputs
    want = run_oracle(it.task, build_graph(it.task), it.inputs).outputs
    assert form.guards and len(made) == len(want) + form.guards
    assert [float(guard) for guard in made[len(want) :]] == [0.0] * form.guards
    for got, exact in zip(made, want, strict=False):
        torch.testing.assert_close(got, exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NOT)
def test_products_stay_as_they_are(name: str) -> None:
    form = tidied(sample(NOT[name][0], *NOT[name][1]))
    assert form is None or RULE.name not in form.rules


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", CASES)
def test_a_guard_sees_each_operand_that_is_not_finite(name: str, value: float) -> None:
    function, inputs = CASES[name]
    for number in range(3 if name == "with a bias" else len(inputs)):
        spoilt = [x.clone() for x in inputs]
        spoilt[number].view(-1)[5] = value
        it = sample(function, *spoilt)
        form = best(it)
        made = run_eager(build_graph(form.task), it.inputs)
        is_elu_of_nothing = "heads" in name and number < 2 and value == -math.inf
        guards = made[len(it.want) :]
        assert any(bool(g.isnan()) for g in guards) != is_elu_of_nothing, (number, guards)


def run(made: Candidate, inputs: tuple[Tensor, ...], folder: Path) -> Tensor:
    compiled = compile_candidate(made, folder, "native")
    assert isinstance(compiled, Compiled), compiled
    program = launcher.load_program(compiled.path, made.plan)
    assert not isinstance(program, launcher.LoadFailed), program
    launcher.define_ops()
    launcher.bind(KEY, program)
    try:
        result: Tensor = launcher.op_for(len(inputs), 1)(KEY, *inputs)
    finally:
        launcher.unbind(KEY)
    return result


@pytest.mark.parametrize("name", CASES)
def test_where_operands_are_not_finite_the_task_as_it_stands_is_computed(
    name: str, tmp_path: Path
) -> None:
    function, inputs = CASES[name]
    spoilt = [x.clone() for x in inputs]
    spoilt[0].view(-1)[5], spoilt[1].view(-1)[-2] = math.inf, math.nan
    for number, given in enumerate((inputs, tuple(spoilt))):
        it = sample(function, *given)
        made = guarded_candidate(it)
        folder = tmp_path / str(number)
        folder.mkdir()
        got = run(made, it.inputs, folder)
        torch.testing.assert_close(got, it.want[0], rtol=2e-4, atol=2e-4, equal_nan=True)
        assert bool(got.isfinite().all()) == (number == 0)


def guarded_candidate(it: Sample, device: DeviceFacts | None = None) -> Candidate:
    analysis = api.analyse(it.task)
    assert not isinstance(analysis, api.NotCovered), analysis
    schedule = api.schedules(analysis, device)[0]
    assert RULE.name in split(schedule)[0]
    made = api.generate(analysis, schedule, device)
    assert isinstance(made, Candidate), made
    return made


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory, native_dir: Path) -> Iterator[Judge]:
    """A judge for cpu with short time-outs."""
    folder = tmp_path_factory.mktemp("judge")
    with Judge(
        JudgeSettings("cpu", scratch_dir=folder, native_dir=native_dir, timeouts=Timeouts(run=5.0))
    ) as made:
        yield made


@pytest.mark.parametrize("name", CASES)
def test_the_judge_finds_the_other_order_correct(name: str, judge: Judge) -> None:
    it = sample(CASES[name][0], *CASES[name][1])
    found = judge.verify(it.task, guarded_candidate(it))
    assert isinstance(found, Correct), found


def test_guards_are_no_outputs_and_the_plan_has_the_tasks_own() -> None:
    it = sample(*CASES["three"][:1], *CASES["three"][1])
    made = guarded_candidate(it)
    assert list(made.plan.input_specs) == list(it.task.inputs)
    assert list(made.plan.output_specs) == list(it.task.output_specs)


@pytest.mark.parametrize("name", CASES)
def test_on_cuda_each_kernel_of_the_task_as_it_stands_looks_at_the_guards(name: str) -> None:
    it = sample(CASES[name][0], *CASES[name][1])
    it = replace(it, task=replace(it.task, target="cuda"))
    made, device = guarded_candidate(it, DeviceFacts()), DeviceFacts()
    guards = best(it).guards
    launches = made.plan.launches()
    read = launches[-1].args[:guards]
    looking = [launch for launch in launches if launch.args[:guards] == read]
    assert looking and looking == list(launches[-len(looking) :])
    assert made.source.count("== 0) return;") == len(looking)
    assert len({launch.kernel for launch in launches}) == len(launches)
    assert device.has_clusters and all(launch.dependent for launch in launches[1:])


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("name", ["heads, and a sum of rows", "the second operand is a product"])
def test_both_programs_compile_for_cuda(name: str, tmp_path: Path) -> None:
    it = sample(CASES[name][0], *CASES[name][1])
    it = replace(it, task=replace(it.task, target="cuda"))
    found = compile_candidate(guarded_candidate(it, DeviceFacts()), tmp_path, "sm_90a", 120)
    assert isinstance(found, Compiled), found


def offered(function: Function, *inputs: Tensor) -> list[list[str]]:
    return [operators(region) for region in regions(function, *inputs) if region.reason is None]


def test_both_products_are_one_region() -> None:
    (found,) = offered(
        *CASES["the first result is large"][:1], *CASES["the first result is large"][1]
    )
    assert found == ["mm", "mm", "mul", "tanh"]
    (found,) = offered(scores_without_softmax, *HEADS)
    assert found.count("bmm") == 2 and {"expm1", "sum", "div"} <= set(found)


def test_products_that_no_sketch_makes_part_regions() -> None:
    """In the other order they are products all the same."""

    def between(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return ((a.tanh() + 1) @ b @ c).tanh().exp()

    doubles = tuple(x.double() for x in (X, W, randn(80, 3)))
    assert offered(between, *doubles) == [["tanh", "add"], ["tanh", "exp"]]


def by_a_sum_and_a_barrier(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Of two products the second needs a sum of the first, by way of a library."""
    first = a @ b
    return (first @ (c * torch.linalg.inv(d * first.sum()).sum())).tanh()


def test_a_product_of_another_dtype_than_its_operands_stays_where_it_is() -> None:
    with FakeTensorMode():
        a, b = (torch.empty(s, device="cuda", dtype=torch.half) for s in ((512, 64), (64, 512)))
        c = torch.empty(512, 8, device="cuda")
        made = make_fx(lambda a, b, c: torch.mm(a, b, out_dtype=torch.float32) @ c)(a, b, c)
    assert [name_of(node) for node in made.graph.nodes if list(chains_of(node))] == []


def test_products_that_come_into_two_regions_are_like_any_other() -> None:
    large = randn(600, 70), randn(70, 800), randn(800, 3), randn(5, 5)
    found = [operators(region) for region in regions(by_a_sum_and_a_barrier, *large)]
    assert ["mm", "sum", "mul"] in found
    assert all(names.count("mm") < 2 for names in found)
    (last,) = (names for names in found if names[-1] == "tanh")
    assert last == ["mm", "tanh"]


def test_a_cut_between_two_products_makes_them_like_any_other() -> None:
    def wide(a: Tensor, b: Tensor, c: Tensor, *more: Tensor) -> Tensor:
        first, second = a, c
        for x in more[:7]:
            first = first * x
        first = first @ b
        for x in more[7:]:
            second = second + x
        return (first @ second).tanh()

    some = [randn(900, 70) for _ in range(7)] + [randn(800, 6) for _ in range(16)]
    found = [
        operators(r) for r in regions(wide, randn(900, 70), randn(70, 800), randn(800, 6), *some)
    ]
    assert [names for names in found if "mm" in names] == [["mm"], ["mm", "tanh"]]
