"""Load a compiled candidate into this process, ready to be bound to an operator key."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.plan.alignment import INPUT_ALIGNMENT, TEMPORARY_ALIGNMENT
from sandbox.plan.plan import (
    Argument,
    Convolution,
    Launch,
    LibraryCall,
    Plan,
    ResolvedLaunch,
    Scalar,
    TritonLaunch,
    View,
    resolve,
)
from sandbox.task.specs import ITEM_SIZES, TensorSpec, overlaps

DTYPES = tuple(ITEM_SIZES)
"""The order gives each dtype its code in the operator library."""

_FORMATS = {"i32": "<i", "i64": "<q", "f32": "<f"}


@dataclass(frozen=True)
class LoadFailed:
    """The binary could not be loaded, or does not fit its plan."""

    reason: str


@dataclass(frozen=True)
class Kernels:
    """Kernels that follow each other, loaded as one program of the launcher's."""

    handle: Any


@dataclass(frozen=True)
class Program:
    """Machine code and plan of one candidate, loaded.

    handle: the launcher's own object, with all kernels up to the first library call behind one. segments: empty where
    the plan has no library call, else the kernels between them, and the calls, in order.
    """

    plan: Plan
    path: Path
    handle: Any
    segments: tuple[Kernels | LibraryCall, ...] = ()

    @property
    def parts(self) -> tuple[Kernels, ...]:
        """All that was loaded, in order."""
        return tuple(s for s in self.segments if isinstance(s, Kernels)) or (Kernels(self.handle),)

    def launch(self, pointers: Sequence[int], stream: int = 0, device: int = -1) -> None:
        """Run on raw addresses in plan order. Nothing is checked. Raises RuntimeError on a CUDA error."""
        if not self.segments:
            self.handle.launch(pointers, stream, device)
            return
        from sandbox.launcher.library import run_call

        for segment in self.segments:
            if isinstance(segment, Kernels):
                segment.handle.launch(pointers, stream, device)
            else:
                run_call(segment, self.plan, pointers, stream, device)

    def facts(self, device: int = 0) -> dict[str, dict[str, int]]:
        """Per kernel what the driver says: registers, shared_bytes, local_bytes. Empty on cpu."""
        result: dict[str, dict[str, int]] = {}
        for part in self.parts:
            result.update(part.handle.facts(device))
        return result


def load_program(path: Path | str, plan: Plan) -> Program | LoadFailed:
    """Load the shared object (cpu) or cubin (cuda) at `path`. The process keeps it until nothing refers to it."""
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
            library, entry = str(Path(path).resolve()), plan.launches()[0].kernel
            segments = _loaded(plan, lambda steps: _launcher.load_cpu(library, entry))
        else:
            image = Path(path).read_bytes()
            segments = _loaded(plan, lambda steps: _launcher.load_cuda(image, steps))
    except (OSError, RuntimeError) as error:
        return LoadFailed(str(error))
    first = next(s.handle for s in segments if isinstance(s, Kernels))
    return Program(plan, Path(path), first, segments if plan.calls else ())


def _loaded(plan: Plan, load: Callable[[list[Step]], Any]) -> tuple[Kernels | LibraryCall, ...]:
    found = segments_of(plan)
    return tuple(s if isinstance(s, LibraryCall) else Kernels(load(s)) for s in found)


def segments_of(plan: Plan) -> list[list[Step] | LibraryCall]:
    """The plan's library calls, and between them the launches that follow each other, see `steps_of`."""
    segments: list[list[Step] | LibraryCall] = []
    index = {b.name: i for i, b in enumerate(plan.buffers)}
    specs = [b.spec for b in plan.buffers]
    for step in plan.steps:
        if isinstance(step, LibraryCall):
            segments.append(step)
        elif isinstance(step, Launch):
            made = _step(resolve(step, plan.sizes), index, specs)
            last = segments[-1] if segments else None
            if isinstance(last, list):
                last.append(made)
            else:
                segments.append([made])
    return segments


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
    segments = segments_of(plan) if plan.calls else []
    words.append(len(segments))
    for segment in segments:
        words += _encode_call(segment, plan) if isinstance(segment, LibraryCall) else [0]
    return words


def _encode_call(call: LibraryCall, plan: Plan) -> list[int]:
    """1, then as `read_call` in op.cpp has it."""
    first, second, *summand = (view for _, view in call.operands)
    words = [1, int(isinstance(call, Convolution))]
    for view in (first, second, call.out):
        words += _encode_view(view, plan)
    words.append(len(summand))
    words += [word for view in summand for word in _encode_view(view, plan)]
    if isinstance(call, Convolution):
        words += [len(call.stride), *call.stride, *call.padding, *call.dilation]
        words += [*call.output_padding, call.groups, int(call.transposed), int(call.benchmark)]
    return words


def _encode_view(view: View, plan: Plan) -> list[int]:
    number = next(n for n, buffer in enumerate(plan.buffers) if buffer.name == view.buffer)
    code = DTYPES.index(plan.buffers[number].spec.dtype)
    return [number, view.offset, code, len(view.shape), *view.shape, *view.stride]


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
Step = tuple[str, Sequence[int], Sequence[int], int, Sequence[int] | None, bool, bool, list[Word]]


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
        launch.cooperative,
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
