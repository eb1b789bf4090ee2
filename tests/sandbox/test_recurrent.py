"""Recurrent layers as operators."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sandbox.accuracy.input_bounds import input_bounds, recurrent_weights
from sandbox.accuracy.inputs import (
    DISTRIBUTIONS,
    NOT_NEGATIVE,
    SCALED,
    STATE,
    lay_together,
    make_inputs,
)
from sandbox.accuracy.oracle import run_eager, run_oracle
from sandbox.graph.build import build_graph
from sandbox.graph.recurrent_ops import KINDS, operator_of
from sandbox.task.specs import TensorSpec
from sandbox.task.task import InputRef, Node, NodeRef, Task

MODULES = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN, "rnn_relu": nn.RNN}
FORMS = list(itertools.product((1, 2), (False, True), (False, True), (False, True)))


def layer(kind: str, layers: int, both: bool, biases: bool, batch_first: bool) -> nn.RNNBase:
    more = {"nonlinearity": kind.removeprefix("rnn_")} if kind.startswith("rnn") else {}
    return MODULES[kind](
        5, 8, num_layers=layers, bidirectional=both, bias=biases, batch_first=batch_first, **more
    ).eval()


def arguments(module: nn.RNNBase, kind: str, x: Tensor) -> tuple[Any, ...]:
    directions = 2 if module.bidirectional else 1
    batch = x.shape[0 if module.batch_first else 1]
    states = torch.randn(2, module.num_layers * directions, batch, 8)
    given = [*states] if kind == "lstm" else [states[0]]
    weights = [w.detach() for w in module._flat_weights]
    rest = (module.bias, module.num_layers, module.bidirectional, module.batch_first)
    return (x, *given, weights, *rest)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("layers", "both", "biases", "batch_first"), FORMS)
def test_they_do_what_the_modules_do(
    kind: str, layers: int, both: bool, biases: bool, batch_first: bool
) -> None:
    module = layer(kind, layers, both, biases, batch_first)
    given = arguments(module, kind, torch.randn(4, 6, 5))
    with torch.no_grad():
        found = operator_of(kind)(*given)
        states = tuple(given[1:3]) if kind == "lstm" else given[1]
        output, last = module(given[0], states)
    for ours, theirs in zip(found, (output, *(last if kind == "lstm" else (last,))), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert len({value.untyped_storage().data_ptr() for value in found}) == len(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_torch_finds_no_fault_with_them(kind: str, batch_first: bool) -> None:
    module = layer(kind, 2, True, True, batch_first)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        operator_of(kind), arguments(module, kind, torch.randn(4, 6, 5)), test_utils=checks
    )


def lstm_task() -> tuple[Task, list[Tensor]]:
    module = layer("lstm", 1, False, True, True)
    given = arguments(module, "lstm", torch.randn(4, 6, 5))
    inputs = [*given[:3], *given[3]]
    specs = tuple(TensorSpec("float32", tuple(t.shape), tuple(t.stride())) for t in inputs)
    args = {"x": InputRef(0), "h": InputRef(1), "c": InputRef(2)}
    args |= {"weights": tuple(InputRef(n) for n in range(3, 7)), "has_biases": True}
    args |= {"num_layers": 1, "bidirectional": False, "batch_first": True}
    outputs = operator_of("lstm")(*given)
    task = Task(
        "cpu",
        specs,
        (Node("cuda_agent.lstm.default", args),),
        (NodeRef(0, 0), NodeRef(0, 2)),
        tuple(
            TensorSpec("float32", tuple(outputs[n].shape), tuple(outputs[n].stride()))
            for n in (0, 2)
        ),
    )
    return task, inputs


def test_they_are_tasks() -> None:
    task, inputs = lstm_task()
    again = Task.from_json(task.to_json())
    assert again == task
    graph = build_graph(again)
    exact = run_oracle(again, graph, inputs).outputs
    for found, wanted in zip(run_eager(graph, inputs), exact, strict=True):
        assert wanted.dtype == torch.float64
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)
        assert found.stride() == wanted.stride()


def test_rounding_does_not_grow_from_step_to_step() -> None:
    """Or nothing could be told of a candidate: eager's own error would be as large as its results."""
    task, _ = lstm_task()
    bounds = input_bounds(task)
    assert bounds[:3] == (None, STATE, STATE) and set(bounds[3:]) == {SCALED}
    graph, steps = build_graph(task), 300
    for distribution in ("normal", "uniform", "large", "ramp", "offset", "sparse"):
        inputs = make_inputs(task.inputs, 0, distribution, bounds)
        inputs[0] = inputs[0].repeat(1, steps // 6, 1)
        exact = run_oracle(task, graph, inputs).outputs
        for found, wanted in zip(run_eager(graph, inputs), exact, strict=True):
            assert float((found.double() - wanted).abs().max()) < 1e-4, distribution


def test_states_and_weights_keep_their_size_whatever_the_other_inputs_are() -> None:
    task, _ = lstm_task()
    bounds = input_bounds(task)
    for distribution in set(DISTRIBUTIONS) - {"zeros", "edges", "masked"}:
        _, h, c, *weights = make_inputs(task.inputs, 0, distribution, bounds)
        matrices = [w * w.shape[1] ** 0.5 for w in weights if w.dim() > 1]
        biases = [w for w in weights if w.dim() == 1]
        for value in (h, c, *matrices, *biases):
            assert 0.5 < float(value.std()) < 2, distribution
    _, h, c, *weights = make_inputs(task.inputs, 0, "edges", bounds)
    assert not all(bool(value.isfinite().all()) for value in (h, c, *weights))


def test_weights_lie_together_as_modules_keep_them_on_a_gpu() -> None:
    task, inputs = lstm_task()
    (weights,) = recurrent_weights(task)
    assert weights == [3, 4, 5, 6]
    before = [x.clone() for x in inputs]
    lay_together(inputs, weights)
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))
    matrices_first = [3, 4, 5, 6]
    start = inputs[3].data_ptr()
    for number in matrices_first:
        assert inputs[number].data_ptr() == start and inputs[number].is_contiguous()
        start += inputs[number].numel() * 4
    assert inputs[3].untyped_storage().nbytes() == sum(4 * inputs[n].numel() for n in weights)
    turned = [x.t() if x.dim() == 2 else x for x in before]
    lay_together(turned, weights)
    assert turned[4].data_ptr() == before[4].data_ptr()


def test_bounds_mean_the_same_from_another_process() -> None:
    """There they come as lists."""
    task, _ = lstm_task()
    bounds = input_bounds(task)
    lists: Any = [list(b) if b else None for b in bounds]
    for distribution in ("normal", "large", "edges"):
        here = make_inputs(task.inputs, 0, distribution, bounds)
        there = make_inputs(task.inputs, 0, distribution, lists)
        for a, b in zip(here, there, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    spec = TensorSpec("float32", (64,), (1,))
    (drawn,) = make_inputs([spec], 0, "normal", [list(NOT_NEGATIVE)])  # type: ignore[list-item]
    assert bool((drawn >= 0).all())
