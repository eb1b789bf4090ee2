"""Schedules of a region some of whose products are reduced in their tiles, or one of them pooled or done with its rows,
best guess first (see `reduced`, `pooled`, `whole_rows`)."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.sketch.cuda_contract_reduce import shape_of
from cuda_agent_backend.sketch.cuda_contract_schedules import (
    pooling_schedules,
    reducing_schedules,
    whole_row_schedules,
)
from cuda_agent_backend.sketch.cuda_layout import DeviceFacts
from cuda_agent_backend.sketch.cuda_peel import peeled
from cuda_agent_backend.sketch.cuda_schedules import Parameters, kernel_schedules
from cuda_agent_backend.sketch.cuda_tiles import read_tiles
from cuda_agent_backend.sketch.cuda_weighed import weighing_schedules
from cuda_agent_backend.sketch.lower import LoweredRegion
from cuda_agent_backend.sketch.nest import Kernel
from cuda_agent_backend.sketch.pooled import pooling_of
from cuda_agent_backend.sketch.reduced import reducing_of
from cuda_agent_backend.sketch.schedule import Schedule
from cuda_agent_backend.sketch.ssa import Unsupported
from cuda_agent_backend.sketch.weighed import weighing_of
from cuda_agent_backend.sketch.whole_rows import whole_rows_of

MOST = 6
"""Tiles that are tried; what joins them takes little time, so of its schedules the best guess is."""
FIRST = 2
"""Schedules of a kernel that are asked for where one is wanted."""


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


def pooled_schedules(
    region: LoweredRegion, kernels: tuple[Kernel, ...], device: DeviceFacts, most: int = MOST
) -> list[Schedule]:
    """Up to ``most`` schedules in which the first product that can be is pooled in its tiles; none where none can."""
    for number in range(len(kernels)):
        try:
            pooling = pooling_of(region, kernels, number)
            options = pooling_schedules(pooling, device, most)
            return [_with_others({number: p}, region, pooling.kernels, device) for p in options]
        except Unsupported:
            continue
    return []


def rows_schedules(
    region: LoweredRegion, kernels: tuple[Kernel, ...], device: DeviceFacts, most: int = MOST
) -> list[Schedule]:
    """Up to ``most`` schedules in which the first product that can be is done with its rows; none where none can."""
    for number in range(len(kernels)):
        try:
            whole = whole_rows_of(region, kernels, number)
            options = whole_row_schedules(whole, device, most)
            if options:
                return [_with_others({number: p}, region, whole.kernels, device) for p in options]
        except Unsupported:
            continue
    return []


def weighed_schedules(
    region: LoweredRegion, kernels: tuple[Kernel, ...], device: DeviceFacts, most: int = MOST
) -> list[Schedule]:
    """Up to ``most`` schedules in which the first tokens that can be are weighed when they are read, if any can."""
    for number in range(len(kernels) - 2):
        try:
            found = weighing_of(region, kernels, number)
            options = weighing_schedules(found, region, device, most)
            return [_with_others({number: p}, region, found.kernels, device) for p in options]
        except Unsupported:
            continue
    return []


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
