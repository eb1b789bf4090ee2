"""Kernels -> CUDA C++ and a launch plan, under a schedule; and the schedules worth trying on a device."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Literal

from cuda_agent_backend.codegen.analysis.gemm import numbers_of
from cuda_agent_backend.codegen.analysis.mixed_reductions import mixes_directions
from cuda_agent_backend.codegen.analysis.passes import passes
from cuda_agent_backend.codegen.cuda.common.narrow_integers import narrow_integers
from cuda_agent_backend.codegen.cuda.common.parts import Emitted, dtype_name, needs_wide, temporary
from cuda_agent_backend.codegen.cuda.conv.halo.family import Halo
from cuda_agent_backend.codegen.cuda.family import JoinFamily, Order, Problem
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.dual_gemm import is_dual_gemm
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.family import Glu
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.match import matched_reductions
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.family import RowEpilogue
from cuda_agent_backend.codegen.cuda.gemm.tiles import MainLoop
from cuda_agent_backend.codegen.cuda.join_schedules import MOST as MOST_REDUCED
from cuda_agent_backend.codegen.cuda.join_schedules import joined_schedules, reduced_schedules
from cuda_agent_backend.codegen.cuda.registry import JOIN_BY_NAME, JOINS, KERNEL_BY_NAME, KERNELS
from cuda_agent_backend.codegen.cuda.rows.facts import traffic_of
from cuda_agent_backend.codegen.cuda.rows.prepare.peel import peel_tail
from cuda_agent_backend.codegen.cuda.schedules import MOST, kernel_schedules
from cuda_agent_backend.codegen.ir import running
from cuda_agent_backend.codegen.ir import special_functions as special
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported
from cuda_agent_backend.codegen.ir.headers import header
from cuda_agent_backend.codegen.ir.kernel import Kernel, temporaries
from cuda_agent_backend.codegen.ir.operand_types import SAFE, SAFE_HEADERS
from cuda_agent_backend.codegen.ir.parameters import SKETCH
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
    region, kernels, joins = _joined(region, kernels, schedule)
    if len(schedule.kernels) != len(kernels):
        raise Unsupported(
            f"schedule for {len(schedule.kernels)} kernels where there are {len(kernels)}"
        )
    kernels = tuple(peel_tail(kernel, region.buffers) for kernel in kernels)

    def emit_one(n: int, kernel: Kernel) -> Emitted:
        given, name = schedule.parameters(n), f"k{first + n}"
        if n in joins:
            family, match = joins[n]
            return family.emit(match, region, given, name, device)
        return _emit_kernel(kernel, region, given, name, device)

    emitted = [emit_one(n, kernel) for n, kernel in enumerate(kernels)]
    functions = tuple(text for e in emitted for text in e.functions)
    return Program(_preludes(region, schedule, kernels), functions, _plan(region, kernels, emitted))


def _preludes(
    region: LoweredRegion, schedule: Schedule, kernels: tuple[Kernel, ...]
) -> tuple[str, ...]:
    """The texts that its kernels use, those that others build on first."""
    halves = half_types(b.dtype for b in region.buffers.values())
    files = [_PRELUDE]
    bodies = (stage.body for kernel in kernels for stage in kernel.stages)
    operations = {i.op for body in bodies for i in body.walk()}
    if operations & SAFE:
        files.append(SAFE_HEADERS["cuda"])
    if operations & special.NAMES:
        files.append(special.HEADERS["cuda"])
    if operations & running.NEEDED_BY["cuda"]:
        files.append(running.HEADERS["cuda"])
    for family in (*JOINS, *KERNELS):
        for given in map(dict, schedule.kernels):
            if given.get(SKETCH) == family.name:
                files += family.headers(given, bool(halves))
    return ("".join(halves), *map(header, dict.fromkeys(files)))


def _joined(
    region: LoweredRegion, kernels: tuple[Kernel, ...], schedule: Schedule
) -> tuple[LoweredRegion, tuple[Kernel, ...], dict[int, tuple[JoinFamily[Any, Any], Any]]]:
    """Region and kernels when those that the schedule makes one with what follows them are; these, by number, with
    what their families found."""
    found: dict[int, tuple[JoinFamily[Any, Any], Any]] = {}
    for number, given in enumerate(map(dict, schedule.kernels)):
        family = JOIN_BY_NAME.get(str(given.get(SKETCH)))
        if family is None or number >= len(kernels):
            continue
        match = family.refusal(given) or family.match(region, kernels, number)
        if isinstance(match, NotCovered):
            raise Unsupported(match.reason)
        region, kernels = family.joined(match, region, given)
        found[number] = family, match
    orders = {family.order for family, _ in found.values()}
    if Order.REDUCTION in orders and len(orders) > 1:
        raise Unsupported("a product that is one with what follows beside one that is reduced")
    return region, kernels, found


def _emit_kernel(
    kernel: Kernel,
    region: LoweredRegion,
    parameters: Mapping[str, Parameter],
    name: str,
    device: DeviceFacts,
) -> Emitted:
    family = KERNEL_BY_NAME.get(str(parameters.get(SKETCH)))
    if family is None:
        known = ", ".join((*KERNEL_BY_NAME, *JOIN_BY_NAME))
        raise Unsupported(f"sketch {parameters.get(SKETCH)!r}; known: {known}")
    kernel = narrow_integers(kernel, needs_wide(region, kernel))
    return family.source(Problem(kernel, region, device), parameters, name)


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
    if mixes_directions(kernel) or is_dual_gemm(kernel):
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
    reduced = joined_schedules(region, kernels, device, few, Order.BEFORE_REDUCTION)
    reduced = reduced or reduced_schedules(region, kernels, device, few)
    reduced = reduced or joined_schedules(region, kernels, device, few, Order.AFTER_REDUCTION)
    # where blocks share terms, tiles alone do not fill the device; a product that is kept is only read once less
    shared = any(int(plain[0].parameters(n).get("split", 1)) > 1 for n in range(len(kernels)))
    unsure = shared or any(one.kept for one in matched_reductions(region, kernels))
    unsure = unsure or _only_apart_in_boxes(plain[0], reduced) or _only_apart_in_images(plain)
    unsure = unsure or any(_multiplies_slower(one, plain[0]) for one in reduced[:1])
    turns = itertools.zip_longest(*((plain, reduced) if unsure else (reduced, plain)))
    found = [one for turn in turns for one in turn if one is not None]
    return found[: max(most, len(plain))]


def _only_apart_in_boxes(plain: Schedule, reduced: list[Schedule]) -> bool:
    """Whether what is gated cannot be in the fastest tiles, those that the copy engine fills."""
    gated = any(dict(p)[SKETCH] == Glu.name for s in reduced[:1] for p in s.kernels)
    return gated and any(dict(p).get("group") == MainLoop.HALF_WGMMA_TMA for p in plain.kernels)


def _only_apart_in_images(plain: list[Schedule]) -> bool:
    """Whether two convolutions may be done by boxes of the image, which one kernel for both is not."""
    return any(sum(dict(p)[SKETCH] == Halo.name for p in s.kernels) > 1 for s in plain)


def _multiplies_slower(rows: Schedule, plain: Schedule) -> bool:
    """Whether tiles as wide as rows do not multiply in the faster way that other tiles do."""
    for own, other in zip(map(dict, rows.kernels), map(dict, plain.kernels), strict=False):
        if own.get(SKETCH) == RowEpilogue.name and other.get("group"):
            return not own.get("group") or int(own["tile_m"]) < int(other["tile_m"])
    return False


def _one_by_one(
    region: LoweredRegion, kernels: tuple[Kernel, ...], device: DeviceFacts, most: int
) -> list[Schedule]:
    """All kernels at their best, then one kernel's choice changed, or that of two products of one operand.

    Kernels that do about as much take turns; one that does a tenth of that has one turn in eleven.
    """
    kernels = tuple(peel_tail(kernel, region.buffers) for kernel in kernels)
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
