"""Kernels -> CUDA C++ and a launch plan, under a schedule; and the schedules worth trying on a device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Literal

from cuda_agent_backend.codegen.analysis.gemm import numbers_of
from cuda_agent_backend.codegen.analysis.mixed_reductions import crosses
from cuda_agent_backend.codegen.analysis.passes import passes
from cuda_agent_backend.codegen.cuda.attention.pooling import writer as cuda_weighed
from cuda_agent_backend.codegen.cuda.attention.pooling.match import Weighing, weighing_of
from cuda_agent_backend.codegen.cuda.attention.pooling.writer import emit_weighing
from cuda_agent_backend.codegen.cuda.channel_gather import writer as cuda_channels
from cuda_agent_backend.codegen.cuda.channels_last import writer as cuda_crossed
from cuda_agent_backend.codegen.cuda.common.narrow_integers import narrowed
from cuda_agent_backend.codegen.cuda.common.parts import Emitted, dtype_name, needs_wide, temporary
from cuda_agent_backend.codegen.cuda.conv.halo import writer as cuda_halo
from cuda_agent_backend.codegen.cuda.conv.transposed import writer as cuda_phases
from cuda_agent_backend.codegen.cuda.family import Problem
from cuda_agent_backend.codegen.cuda.gemm import writer as cuda_contract
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu import writer as cuda_contract_gate
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.dual_gemm import combining, pairs
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.match import Gating
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.writer import emit_gating
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool import writer as cuda_contract_pool
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.match import Pooling, pooling_of
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.writer import emit_pooling
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce import writer as cuda_contract_reduce
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.match import (
    Reducing,
    reducing_of,
    reducings,
)
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.writer import emit_reducing, shape_of
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row import writer as cuda_contract_rows
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.match import WholeRows, whole_rows_of
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.writer import emit_whole_rows
from cuda_agent_backend.codegen.cuda.gemm.epilogue.schedules import (
    AFTER_REDUCED,
    BEFORE_REDUCED,
    joined_schedules,
    reduced_schedules,
)
from cuda_agent_backend.codegen.cuda.gemm.epilogue.schedules import MOST as MOST_REDUCED
from cuda_agent_backend.codegen.cuda.gemm.filter_taps import with_taps_apart
from cuda_agent_backend.codegen.cuda.gemm.short_k import writer as cuda_short
from cuda_agent_backend.codegen.cuda.gemm.small import writer as cuda_small
from cuda_agent_backend.codegen.cuda.gemm.tail_split import emit_contraction
from cuda_agent_backend.codegen.cuda.gemm.tiles import BOXES, read_tiles
from cuda_agent_backend.codegen.cuda.registry import BY_NAME
from cuda_agent_backend.codegen.cuda.rows import cooperative as cuda_grid
from cuda_agent_backend.codegen.cuda.rows.facts import traffic_of
from cuda_agent_backend.codegen.cuda.rows.loss import writer as cuda_totals
from cuda_agent_backend.codegen.cuda.rows.loss.match import Totalled, totalled_of
from cuda_agent_backend.codegen.cuda.rows.loss.writer import emit_totals
from cuda_agent_backend.codegen.cuda.rows.prepare.peel import peeled
from cuda_agent_backend.codegen.cuda.rows.writer import emit_rows
from cuda_agent_backend.codegen.cuda.schedules import MOST, kernel_schedules
from cuda_agent_backend.codegen.cuda.transpose import writer as cuda_transpose
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.headers import header
from cuda_agent_backend.codegen.ir.kernel import Kernel, temporaries
from cuda_agent_backend.codegen.ir.printer import half_types
from cuda_agent_backend.codegen.ir.program import Program
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from sandbox.plan.plan import Buffer as PlanBuffer
from sandbox.plan.plan import Plan
from sandbox.task.specs import TensorSpec

__all__ = ["DeviceFacts", "emit", "fits", "schedules"]

_PRELUDE = "cuda/common/prelude.cuh"
_FEW = 2
"""Schedules to ask for where it is enough to know that there are any."""
_OF_PRODUCTS = {
    cuda_small.SKETCH: cuda_small.emit_small,
    cuda_short.SKETCH: cuda_short.emit_short,
    cuda_halo.SKETCH: cuda_halo.emit_halo,
    cuda_phases.SKETCH: cuda_phases.emit_phases,
}
"""Sketches of products of numbers as they lie in memory."""
_TILED = (
    cuda_contract.SKETCH,
    cuda_contract_reduce.SKETCH,
    cuda_contract_pool.SKETCH,
    cuda_contract_gate.SKETCH,
    cuda_contract_rows.SKETCH,
)
"""Sketches of products in tiles for tensor cores."""
Joined = Pooling | Gating | WholeRows | Weighing | Totalled
"""What is one kernel with what follows it."""
_JOINS: dict[str, Callable[[LoweredRegion, tuple[Kernel, ...], int], Joined]] = {
    cuda_contract_pool.SKETCH: pooling_of,
    cuda_contract_gate.SKETCH: combining,
    cuda_contract_rows.SKETCH: whole_rows_of,
    cuda_weighed.SKETCH: weighing_of,
    cuda_totals.SKETCH: totalled_of,
}


def emit(
    region: LoweredRegion, kernels: tuple[Kernel, ...], schedule: Schedule, device: DeviceFacts
) -> tuple[str, Plan]:
    """CUDA source and plan of ``region`` under ``schedule``.

    Raises:
        Unsupported: the schedule does not fit a kernel or the device, with the reason.
    """
    made = program(region, kernels, schedule, device)
    return made.source, made.plan


def program(
    region: LoweredRegion,
    kernels: tuple[Kernel, ...],
    schedule: Schedule,
    device: DeviceFacts,
    first: int = 0,
) -> Program:
    """As `emit`, in parts. first: the number in the name of the first kernel.

    Raises:
        Unsupported: the schedule does not fit a kernel or the device, with the reason.
    """
    kernels, joined = _joined(region, kernels, schedule)
    if len(schedule.kernels) != len(kernels):
        raise Unsupported(
            f"schedule for {len(schedule.kernels)} kernels where there are {len(kernels)}"
        )
    region, kernels, reducing = _in_tiles(region, kernels, schedule)
    if joined and reducing:
        raise Unsupported("a product that is one with what follows beside one that is reduced")
    kernels = tuple(peeled(kernel, region.buffers) for kernel in kernels)

    def emit_one(n: int, kernel: Kernel) -> Emitted:
        parameters, name = schedule.parameters(n), f"k{first + n}"
        one = joined.get(n)
        if isinstance(one, Pooling):
            return emit_pooling(one, parameters, name, device)
        if isinstance(one, Gating):
            return emit_gating(one, parameters, name, device)
        if isinstance(one, Weighing):
            return emit_weighing(one, region, parameters, name)
        if isinstance(one, Totalled):
            return emit_totals(one, region, parameters, name, device)
        if one is not None:
            return emit_whole_rows(one, parameters, name, device)
        if n in reducing:
            return emit_reducing(reducing[n], parameters, name, device)
        return _emit_kernel(kernel, region, parameters, name, device)

    emitted = [emit_one(n, kernel) for n, kernel in enumerate(kernels)]
    functions = tuple(text for e in emitted for text in e.functions)
    return Program(_preludes(region, schedule), functions, _plan(region, kernels, emitted))


def _preludes(region: LoweredRegion, schedule: Schedule) -> tuple[str, ...]:
    """The texts that its kernels use, those that others build on first."""
    halves = half_types(b.dtype for b in region.buffers.values())
    sketches = {dict(p).get("sketch") for p in schedule.kernels}
    boxed = sketches & {cuda_halo.SKETCH, cuda_phases.SKETCH}
    files = [_PRELUDE]
    if boxed or sketches & {*_TILED, cuda_short.SKETCH}:
        files += [*cuda_contract.PRELUDES, *(cuda_contract.HALF_PRELUDES if halves else ())]
    if boxed:
        files.append(cuda_halo.PRELUDE)
    if cuda_phases.SKETCH in sketches:
        files.append(cuda_phases.PRELUDE)
    if any(dict(p).get("exchange") == "grid" for p in schedule.kernels):
        files.append(cuda_grid.PRELUDE)
    return ("".join(halves), *map(header, files))


def _joined(
    region: LoweredRegion, kernels: tuple[Kernel, ...], schedule: Schedule
) -> tuple[tuple[Kernel, ...], dict[int, Joined]]:
    """What the schedule makes one kernel with what follows it, by number; the kernels as they are then."""
    found: dict[int, Joined] = {}
    for number, parameters in enumerate(schedule.kernels):
        way = _JOINS.get(str(dict(parameters).get("sketch")))
        if way is not None and number < len(kernels):
            found[number] = way(region, kernels, number)
        kernels = found[number].kernels if number in found else kernels
    return kernels, found


def _in_tiles(
    region: LoweredRegion, kernels: tuple[Kernel, ...], schedule: Schedule
) -> tuple[LoweredRegion, tuple[Kernel, ...], dict[int, Reducing]]:
    """Products that the schedule reduces in their tiles, by number; region and kernels as they are then."""
    found: dict[int, Reducing] = {}
    for number in range(len(kernels)):
        parameters = schedule.parameters(number)
        if parameters.get("sketch") == cuda_contract_reduce.SKETCH:
            found[number] = reducing_of(region, kernels, number)
            region, kernels = found[number].in_tiles(shape_of(read_tiles(parameters)))
    return region, kernels, found


def _emit_kernel(
    kernel: Kernel,
    region: LoweredRegion,
    parameters: Mapping[str, Parameter],
    name: str,
    device: DeviceFacts,
) -> Emitted:
    sketch = parameters.get("sketch")
    kernel = narrowed(kernel, needs_wide(region, kernel))
    family = BY_NAME.get(str(sketch))
    if family is not None:
        return family.source(Problem(kernel, region, device), parameters, name)
    if sketch == cuda_transpose.SKETCH:
        return cuda_transpose.emit_transpose(kernel, region, parameters, name)
    if sketch == cuda_channels.SKETCH:
        return cuda_channels.emit_channels(kernel, region, parameters, name)
    if sketch == "row":
        return emit_rows(kernel, region, parameters, name, device)
    if sketch == cuda_contract.SKETCH:
        split, found = with_taps_apart(kernel)
        return emit_contraction(split, found, region, parameters, name, device)
    if isinstance(sketch, str) and sketch in _OF_PRODUCTS:
        numbers = numbers_of(kernel)
        if numbers is None:
            raise Unsupported("no sum of products")
        return _OF_PRODUCTS[sketch](kernel, numbers, region, parameters, name, device)
    if sketch == cuda_crossed.SKETCH:
        return cuda_crossed.emit_crossed(kernel, region, parameters, name)
    own = (cuda_channels.SKETCH, cuda_crossed.SKETCH, cuda_transpose.SKETCH, cuda_weighed.SKETCH)
    known = (*BY_NAME, "row", *own, cuda_totals.SKETCH, *_TILED, *_OF_PRODUCTS)
    raise Unsupported(f"sketch {sketch!r}; known: {', '.join(known)}")


def _plan(region: LoweredRegion, kernels: tuple[Kernel, ...], emitted: list[Emitted]) -> Plan:
    def entry(name: str, kind: Literal["input", "output"]) -> PlanBuffer:
        b = region.buffers[name]
        return PlanBuffer(name, kind, TensorSpec(dtype_name(b.dtype), b.shape, b.stride))

    buffers = [entry(n, "input") for n in region.inputs] + [
        entry(n, "output") for n in region.outputs
    ]
    buffers += [temporary(b.name, b.dtype, b.extent) for b in temporaries(region, kernels)]
    buffers += [t for e in emitted for t in e.temporaries]
    return Plan("cuda", tuple(buffers), tuple(launch for e in emitted for launch in e.launches))


def fits(kernel: Kernel, region: LoweredRegion) -> bool:
    """Whether one kernel is the way: what lies around its scans has room on the chip with them, on a device of the
    default kind, and its reductions do not cross each other, nor are they two products."""
    if crosses(kernel) or pairs(kernel):
        return False
    scans = any(stage.kind == "scan" for stage in kernel.stages)
    if not scans or len(passes(kernel, tails=True)) == 1:
        return True
    try:
        return bool(kernel_schedules(kernel, region, DeviceFacts(), _FEW))
    except Unsupported:
        return False


def schedules(
    region: LoweredRegion, kernels: tuple[Kernel, ...], device: DeviceFacts, most: int = MOST
) -> list[Schedule]:
    """Schedules worth trying, best guess first, from up to ``most`` for each kernel.

    Where a product's results are reduced, pooled, gated or mapped by rows, that in its tiles and that of what it wrote
    to memory take turns, and are together no more than ``most``, or than the latter alone.
    """
    plain = _one_by_one(region, kernels, device, most)
    few = min(most, MOST_REDUCED)
    reduced = joined_schedules(region, kernels, device, few, BEFORE_REDUCED)
    reduced = reduced or reduced_schedules(region, kernels, device, few)
    reduced = reduced or joined_schedules(region, kernels, device, few, AFTER_REDUCED)
    # where blocks share terms, tiles alone do not fill the device; a product that is kept is only read once less
    shared = any(int(plain[0].parameters(n).get("split", 1)) > 1 for n in range(len(kernels)))
    unsure = shared or any(one.kept for one in reducings(region, kernels))
    unsure = unsure or _only_apart_in_boxes(plain[0], reduced) or _only_apart_in_images(plain)
    unsure = unsure or any(_multiplies_slower(one, plain[0]) for one in reduced[:1])
    turns = itertools.zip_longest(*((plain, reduced) if unsure else (reduced, plain)))
    found = [one for turn in turns for one in turn if one is not None]
    return found[: max(most, len(plain))]


def _only_apart_in_boxes(plain: Schedule, reduced: list[Schedule]) -> bool:
    """Whether what is gated cannot be in the fastest tiles, those that the copy engine fills."""
    gated = any(
        dict(p)["sketch"] == cuda_contract_gate.SKETCH for s in reduced[:1] for p in s.kernels
    )
    return gated and any(dict(p).get("group") == BOXES for p in plain.kernels)


def _only_apart_in_images(plain: list[Schedule]) -> bool:
    """Whether two convolutions may be done by boxes of the image, which one kernel for both is not."""
    return any(sum(dict(p)["sketch"] == cuda_halo.SKETCH for p in s.kernels) > 1 for s in plain)


def _multiplies_slower(rows: Schedule, plain: Schedule) -> bool:
    """Whether tiles as wide as rows do not multiply in the faster way that other tiles do."""
    for own, other in zip(map(dict, rows.kernels), map(dict, plain.kernels), strict=False):
        if own.get("sketch") == cuda_contract_rows.SKETCH and other.get("group"):
            return not own.get("group") or int(own["tile_m"]) < int(other["tile_m"])
    return False


def _one_by_one(
    region: LoweredRegion, kernels: tuple[Kernel, ...], device: DeviceFacts, most: int
) -> list[Schedule]:
    """All kernels at their best, then one kernel's choice changed, or that of two products of one operand.

    Kernels that do about as much take turns; one that does a tenth of that has one turn in eleven.
    """
    kernels = tuple(peeled(kernel, region.buffers) for kernel in kernels)
    options = [kernel_schedules(kernel, region, device, most) for kernel in kernels]
    first = [o[0] for o in options]
    moved = [traffic_of(kernel, region) for kernel in kernels]
    twins = _twins(kernels, options)
    changes = sorted(
        (number * max(moved) / own, position, number)
        for position, (choices, own) in enumerate(zip(options, moved, strict=True))
        for number in range(1, len(choices))
        if position not in twins[1:]
    )

    def changed(position: int, number: int) -> Schedule:
        places = twins if position in twins else (position,)
        return Schedule.of(*(o[number] if n in places else o[0] for n, o in enumerate(options)))

    return [Schedule.of(*first), *(changed(position, number) for _, position, number in changes)]


def _twins(
    kernels: tuple[Kernel, ...], options: list[list[dict[str, Parameter]]]
) -> tuple[int, ...]:
    """The numbers of two products of one operand that have the same choices: what is best for one is for the other."""
    found = [(n, numbers_of(kernel)) for n, kernel in enumerate(kernels)]
    products = [(n, c) for n, c in found if c is not None]
    if len(products) != 2 or len({c.left.buffer for _, c in products}) != 1:
        return ()
    (first, _), (second, _) = products
    return (first, second) if options[first] == options[second] else ()
