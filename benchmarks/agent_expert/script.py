"""What the expert writes for a task: versions of a kernel, each with its launch plan made from the task's own specs.

Sizes are constants at the top of each source, taken from the specs, so that the same kernel is tested on small tasks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.task.specs import TensorSpec, contiguous_stride
from sandbox.task.task import Task

KERNELS = Path(__file__).parent / "kernels"
MOST_REGISTERS = 65536
"""Of a streaming multiprocessor."""


class Unfit(ValueError):
    """The task is not the one that the kernels were written for."""


@dataclass(frozen=True)
class Version:
    """One kernel to try. say: what the expert thinks of it; file: where it goes in the workspace; plan: JSON text.

    A version of the same file as the one before it differs from that in some lines.
    """

    say: str
    file: str
    source: str
    plan: str


@dataclass(frozen=True)
class Play:
    """A task of the practice set, by path without suffix, and what the expert writes for it."""

    name: str
    versions: Callable[[Task], Sequence[Version]]

    @property
    def why(self) -> str:
        """Why it should win."""
        return " ".join((self.versions.__doc__ or "").split())


def source_of(file: str, sizes: Mapping[str, int]) -> str:
    """A kernel's file with its sizes on top."""
    constants = "".join(f"constexpr int {name} = {size};\n" for name, size in sizes.items())
    return constants + (KERNELS / file).read_text(encoding="utf-8")


def step(
    kernel: str, grid: int, block: int, args: Sequence[str], *, shared: int = 0
) -> dict[str, Any]:
    """A launch of a plan, in one dimension. shared: dynamic shared memory in bytes."""
    return {"kind": "launch", "kernel": kernel, "grid": [grid, 1, 1], "block": [block, 1, 1],
            "shared": shared, "args": list(args)}  # fmt: skip


def plan_of(
    task: Task, steps: Sequence[Mapping[str, Any]], temporaries: Mapping[str, int] | None = None
) -> str:
    """The plan's JSON text: inputs ``in0`` and so on, outputs ``out0``, as the task has them. temporaries: floats
    each."""
    buffers = [_buffer(f"in{n}", "input", spec) for n, spec in enumerate(task.inputs)]
    buffers += [_buffer(f"out{n}", "output", spec) for n, spec in enumerate(task.output_specs)]
    for name, size in (temporaries or {}).items():
        buffers.append(_buffer(name, "temporary", TensorSpec("float32", (size,), (1,))))
    document = {"version": 1, "target": task.target, "buffers": buffers, "steps": list(steps)}
    return json.dumps(document, indent=1)


def _buffer(name: str, kind: str, spec: TensorSpec) -> dict[str, Any]:
    return {"name": name, "kind": kind, "dtype": spec.dtype, "shape": list(spec.shape),
            "stride": list(spec.stride)}  # fmt: skip


def dense(spec: TensorSpec) -> tuple[int, ...]:
    """The shape of a float32 tensor without gaps in row-major order. Raises `Unfit` otherwise."""
    steps = zip(spec.shape, spec.stride, contiguous_stride(spec.shape), strict=True)
    if spec.dtype != "float32" or any(size > 1 and a != b for size, a, b in steps):
        raise Unfit(f"{spec} is not contiguous float32")
    return spec.shape


def folded(shape: Sequence[int], keep: int) -> tuple[int, ...]:
    """The last ``keep`` sizes, with the product of all before them in front."""
    return (math.prod(shape[: len(shape) - keep]), *shape[len(shape) - keep :])


def ceildiv(a: int, b: int) -> int:
    """How many times b covers a."""
    return -(-a // b)
