"""Triton candidates: a pointwise kernel and a reduction over rows, and what changes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import pytest

from sandbox.compile.toolchain import Toolchain, find_triton
from sandbox.isolation.confine import offered
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Plan
from sandbox.task.specs import TensorSpec

needs_triton = pytest.mark.skipif(
    not isinstance(find_triton(), Toolchain), reason="Triton is not installed"
)
needs_isolation = pytest.mark.skipif(
    offered().level != "full", reason=f"this machine: {offered().describe()} {offered().why}"
)

SOURCE = """
import triton
import triton.language as tl

@triton.jit
def silu_bias(x, b, y, n, columns, stride, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    v = tl.load(x + i * stride, mask) + tl.load(b + i % columns, mask)
    tl.store(y + i, v / (1.0 + tl.exp(-v)), mask)

@triton.jit
def row_sum(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + i, i < columns, other=0.0)
    tl.store(y + row, tl.sum(v, 0))
"""

DESCRIBED = """
import triton
import triton.language as tl

@triton.jit
def row_sum(x, y, columns, BLOCK: tl.constexpr):
    rows = tl.num_programs(0)
    here = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [1, BLOCK])
    v = here.load([tl.program_id(0), 0])
    tl.store(y + tl.program_id(0), tl.sum(tl.sum(v, 1), 0))
"""
"""Its descriptors lie in the scratch memory that Triton asks for."""


class Shapes(Protocol):
    """A task, or as much of one as a plan is made from."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...
    @property
    def output_specs(self) -> tuple[TensorSpec, ...]: ...


@dataclass(frozen=True)
class Specs:
    """Inputs and outputs alone."""

    inputs: tuple[TensorSpec, ...]
    output_specs: tuple[TensorSpec, ...]


def document(task: Shapes, *steps: dict[str, Any]) -> dict[str, Any]:
    """A plan for the task, as JSON."""

    def buffer(name: str, kind: str, spec: Any) -> dict[str, Any]:
        return {"name": name, "kind": kind, "dtype": spec.dtype, "shape": list(spec.shape)}

    inputs = [buffer(f"in{i}", "input", spec) for i, spec in enumerate(task.inputs)]
    outputs = [buffer(f"out{i}", "output", spec) for i, spec in enumerate(task.output_specs)]
    return {"version": 1, "target": "cuda", "buffers": inputs + outputs, "steps": list(steps)}


def pointwise(task: Shapes, **change: Any) -> dict[str, Any]:
    """The step for silu(x + b)."""
    rows, columns = task.inputs[0].shape
    return {
        "kind": "triton",
        "kernel": "silu_bias",
        "grid": [-(-rows * columns // 1024), 1, 1],
        "args": ["in0", "in1", "out0", {"i32": rows * columns}, {"i32": columns}, {"i32": 1}],
        "constexprs": {"BLOCK": 1024},
        **change,
    }


def reduction(task: Shapes, block: int, **change: Any) -> dict[str, Any]:
    """The step for the sums of rows."""
    rows, columns = task.inputs[0].shape
    return {
        "kind": "triton",
        "kernel": "row_sum",
        "grid": [rows, 1, 1],
        "args": ["in0", "out0", {"i32": columns}],
        "constexprs": {"BLOCK": block},
        **change,
    }


def candidate(plan: dict[str, Any], source: str = SOURCE) -> Candidate:
    """Of a policy."""
    return Candidate("cuda", "triton", source, Plan.from_document(plan), "policy")


def changed(found: Candidate, old: str, new: str) -> Candidate:
    """The candidate with other words in its source."""
    assert old in found.source
    return replace(found, source=found.source.replace(old, new))
