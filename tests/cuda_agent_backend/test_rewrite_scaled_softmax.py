"""A softmax of scaled values is what was written, not two forms of it and the reduction that chooses between them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sketch_kit import sample
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch.fx.experimental.proxy_tensor import make_fx

from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.rewrite.forms import forms, rewritten
from cuda_agent_backend.rewrite.rules.scaled_softmax import RULE
from sandbox.accuracy.inputs import DISTRIBUTIONS, make_inputs
from sandbox.accuracy.oracle import run_oracle
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


@pytest.mark.parametrize("name", FUNCTIONS)
def test_inductors_two_forms_become_what_was_written(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    task = as_inductor(function, *inputs)
    if task is None:
        pytest.skip("this torch's Inductor makes one form only")
    (form,) = forms(task)
    assert form.rules == ("scaled_softmax",)
    written = sample(function, *inputs).task
    assert len(form.task.nodes) == len(written.nodes)
    for distribution in DISTRIBUTIONS:
        given = make_inputs(task.inputs, 7, distribution, [None] * len(inputs), "cpu")
        (got,), (want,) = (run_oracle(t, build_graph(t), given).outputs for t in (form.task, task))
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12, equal_nan=True)


def guarded(x: Tensor, scaled: Tensor, stable: Tensor, checked: Tensor | None = None) -> Tensor:
    """As Inductor writes it, with parts that a test may exchange."""
    checked = scaled if checked is None else checked
    finite = torch.logical_not(
        ((checked == checked) * (checked.abs() != math.inf)).logical_not().any(-1, keepdim=True)
    )
    return torch.where(finite, stable, scaled - scaled.amax(-1, keepdim=True))


def below(x: Tensor) -> Tensor:
    return x - x.amax(-1, keepdim=True)


@pytest.mark.parametrize(
    ("function", "holds"),
    [
        (lambda x: guarded(x, x * 0.5, below(x) * 0.5), True),
        (lambda x: guarded(x, x / 0.5, below(x) / 0.5), True),
        (lambda x: guarded(x, x * 0.5, below(x * -1) * -0.5), True),
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
    found = rewritten(sample(function, X).task, [RULE])
    assert (found is not None) is holds
