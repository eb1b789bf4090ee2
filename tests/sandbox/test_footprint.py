"""How much of a device a task takes, told from its shapes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sandbox.accuracy.oracle import position_rules
from sandbox.accuracy.sliced_oracle import SlicedOracle
from sandbox.graph.build import build_graph
from sandbox.memory.footprint import (
    FRUGAL_BYTES,
    MORE_BYTES,
    MOST_TIMES,
    PHASES,
    Footprint,
    Phase,
    bytes_of,
    footprint,
    peak_bytes,
    slice_bytes,
)
from sandbox.task.specs import TensorSpec, contiguous_stride
from sandbox.task.task import InputRef, Node, NodeRef, Task

GB = 1 << 30


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(dtype, shape, contiguous_stride(shape))


def task(inputs: list[TensorSpec], output: TensorSpec, *nodes: tuple[str, dict[str, Any]]) -> Task:
    made = tuple(Node(f"aten.{op}", args) for op, args in nodes)
    return Task("cpu", tuple(inputs), made, (NodeRef(len(made) - 1),), (output,))


X, Y, Z = (InputRef(number) for number in range(3))


def pointwise(gigabytes: float, dtype: str = "float32") -> Task:
    size = {"float32": 4, "bfloat16": 2}[dtype]
    x = spec(int(gigabytes * GB / size / 8192), 8192, dtype=dtype)
    return task([x], x, ("neg.default", {"self": X}), ("exp.default", {"self": NodeRef(0)}))


def softmax() -> Task:
    x = spec(1 << 15, 1 << 15)
    args = {"self": X, "dim": -1, "half_to_float": False}
    return task([x], x, ("_softmax.default", args))


def norm() -> Task:
    x = spec(1 << 16, 1 << 14)
    return task(
        [x, spec(1 << 14)],
        x,
        ("pow.Tensor_Scalar", {"self": X, "exponent": 2}),
        ("mean.dim", {"self": NodeRef(0), "dim": (-1,), "keepdim": True}),
        ("rsqrt.default", {"self": NodeRef(1)}),
        ("mul.Tensor", {"self": X, "other": NodeRef(2)}),
        ("mul.Tensor", {"self": NodeRef(3), "other": Y}),
    )


def loss() -> Task:
    x = spec(1 << 15, 1 << 15)
    return task(
        [x, x],
        spec(),
        ("sub.Tensor", {"self": X, "other": Y}),
        ("abs.default", {"self": NodeRef(0)}),
        ("mean.default", {"self": NodeRef(1)}),
    )


def product() -> Task:
    a, b = spec(1 << 15, 1 << 14), spec(1 << 14, 1 << 14)
    return task([a, b], spec(1 << 15, 1 << 14), ("mm.default", {"self": X, "mat2": Y}))


def convolution() -> Task:
    x, w = spec(256, 64, 224, 224), spec(64, 64, 3, 3)
    args = {
        "input": X, "weight": Y, "bias": None, "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1),
        "transposed": False, "output_padding": (0, 0), "groups": 1,
    }  # fmt: skip
    return task([x, w], x, ("convolution.default", args))


def scan() -> Task:
    x = spec(1 << 16, 1 << 14)
    return task([x], x, ("cumsum.default", {"self": X, "dim": 1}))


def outer() -> Task:
    made = spec(1 << 15, 1 << 15)
    return task([spec(1 << 15, 1), spec(1, 1 << 15)], made, ("mul.Tensor", {"self": X, "other": Y}))


def positions() -> Task:
    x = spec(1 << 15, 1 << 15)
    args = {"self": X, "dim": 1}
    return task([x], spec(1 << 15, dtype="int64"), ("argmax.default", args))


TASKS = {
    "positions": positions,
    "6 GB in and out": lambda: pointwise(6),
    "0.5 GB": lambda: pointwise(0.5),
    "8 GB of half precision": lambda: pointwise(8, "bfloat16"),
    "softmax": softmax,
    "norm": norm,
    "loss": loss,
    "product": product,
    "convolution": convolution,
    "scan": scan,
    "outer product": outer,
}


def of(made: Task, frugal: bool = True) -> Footprint:
    module = build_graph(made)
    moved = bytes_of(made.inputs) + bytes_of(made.output_specs)
    without = position_rules(made)
    sliced = SlicedOracle(module, slice_bytes(moved), without=without) if frugal else None
    return footprint(made, module, sliced, frugal)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("phase", PHASES)
def test_no_phase_holds_more_than_the_contract_allows(name: str, phase: Phase) -> None:
    found = of(TASKS[name]())
    assert found.moved >= FRUGAL_BYTES
    assert found.of(phase) <= found.allowed, f"{found.of(phase) / GB:.1f} GB"


@pytest.mark.parametrize("name", ["6 GB in and out", "softmax", "norm", "product", "scan"])
def test_where_eager_needs_little_that_is_two_and_a_half_times_what_is_moved(name: str) -> None:
    found = of(TASKS[name]())
    for phase in PHASES:
        assert found.of(phase) <= MOST_TIMES * found.moved + MORE_BYTES, phase


def test_a_session_that_is_not_frugal_would_fill_the_card_with_the_largest() -> None:
    found = of(pointwise(6), frugal=False)
    assert found.of("race") > 80 * GB


def test_eager_holds_what_it_still_reads() -> None:
    x = spec(1000)
    chain: list[tuple[str, dict[str, Any]]] = [("neg.default", {"self": X})]
    chain += [("neg.default", {"self": NodeRef(n)}) for n in range(5)]
    assert peak_bytes(build_graph(task([x], x, *chain)).graph) == 2 * 4000
    kept = task([x], x, *chain[:3], ("add.Tensor", {"self": NodeRef(0), "other": NodeRef(2)}))
    assert peak_bytes(build_graph(kept).graph) == 3 * 4000


def test_views_take_nothing_and_keep_what_they_are_of() -> None:
    x = spec(10, 100)
    made = task(
        [x],
        spec(100, 10),
        ("neg.default", {"self": X}),
        ("permute.default", {"self": NodeRef(0), "dims": (1, 0)}),
        ("exp.default", {"self": X}),
        ("view.default", {"self": NodeRef(2), "size": (100, 10)}),
        ("add.Tensor", {"self": NodeRef(1), "other": NodeRef(3)}),
    )
    assert peak_bytes(build_graph(made).graph) == 3 * 4000


def test_strides_count_from_the_first_to_the_last_element() -> None:
    assert bytes_of([TensorSpec("float32", (4, 3), (10, 1))]) == 4 * 33
    assert bytes_of([TensorSpec("float32", (4, 3), (0, 1))]) == 4 * 3


class Counted:
    """Bytes of tensors that torch allocates on the host, at their peak."""

    def __init__(self) -> None:
        self.most = 0

    def __call__(self, work: Any) -> int:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            work()
        held = most = 0
        for event in sorted(seen.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
            if event.name() == "[memory]":
                held += event.nbytes()
                most = max(most, held)
        return most


@pytest.mark.parametrize("name", ["pointwise", "loss"])
def test_the_oracle_holds_no_more_than_was_told(name: str) -> None:
    x = spec(2000, 500)
    made = {
        "pointwise": task(
            [x], x, ("neg.default", {"self": X}), ("exp.default", {"self": NodeRef(0)})
        ),
        "loss": task(
            [x, x],
            spec(),
            ("sub.Tensor", {"self": X, "other": Y}),
            ("abs.default", {"self": NodeRef(0)}),
            ("mean.default", {"self": NodeRef(1)}),
        ),
    }[name]
    oracle = SlicedOracle(build_graph(made), 1 << 20)
    inputs = [torch.randn(s.shape) for s in made.inputs]

    def work() -> None:
        for piece in oracle.pieces(inputs):
            del piece

    assert oracle.held_bytes <= 1 << 20 < math.prod(x.shape) * 8
    assert Counted()(work) <= oracle.held_bytes + (1 << 18)
