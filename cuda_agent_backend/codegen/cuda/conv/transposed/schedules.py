"""Which boxes and tiles of a transposed convolution with a stride are worth trying on a device, best guess first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.conv.halo.schedules import (
    FEWEST_THREADS,
    FRAGMENT_CLOCKS,
    HIDDEN,
    LEAST_CHANNELS,
    LEAST_COLUMNS,
    MOST_THREADS,
    PLACE_CLOCKS,
    TERMS_PER_CLOCK,
    BoxTile,
    Parameters,
    Room,
    Tile,
    best_boxes,
    best_of_tiles,
    boxed_parameters,
    turns,
    whole_warps,
)
from cuda_agent_backend.codegen.cuda.conv.halo.sizes import CHUNK, PARTS, is_narrow, place_bytes
from cuda_agent_backend.codegen.cuda.conv.transposed.match import SubPixelPhases, phases_of
from cuda_agent_backend.codegen.cuda.conv.transposed.writer import (
    MOST_PHASES,
    MOST_VISITS,
    SKETCH,
    registers_of,
    sub_pixel_steps,
    sub_pixel_writer,
)
from cuda_agent_backend.codegen.cuda.family import Problem
from cuda_agent_backend.codegen.cuda.gemm.tiles import REGISTERS
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv

ROWS = (128, 64, 96, 192, 256, 32)
"""Of a tile, which the box fills as far as it can."""
WARPS = (
    (32, 8),
    (32, 16),
    (16, 16),
    (64, 8),
    (48, 8),
    (32, 24),
    (16, 24),
    (16, 32),
    (32, 32),
    (16, 8),
)
"""Places, and channels of each phase, of a warp."""
SIDE_BY_SIDE = (1, 2, 3, 4, 5, 6, 8)
"""Warps of a tile, beside each other."""
MOST_REGISTERS = 168
"""Of a thread, with which the compiler still keeps sums where they are."""
STORE_CLOCKS = 0.2
"""What writing a result takes: the memory's share of a multiprocessor."""


def sub_pixel_schedules(problem: Problem, found: GemmForm, products: int = 6) -> list[Parameters]:
    """A few schedules, none where there are no phases of a stride, or too many; products: as `halo_schedules`."""
    phases = phases_of(problem.kernel, found)
    if phases is None or phases.count > MOST_PHASES or len(phases.visits) > MOST_VISITS:
        return []
    outputs = phases.outputs
    if phases.halo.channel[1] < LEAST_CHANNELS or outputs < LEAST_COLUMNS:
        return []
    ranked = sorted(
        _all(outputs, phases, PARTS[products]),
        key=lambda one: _clocks(found, phases, one[0], one[1], problem.device, products),
    )
    return best_of_tiles(
        ((tile, boxed_parameters(SKETCH, box, tile, products)) for box, tile in ranked),
        lambda own: sub_pixel_writer(problem, found, own, "k"),
    )


def _all(outputs: int, phases: SubPixelPhases, parts: int) -> Iterator[BoxTile]:
    boxes = [box for rows in ROWS for box in best_boxes(phases.halo, rows)]
    for box, (warp_m, warp_n) in itertools.product(boxes, WARPS):
        registers = registers_of(phases.count, warp_m, warp_n, parts)
        tile_m = ceildiv(math.prod(box), warp_m) * warp_m
        for columns in whole_warps(outputs, warp_n, SIDE_BY_SIDE):
            threads = tile_m // warp_m * (columns // warp_n) * 32
            fits = registers <= MOST_REGISTERS and threads * registers <= REGISTERS
            if fits and FEWEST_THREADS <= threads <= MOST_THREADS:
                yield box, (tile_m, columns, warp_m, warp_n)


def _clocks(
    found: GemmForm,
    phases: SubPixelPhases,
    box: tuple[int, ...],
    tile: Tile,
    device: DeviceFacts,
    products: int,
) -> float:
    """Of the busiest multiprocessor, about."""
    tile_m, tile_n, warp_m, warp_n = tile
    halo, warps = phases.halo, tile_m // warp_m * (tile_n // warp_n)
    channels, steps = halo.channel[1], sub_pixel_steps(phases)
    chunks = ceildiv(channels, CHUNK)
    loads = (chunks - is_narrow(channels)) * len({tap for tap, _ in phases.visits})
    loads += len(phases.pairs) * is_narrow(channels)
    parts = PARTS[products]
    multiplying = steps * tile_m * tile_n * CHUNK * products / TERMS_PER_CLOCK
    rows, columns = warp_m // 16 * FRAGMENT_CLOCKS[0], warp_n // 8 * FRAGMENT_CLOCKS[1]
    reading = warps * (loads * rows + steps * columns) * parts / PARTS[6]
    adding = max(multiplying, reading) + (1 - HIDDEN) * min(multiplying, reading)
    positions = math.prod(halo.places(box))
    copying = chunks * CHUNK * positions * PLACE_CLOCKS
    storing = math.prod(box) * tile_n * phases.count * STORE_CLOCKS
    registers = registers_of(phases.count, warp_m, warp_n, parts)
    room = Room(tile_n, 32 * warps, registers, place_bytes(parts))
    clocks = adding + copying + storing
    return clocks * turns(halo, box, found.batches, phases.outputs, room, device)
