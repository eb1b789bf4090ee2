"""Schedules of a region some of whose kernels do the work of those that follow them too, best guess first.

Each matrix product that can be is reduced in its tiles, or the first kernel that can be is one with what follows it.
"""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.cuda.family import Order, Parameters
from cuda_agent_backend.codegen.cuda.registry import JOINS
from cuda_agent_backend.codegen.cuda.rows.prepare.peel import peel_tail
from cuda_agent_backend.codegen.cuda.schedules import kernel_schedules
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Schedule

MOST = 6
"""Tiles that are tried; what joins them takes little time, so of its schedules the best guess is."""
FIRST = 2
"""Schedules of a kernel that are asked for where one is wanted."""
(REDUCE,) = (family for family in JOINS if family.order is Order.REDUCTION)


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
    order: Order,
) -> list[Schedule]:
    """Up to ``most`` schedules in which the first kernel that can be is one with what follows it, by the first family
    of an ``order`` that does it; none where none can."""
    for number in range(len(kernels)):
        for family in (one for one in JOINS if one.order is order):
            try:
                match = family.match(region, kernels, number)
                if isinstance(match, NotCovered):
                    continue
                options = family.schedules(match, region, device, most)
                if options:
                    joined = family.joined(match, region, options[0])
                    return [_with_others({number: p}, *joined, device) for p in options]
            except Unsupported:
                continue
    return []


def _ranked(
    region: LoweredRegion, kernels: tuple[Kernel, ...], device: DeviceFacts, most: int
) -> dict[int, list[Parameters]]:
    """Up to ``most`` tiles, best guess first, for each product that can be reduced where those before it are."""
    found: dict[int, list[Parameters]] = {}
    for number in range(len(kernels)):
        match = REDUCE.match(region, kernels, number)
        if isinstance(match, NotCovered):
            continue
        try:
            options = REDUCE.schedules(match, region, device, most)
            if options:
                region, kernels = REDUCE.joined(match, region, options[0])
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
        match = REDUCE.match(region, kernels, number)
        if isinstance(match, NotCovered):
            continue
        try:
            region, kernels = REDUCE.joined(match, region, parameters)
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
            else kernel_schedules(peel_tail(kernel, region.buffers), region, device, FIRST)[0]
            for n, kernel in enumerate(kernels)
        )
    )
