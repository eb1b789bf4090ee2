"""What makes a launch plan valid: its buffers, and grids, blocks and arguments within CUDA's limits."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from sandbox.operator_library import MAX_INPUTS, MAX_OUTPUTS
from sandbox.plan.expressions import ExpressionError
from sandbox.plan.library_calls import LibraryCall
from sandbox.plan.library_check import check_call
from sandbox.plan.steps import (
    KIND_ORDER,
    Argument,
    Buffer,
    Launch,
    PlanError,
    ResolvedLaunch,
    TensorMap,
    TritonLaunch,
    require,
    resolve,
    resolve_arguments,
    resolve_triple,
)
from sandbox.task.specs import ITEM_SIZES, overlaps

if TYPE_CHECKING:
    from sandbox.plan.plan import Plan

MAX_BUFFERS, MAX_STEPS = 64, 64
MAX_EXTENT = 1 << 40
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_WARPS, MAX_STAGES, MAX_CONSTEXPRS, MAX_TEXT = 32, 64, 64, 1000
MAX_THREADS, MAX_SHARED, MAX_CLUSTER, MAX_ARGUMENT_BYTES = 1024, 232448, 16, 4096

MAX_TENSOR_MAPS, TENSOR_MAP_BYTES = 4, 128
MAPPED = ("float16", "bfloat16", "float32")
LINE_BYTES, PIECE_BYTES, MAX_BOX = 128, 16, 256
"""Of tensor maps: a box's lines, what addresses and strides are a multiple of, and a box's lines at most."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")


def check_plan(plan: Plan) -> None:
    """Raise PlanError unless the plan can be carried out."""
    require(plan.target in ("cpu", "cuda"), f"target {plan.target!r}; known: cpu, cuda")
    for name, size in plan.sizes.items():
        require(_is_name(name) and type(size) is int, f"size {name!r}: {size!r}")
    _check_buffers(plan)
    require(1 <= len(plan.steps) <= MAX_STEPS, f"{len(plan.steps)} steps; 1 to {MAX_STEPS} allowed")
    if plan.target == "cpu":
        only = sum(isinstance(step, Launch) for step in plan.steps) == 1
        require(only, "a cpu plan has exactly one launch step")
    kernels = any(not isinstance(step, LibraryCall) for step in plan.steps)
    require(
        kernels, "library calls only; a plan has a kernel, or its region is left to the compiler"
    )
    buffers = {b.name: b for b in plan.buffers}
    names = set(buffers)
    for index, step in enumerate(plan.steps):
        if isinstance(step, Launch):
            _check_launch(step, plan, names, f"step {index}")
            behind = index > 0 and isinstance(plan.steps[index - 1], LibraryCall)
            require(not (step.dependent and behind), f"step {index}: dependent on a library call")
        elif isinstance(step, LibraryCall):
            check_call(step, buffers, f"step {index}")
        elif isinstance(step, TritonLaunch):
            require(plan.target == "cuda", f"step {index}: Triton is for cuda")
            _check_triton(step, plan, names, f"step {index}")


def _check_buffers(plan: Plan) -> None:
    require(len(plan.buffers) <= MAX_BUFFERS, f"more than {MAX_BUFFERS} buffers")
    for buffer in plan.buffers:
        _check_buffer(buffer)
    names = [b.name for b in plan.buffers]
    require(len(set(names)) == len(names), "two buffers have the same name")
    order = [KIND_ORDER.index(b.kind) for b in plan.buffers]
    require(order == sorted(order), f"buffers must be ordered {', '.join(KIND_ORDER)}")
    inputs, outputs = order.count(0), order.count(1)
    require(1 <= inputs <= MAX_INPUTS, f"{inputs} inputs; 1 to {MAX_INPUTS} allowed")
    require(1 <= outputs <= MAX_OUTPUTS, f"{outputs} outputs; 1 to {MAX_OUTPUTS} allowed")


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _check_buffer(buffer: Buffer) -> None:
    where, spec = f"buffer {buffer.name!r}", buffer.spec
    require(_is_name(buffer.name), f"{where}: not an identifier")
    require(
        isinstance(buffer.kind, str) and buffer.kind in KIND_ORDER,
        f"{where}: kind {buffer.kind!r}; known: {', '.join(KIND_ORDER)}",
    )
    require(
        isinstance(spec.dtype, str) and spec.dtype in ITEM_SIZES,
        f"{where}: dtype {spec.dtype!r}; known: {', '.join(ITEM_SIZES)}",
    )
    require(len(spec.shape) == len(spec.stride), f"{where}: shape and stride differ in length")
    require(all(n >= 0 for n in spec.shape + spec.stride), f"{where}: negative shape or stride")
    require(spec.extent <= MAX_EXTENT, f"{where}: too large")
    if buffer.kind == "temporary":
        contiguous = len(spec.shape) == 1 and spec.stride == (1,)
        require(contiguous, f"{where}: temporaries are one-dimensional and contiguous")
    if buffer.kind == "output":
        require(not overlaps(spec), f"{where}: elements of an output share memory")


def _check_launch(step: Launch, plan: Plan, names: set[str], where: str) -> None:
    require(_is_name(step.kernel), f"{where}: kernel {step.kernel!r} is not an identifier")
    try:
        resolved = resolve(step, plan.sizes)
    except ExpressionError as error:
        raise PlanError(f"{where}: {error}") from None
    for argument in resolved.args:
        if isinstance(argument, TensorMap):
            _check_tensor_map(argument, plan, f"{where}: tensor map")
        else:
            _check_argument(argument, names, where)
    maps = sum(isinstance(argument, TensorMap) for argument in resolved.args)
    require(maps <= MAX_TENSOR_MAPS, f"{where}: {maps} tensor maps; at most {MAX_TENSOR_MAPS}")
    size = (len(resolved.args) - maps) * 8 + maps * TENSOR_MAP_BYTES
    require(size <= MAX_ARGUMENT_BYTES, f"{where}: too many arguments")
    require(not step.dependent or plan.steps[0] is not step, f"{where}: dependent on nothing")
    _check_cooperative(resolved, plan, where)
    if plan.target == "cuda":
        _check_dimensions(resolved, where)


def _check_cooperative(launch: ResolvedLaunch, plan: Plan, where: str) -> None:
    if launch.cooperative:
        require(plan.target == "cuda", f"{where}: cooperative launches are for cuda")
        require(launch.cluster is None, f"{where}: cooperative, with a cluster; one of the two")


def _check_triton(step: TritonLaunch, plan: Plan, names: set[str], where: str) -> None:
    require(_is_name(step.kernel), f"{where}: kernel {step.kernel!r} is not an identifier")
    try:
        grid = resolve_triple(step.grid, plan.sizes)
        arguments = resolve_arguments(step.args, plan.sizes)
    except ExpressionError as error:
        raise PlanError(f"{where}: {error}") from None
    for argument in arguments:
        require(not isinstance(argument, TensorMap), f"{where}: a tensor map for Triton")
        _check_argument(argument, names, where)
    require(len(arguments) * 8 <= MAX_ARGUMENT_BYTES, f"{where}: too many arguments")
    require(len(step.constexprs) <= MAX_CONSTEXPRS, f"{where}: too many constexprs")
    for name, value in step.constexprs:
        require(_is_name(name) and _is_constant(value), f"{where}: constexpr {name!r}: {value!r}")
    for name, most in (("num_warps", MAX_WARPS), ("num_ctas", MAX_CLUSTER)):
        value = getattr(step, name)
        fits = type(value) is int and 1 <= value <= most and value & (value - 1) == 0
        require(fits, f"{where}: {name} {value!r}; a power of two up to {most}")
    stages = step.num_stages
    fits = type(stages) is int and 0 <= stages <= MAX_STAGES
    require(fits, f"{where}: num_stages {stages!r}; up to {MAX_STAGES}")
    launch = ResolvedLaunch(
        step.kernel, (grid[0] * step.num_ctas, *grid[1:]), (32 * step.num_warps, 1, 1), 0, None, ()
    )
    _check_dimensions(launch, where)


def _is_constant(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_TEXT
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and -(2**63) <= value < 2**63


def _check_tensor_map(given: TensorMap, plan: Plan, where: str) -> None:
    """What the driver asks for, and that nothing beyond the buffer is described."""
    spec = next((b.spec for b in plan.buffers if b.name == given.buffer), None)
    require(
        plan.target == "cuda" and spec is not None, f"{where}: no buffer named {given.buffer!r}"
    )
    assert spec is not None
    require(spec.dtype in MAPPED, f"{where}: a buffer of {spec.dtype}; known: {', '.join(MAPPED)}")
    rank, numbers = len(given.shape), (*given.shape, *given.stride, *given.box)
    fits = 2 <= rank <= 5 and len(given.stride) == rank - 1 and len(given.box) == rank
    require(fits, f"{where}: {rank} dimensions; 2 to 5, a stride for each but the first, a box")
    require(all(type(n) is int and 0 < n < 2**31 for n in numbers), f"{where}: sizes and strides")
    require(type(given.offset) is int and given.offset >= 0, f"{where}: offset {given.offset!r}")
    even = all(n * spec.itemsize % PIECE_BYTES == 0 for n in (*given.stride, given.offset))
    require(even, f"{where}: strides and offset are multiples of {PIECE_BYTES} bytes")
    line = given.box[0] * spec.itemsize
    require(line == LINE_BYTES, f"{where}: lines of {line} bytes in a box; {LINE_BYTES}")
    require(max(given.box) <= MAX_BOX, f"{where}: box {given.box}; at most {MAX_BOX}")
    ends = zip(given.shape, (1, *given.stride), strict=True)
    last = given.offset + sum((n - 1) * step for n, step in ends)
    require(last < spec.extent, f"{where}: beyond the buffer's {spec.extent} elements")


def _check_argument(argument: Argument, names: set[str], where: str) -> None:
    if isinstance(argument, str):
        require(argument in names, f"{where}: no buffer named {argument!r}")
        return
    assert not isinstance(argument, TensorMap)
    value = argument.value
    if argument.type == "f32":
        number = isinstance(value, float | int) and not isinstance(value, bool)
        require(number, f"{where}: f32 argument {value!r}")
        return
    bits = {"i32": 31, "i64": 63}.get(argument.type)
    require(bits is not None, f"{where}: argument type {argument.type!r}; known: i32, i64, f32")
    fits = isinstance(value, int) and bits is not None and -(2**bits) <= value < 2**bits
    require(fits, f"{where}: {value!r} does not fit {argument.type}")


def _check_dimensions(launch: ResolvedLaunch, where: str) -> None:
    grid = all(1 <= n <= m for n, m in zip(launch.grid, MAX_GRID, strict=True))
    require(grid, f"{where}: grid {launch.grid}; 1 to {MAX_GRID} allowed")
    block = all(1 <= n <= m for n, m in zip(launch.block, MAX_BLOCK, strict=True))
    threads = math.prod(launch.block)
    require(
        block and threads <= MAX_THREADS,
        f"{where}: block {launch.block}; at most {MAX_THREADS} threads",
    )
    require(
        0 <= launch.shared <= MAX_SHARED,
        f"{where}: {launch.shared} bytes shared; at most {MAX_SHARED}",
    )
    if launch.cluster is not None:
        small = all(n >= 1 for n in launch.cluster) and math.prod(launch.cluster) <= MAX_CLUSTER
        require(small, f"{where}: cluster {launch.cluster}; at most {MAX_CLUSTER} blocks")
        divides = all(g % c == 0 for g, c in zip(launch.grid, launch.cluster, strict=True))
        require(divides, f"{where}: cluster {launch.cluster} does not divide grid {launch.grid}")
