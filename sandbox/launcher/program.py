"""Load a compiled candidate into this process, ready to be bound to an operator key."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.plan import (
    Argument,
    LibraryCall,
    Plan,
    ResolvedLaunch,
    Scalar,
    TritonLaunch,
)
from sandbox.specs import ITEM_SIZES, TensorSpec, overlaps

DTYPES = tuple(ITEM_SIZES)
"""The order gives each dtype its code in the operator library."""

TEMPORARY_ALIGNMENT = 256
INPUT_ALIGNMENT = {"cpu": 1, "cuda": 16}
"""Bytes. A less aligned input is copied before the launch. Cpu kernels may assume no more than the dtype's own."""

_FORMATS = {"i32": "<i", "i64": "<q", "f32": "<f"}


@dataclass(frozen=True)
class LoadFailed:
    """The binary could not be loaded, or does not fit its plan."""

    reason: str


@dataclass(frozen=True)
class Program:
    """Machine code and plan of one candidate, loaded. `handle` is the launcher's own object."""

    plan: Plan
    path: Path
    handle: Any

    def launch(self, pointers: Sequence[int], stream: int = 0, device: int = -1) -> None:
        """Run on raw addresses in plan order. Nothing is checked. Raises RuntimeError on a CUDA error."""
        self.handle.launch(pointers, stream, device)

    def facts(self, device: int = 0) -> dict[str, dict[str, int]]:
        """Per kernel what the driver says: registers, shared_bytes, local_bytes. Empty on cpu."""
        result: dict[str, dict[str, int]] = self.handle.facts(device)
        return result


def load_program(path: Path | str, plan: Plan) -> Program | LoadFailed:
    """Load the shared object (cpu) or cubin (cuda) at `path`. The process keeps it until nothing refers to it."""
    if any(isinstance(step, LibraryCall) for step in plan.steps):
        return LoadFailed("library calls in a plan are not supported")
    if any(isinstance(step, TritonLaunch) for step in plan.steps):
        return LoadFailed("a plan for Triton is launched as compiling it has made it")
    if any(b.kind == "prepacked" for b in plan.buffers):
        return LoadFailed("prepacked buffers in a plan are not supported")
    try:
        from sandbox import _launcher
    except ImportError as error:
        return LoadFailed(
            f"the launcher extension is missing ({error}); install the package with a C++ compiler"
        )
    try:
        if plan.target == "cpu":
            handle = _launcher.load_cpu(str(Path(path).resolve()), plan.launches()[0].kernel)
        else:
            handle = _launcher.load_cuda(Path(path).read_bytes(), steps_of(plan))
    except (OSError, RuntimeError) as error:
        return LoadFailed(str(error))
    return Program(plan, Path(path), handle)


def temporary_layout(plan: Plan) -> tuple[tuple[int, ...], int]:
    """Byte offset of each temporary in the one block that holds them all, and the block's size in bytes."""
    offsets, position = [], 0
    for spec in plan.temporary_specs:
        offsets.append(position)
        position += -(-spec.extent * spec.itemsize // TEMPORARY_ALIGNMENT) * TEMPORARY_ALIGNMENT
    return tuple(offsets), position


def encode(plan: Plan) -> list[int]:
    """The plan's calling convention as integers, for the operator library. See `Binding` in op.cpp for the layout."""
    offsets, size = temporary_layout(plan)
    words = [
        len(plan.input_specs),
        len(plan.output_specs),
        len(offsets),
        int(plan.target == "cuda"),
    ]
    words += [INPUT_ALIGNMENT[plan.target], size, *offsets]
    for spec in plan.input_specs + plan.output_specs:
        words += _encode_spec(spec)
    return words


def _encode_spec(spec: TensorSpec) -> list[int]:
    return [
        DTYPES.index(spec.dtype),
        int(overlaps(spec)),
        len(spec.shape),
        *spec.shape,
        *spec.stride,
    ]


DATA_TYPES = {"float16": 6, "float32": 7, "bfloat16": 9}
"""CUtensorMapDataType."""

Word = int | bytes | tuple[int, int, int, Sequence[int], Sequence[int], Sequence[int]]
Step = tuple[str, Sequence[int], Sequence[int], int, Sequence[int] | None, bool, list[Word]]


def steps_of(plan: Plan) -> list[Step]:
    """The launches as `_launcher.load_cuda` takes them: of the arguments, buffers by number, scalars as bytes, tensor
    maps as number, offset in bytes, data type, shape, strides in bytes and box."""
    index = {b.name: i for i, b in enumerate(plan.buffers)}
    specs = [b.spec for b in plan.buffers]
    return [_step(launch, index, specs) for launch in plan.launches()]


def _step(launch: ResolvedLaunch, index: dict[str, int], specs: Sequence[TensorSpec]) -> Step:
    args = [_argument(a, index, specs) for a in launch.args]
    return (
        launch.kernel,
        launch.grid,
        launch.block,
        launch.shared,
        launch.cluster,
        launch.dependent,
        args,
    )


def _argument(argument: Argument, index: dict[str, int], specs: Sequence[TensorSpec]) -> Word:
    if isinstance(argument, Scalar):
        return struct.pack(_FORMATS[argument.type], argument.value)
    if isinstance(argument, str):
        return index[argument]
    number = index[argument.buffer]
    size, kind = specs[number].itemsize, DATA_TYPES[specs[number].dtype]
    strides = tuple(size * step for step in argument.stride)
    return number, size * argument.offset, kind, argument.shape, strides, argument.box
