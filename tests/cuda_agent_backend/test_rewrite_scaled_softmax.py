"""A softmax of scaled values has one form, not two of them and the reduction that chooses between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sketch_kit import run_cpu_on, sample
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch.fx.experimental.proxy_tensor import make_fx

from cuda_agent_backend.codegen.api import as_it_stands, schedules
from cuda_agent_backend.codegen.covered_task import Analysis
from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.rewrite.forms import forms, rewritten
from cuda_agent_backend.rewrite.rules.scaled_softmax import RULE
from sandbox.accuracy.inputs import DISTRIBUTIONS, make_inputs
from sandbox.accuracy.oracle import run_oracle
from sandbox.accuracy.reference import Reference, run_reference
from sandbox.accuracy.rule import compare_draws
from sandbox.graph.build import build_graph
from sandbox.task.task import Task

X = torch.randn(24, 40, generator=torch.Generator().manual_seed(1))
T = torch.tensor(1.3)
Function = Callable[..., Any]


def as_inductor(function: Function, *inputs: Tensor) -> Task | None:
    """The task after Inductor's own passes; None where this torch keeps what was written."""
    module = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="fake")(
        *inputs
    )
    with next(iter(module.graph.nodes)).meta["val"].fake_mode:
        joint_graph_passes(module)
    *nodes, output = [n for n in module.graph.nodes if n.op != "placeholder"]
    if not any("any" in str(n.target) for n in nodes):
        return None
    result = output.args[0]
    assert isinstance(result, torch.fx.Node)
    found = canonical(nodes, [result], "cpu")
    assert isinstance(found, Canonical), found
    return found.task


FUNCTIONS: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "by a number": (lambda x: torch.softmax(x * 0.125, -1), (X,)),
    "by a negative number": (lambda x: torch.softmax(x * -0.5, -1), (X,)),
    "divided": (lambda x: torch.log_softmax(x / 8.0, 0), (X,)),
    "by a tensor": (lambda x, t: torch.softmax(x * t, -1), (X, T)),
    "by a tensor, first": (lambda x, t: torch.softmax(t * x, -1), (X, T)),
    "divided by a tensor": (lambda x, t: torch.softmax(x / t, -1), (X, -T)),
    "widened": (lambda x: torch.softmax((x * 0.3).float(), -1), (X.bfloat16(),)),
    "of a product": (lambda x, w: torch.softmax(x @ w * 0.2, -1), (X, X.t().contiguous())),
}


def agree(one: Task, other: Task) -> None:
    """In float64, on all that is drawn."""
    for distribution in DISTRIBUTIONS:
        given = make_inputs(other.inputs, 7, distribution, [None] * len(other.inputs), "cpu")
        (got,), (want,) = (run_oracle(t, build_graph(t), given).outputs for t in (one, other))
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12, equal_nan=True)


def operators(task: Task) -> list[str]:
    return [node.op.split(".")[1] for node in task.nodes]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_inductors_two_forms_become_one(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    task = as_inductor(function, *inputs)
    if task is None:
        pytest.skip("this torch's Inductor makes one form only")
    (form,) = forms(task)
    assert form.rules in (
        ("scaled_softmax",),
        ("scaled_softmax", "identities"),
    )  # x times the sign 1
    assert operators(task).count("amax") == 2 and operators(form.task).count("amax") == 1
    assert "any" not in operators(form.task)
    agree(form.task, task)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(1, 2) * 0.25, -1) @ v


def pooling(x: Tensor, query: Tensor) -> Tensor:
    return (torch.softmax(x @ query * 5.0, dim=1)[:, :, None] * x).sum(dim=1)


def pooling_written_out(x: Tensor, query: Tensor) -> Tensor:
    weights = torch.softmax((x * query).sum(-1) / 3.0, dim=1)
    return torch.einsum("bt,btd->bd", weights, x)


TOKENS = torch.randn(2, 24, 16, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (attention, (TOKENS, TOKENS.flip(0), TOKENS.flip(1))),
        (pooling, (TOKENS, TOKENS[0, 0])),
        (pooling_written_out, (TOKENS, TOKENS[0, 0])),
    ],
)
def test_the_softmax_of_an_attention_is_what_was_written(
    function: Function, inputs: tuple[Tensor, ...]
) -> None:
    task = as_inductor(function, *inputs)
    if task is None:
        pytest.skip("this torch's Inductor makes one form only")
    (form,) = forms(task)
    made = operators(form.task)
    assert made.count("amax") == made.count("sub") == 1
    assert not {"any", "where", "add"} & {*made}
    agree(form.task, task)


TEMPERATURES = (0.01, 0.1, 1.0, 10.0, 100.0)
NOT_NUMBERS = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e30, 1e-30)
SOFTMAXES: dict[str, Function] = {
    "times": lambda x, t: torch.log_softmax(x * t, -1),
    "divided": lambda x, t: torch.softmax(x / t, -1),
}


def rows() -> Tensor:
    """Rows that are not finite, and rows that are not so once they are scaled, among others."""
    x = torch.randn(24, 400, generator=torch.Generator().manual_seed(5))
    x[0, 3], x[1, 3], x[2, 3] = math.inf, -math.inf, math.nan
    x[3], x[4], x[5, ::2] = math.inf, -math.inf, -math.inf
    x[6], x[7], x[8, 0], x[9, 0] = 3e38, -3e38, 3e38, -3e38
    x[10] *= 1e37
    return x


def draws(task: Task) -> Iterator[list[Tensor]]:
    for seed, distribution in enumerate(DISTRIBUTIONS):
        inputs = make_inputs(task.inputs, seed, distribution, [None, None], "cpu")
        yield inputs
        for temperature in TEMPERATURES:
            for sign in (1, -1):
                yield [inputs[0], torch.tensor(temperature * sign)]
    for value in (*TEMPERATURES, *(-t for t in TEMPERATURES), *NOT_NUMBERS):
        yield [rows(), torch.tensor(value)]


@pytest.mark.parametrize("name", SOFTMAXES)
def test_a_kernel_of_it_is_as_exact_as_eager_at_any_temperature(name: str, tmp_path: Path) -> None:
    """By the judge's own rule, each draw by itself; what was written is not."""
    task = as_inductor(SOFTMAXES[name], rows(), T)
    if task is None:
        pytest.skip("this torch's Inductor makes one form only")
    (form,) = forms(task)
    found = as_it_stands(form.task)
    assert isinstance(found, Analysis) and len(found.kernels) == 1
    module = build_graph(task)
    given, references = [], []
    for inputs in draws(task):
        reference = run_reference(task, module, inputs, {})
        assert isinstance(reference, Reference)
        given.append(inputs)
        references.append(reference)
    made = run_cpu_on(found, schedules(found)[0], given, tmp_path)
    refused = 0
    for inputs, reference, outputs in zip(given, references, made, strict=True):
        beyond = not all(bool(torch.isfinite(tensor).all()) for tensor in inputs)
        report = compare_draws([reference.draw(outputs, beyond)])
        assert report.passes, (inputs[1], report.reason)
        written = [SOFTMAXES[name](*inputs)]
        refused += not compare_draws([reference.draw(written, beyond)]).passes
    assert refused > 5


def guarded(x: Tensor, scaled: Tensor, stable: Tensor, checked: Tensor | None = None) -> Tensor:
    """As Inductor writes it, with parts that a test may exchange."""
    checked = scaled if checked is None else checked
    finite = torch.logical_not(
        ((checked == checked) * (checked.abs() != math.inf)).logical_not().any(-1, keepdim=True)
    )
    return torch.where(finite, stable, scaled - scaled.amax(-1, keepdim=True))


def below(x: Tensor) -> Tensor:
    return x - x.amax(-1, keepdim=True)


def begun(x: Tensor) -> Tensor:
    return guarded(x, x * 0.5, below(x) * 0.5)


def softmax(shifted: Tensor, dim: int = -1) -> Tensor:
    """The rest of it."""
    power = shifted.exp()
    return power / power.sum(dim, keepdim=True)


@pytest.mark.parametrize(
    ("function", "holds"),
    [
        (lambda x: guarded(x, x * 0.5, below(x) * 0.5), True),
        (lambda x: guarded(x, x / 0.5, below(x) / 0.5), True),
        (lambda x: guarded(x, x * -0.5, below(x * -1) * 0.5), True),
        (lambda x: guarded(x, x * -0.5, below(x) * -0.5), False),  # above the least, not below the largest
        (lambda x: guarded(x, x * 0.5, below(x * -1) * -0.5), False),
        (lambda x: guarded(x, x * 0.5, below(x) * 0.25), False),  # another factor
        (lambda x: guarded(x, x * -0.5, below(x * -1) * -0.5), False),  # another sign
        (lambda x: guarded(x, x * 0.5, below(x) / 0.5), False),  # another operation
        (lambda x: guarded(x, x * 0.5, below(x + 1) * 0.5), False),  # of something else
        (lambda x: guarded(x, x * 0.5, (x - x.amax(0, keepdim=True)) * 0.5), False),
        (lambda x: guarded(x, x * 0.5, below(x) * 0.5, checked=x), False),  # finite before scaling
        (lambda x: torch.where(x > 0, below(x) * 0.5, below(x * 0.5)), False),  # another choice
    ],
)  # fmt: skip
def test_it_is_done_only_where_both_forms_are_the_same(function: Function, holds: bool) -> None:
    found = rewritten(sample(lambda x: softmax(function(x)), X).task, [RULE])
    assert (found is not None) is holds


def half(x: Tensor) -> Tensor:
    """In half precision s x is infinite long before the shifted values are."""
    x = x.half()
    scaled = (x * 0.5).float()
    return softmax(guarded(x, scaled, below(x.float()) * 0.5))


def whole(x: Tensor) -> Tensor:
    """Whole numbers are never infinite."""
    x = x.int()
    return softmax(guarded(x, (x * 3).float(), below(x.float()) * 3))


def both(x: Tensor) -> tuple[Tensor, Tensor]:
    shifted = begun(x)
    return softmax(shifted), shifted


def across(power: Tensor) -> Tensor:
    """Each row's sum divides a column."""
    return power / power.sum(-1)


def powers(x: Tensor) -> tuple[Tensor, Tensor]:
    power = begun(x).exp()
    return power, power / power.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("function", "holds"),
    [
        (lambda x: softmax(begun(x)), True),
        (lambda x: begun(x) - begun(x).exp().sum(-1, keepdim=True).log(), True),
        (lambda x: softmax(begun(x.bfloat16()).float()).sum(), False),  # a cast between
        (begun, False),  # no softmax
        (both, False),  # more than a softmax
        (powers, False),  # what is summed is a result too
        (lambda x: softmax(begun(x), 0), False),  # over other rows
        (lambda x: across(begun(x[:24, :24]).exp()), False),  # rows of sums along columns
        (half, False),
        (whole, False),
    ],
)  # fmt: skip
def test_it_is_done_only_where_one_number_tells_of_a_whole_row(
    function: Function, holds: bool
) -> None:
    found = rewritten(sample(function, X).task, [RULE])
    assert (found is not None) is holds
