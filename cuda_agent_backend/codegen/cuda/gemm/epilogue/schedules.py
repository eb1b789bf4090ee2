"""Schedules of a region some of whose products are reduced in their tiles, or one of them pooled, gated or done with
its rows, best guess first (see `reduced`, `pooled`, `gated`, `whole_rows`, and `weighed` for what is no product)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cuda_agent_backend.codegen.cuda.attention.pooling.match import weighing_of
from cuda_agent_backend.codegen.cuda.attention.pooling.writer import weighing_schedules
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.dual_gemm import combining
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.match import pooling_of
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.match import reducing_of
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.writer import shape_of
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.match import whole_rows_of
from cuda_agent_backend.codegen.cuda.gemm.schedules import (
    gating_schedules,
    pooling_schedules,
    reducing_schedules,
    whole_row_schedules,
)
from cuda_agent_backend.codegen.cuda.gemm.tiles import read_tiles
from cuda_agent_backend.codegen.cuda.rows.loss.match import totalled_of
from cuda_agent_backend.codegen.cuda.rows.loss.schedules import total_schedules
from cuda_agent_backend.codegen.cuda.rows.prepare.peel import peeled
from cuda_agent_backend.codegen.cuda.rows.problem import Parameters
from cuda_agent_backend.codegen.cuda.schedules import kernel_schedules
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Schedule

MOST = 6
"""Tiles that are tried; what joins them takes little time, so of its schedules the best guess is."""
FIRST = 2
"""Schedules of a kernel that are asked for where one is wanted."""
Joined = tuple[tuple[Kernel, ...], list[Parameters]]
Way = Callable[[LoweredRegion, tuple[Kernel, ...], int, DeviceFacts, int], Joined]


def reduced_schedules(
    region: LoweredRegion, kernels: tuple[Kernel, ...], device: DeviceFacts, most: int = MOST
) -> list[Schedule]:
    """Up to ``most`` schedules in which each product that can be is reduced in its tiles; none where none can."""
    ranked = _ranked(region, kernels, device, most)
    found: list[Schedule] = []
    for turn in range(max(map(len, ranked.values()), default=0)):
        chosen, own_region, changed = _chosen(region, kernels, ranked, turn)
        if not chosen:
            break
        try:
            one = _with_others(chosen, own_region, changed, device)
        except Unsupported:
            continue
        if one not in found:
            found.append(one)
    return found


def joined_schedules(
    region: LoweredRegion,
    kernels: tuple[Kernel, ...],
    device: DeviceFacts,
    most: int,
    ways: Sequence[Way],
) -> list[Schedule]:
    """Up to ``most`` schedules in which the first kernel that can be is one with what follows it, in the first of
    ``ways`` in which it can; none where none can."""
    for number in range(len(kernels)):
        for way in ways:
            try:
                found, options = way(region, kernels, number, device, most)
                if options:
                    return [_with_others({number: p}, region, found, device) for p in options]
            except Unsupported:
                continue
    return []


def _pooled(
    region: LoweredRegion, kernels: tuple[Kernel, ...], number: int, device: DeviceFacts, most: int
) -> Joined:
    """The kernels where one is pooled in its tiles, and up to ``most`` ways to do that."""
    pooling = pooling_of(region, kernels, number)
    return pooling.kernels, pooling_schedules(pooling, device, most)


def _gated(
    region: LoweredRegion, kernels: tuple[Kernel, ...], number: int, device: DeviceFacts, most: int
) -> Joined:
    """The same where the parts of one, or two of one operand, are combined in its tiles."""
    gating = combining(region, kernels, number)
    return gating.kernels, gating_schedules(gating, device, most)


def _whole(
    region: LoweredRegion, kernels: tuple[Kernel, ...], number: int, device: DeviceFacts, most: int
) -> Joined:
    """The same where one is done with its rows in its tiles."""
    whole = whole_rows_of(region, kernels, number)
    return whole.kernels, whole_row_schedules(whole, device, most)


def _weighed(
    region: LoweredRegion, kernels: tuple[Kernel, ...], number: int, device: DeviceFacts, most: int
) -> Joined:
    """The same where tokens are weighed when they are read."""
    found = weighing_of(region, kernels, number)
    return found.kernels, weighing_schedules(found, region, device, most)


def _totalled(
    region: LoweredRegion, kernels: tuple[Kernel, ...], number: int, device: DeviceFacts, most: int
) -> Joined:
    """The same where rows are made one number of."""
    found = totalled_of(region, kernels, number)
    return found.kernels, total_schedules(found, region, device, most)


BEFORE_REDUCED = (_whole, _weighed)
AFTER_REDUCED = (_pooled, _gated, _totalled)
"""Ways of being one kernel with what follows, by whether they are preferred to being reduced in tiles."""


def _ranked(
    region: LoweredRegion, kernels: tuple[Kernel, ...], device: DeviceFacts, most: int
) -> dict[int, list[Parameters]]:
    """Up to ``most`` tiles, best guess first, for each product that can be reduced where those before it are."""
    found: dict[int, list[Parameters]] = {}
    for number in range(len(kernels)):
        try:
            reducing = reducing_of(region, kernels, number)
            options = reducing_schedules(reducing, device, most)
            if options:
                region, kernels = reducing.in_tiles(shape_of(read_tiles(options[0])))
                found[number] = list(options)
        except Unsupported:
            continue
    return found


def _chosen(
    region: LoweredRegion,
    kernels: tuple[Kernel, ...],
    ranked: Mapping[int, list[Parameters]],
    turn: int,
) -> tuple[dict[int, Parameters], LoweredRegion, tuple[Kernel, ...]]:
    """For each product that is reduced its parameters at this turn; region and kernels as they are then."""
    chosen: dict[int, Parameters] = {}
    for number, options in ranked.items():
        parameters = options[min(turn, len(options) - 1)]
        try:
            reducing = reducing_of(region, kernels, number)
            region, kernels = reducing.in_tiles(shape_of(read_tiles(parameters)))
            chosen[number] = parameters
        except Unsupported:
            continue
    return chosen, region, kernels


def _with_others(
    chosen: Mapping[int, Parameters],
    region: LoweredRegion,
    kernels: tuple[Kernel, ...],
    device: DeviceFacts,
) -> Schedule:
    """With the best guess for all other kernels."""
    return Schedule.of(
        *(
            chosen[n]
            if n in chosen
            else kernel_schedules(peeled(kernel, region.buffers), region, device, FIRST)[0]
            for n, kernel in enumerate(kernels)
        )
    )
