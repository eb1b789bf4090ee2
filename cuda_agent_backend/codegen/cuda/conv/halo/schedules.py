"""Which boxes and tiles of a convolution are worth trying on a device, best guess first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.conv.halo.match import Halo, halo_of
from cuda_agent_backend.codegen.cuda.conv.halo.sizes import (
    CHUNK,
    PARTS,
    PIECE,
    place_bytes,
    steps_of,
)
from cuda_agent_backend.codegen.cuda.conv.halo.writer import SKETCH, HaloWriter, halo_writer
from cuda_agent_backend.codegen.cuda.family import Problem
from cuda_agent_backend.codegen.cuda.gemm.tiles import REGISTERS
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.multiply_precision import EXACT
from cuda_agent_backend.codegen.ir.schedule import Parameter

Parameters = dict[str, Parameter]
LEAST_CHANNELS, LEAST_COLUMNS = PIECE, 8
"""Below which most of a tile is padding."""
MOST_TAPS = 128
"""More are no filter's, but places of an image that a filter's gradient sums over."""
MOST = 4
"""Schedules that are proposed."""
ROWS = (128, 256, 64)
"""Of a tile, which the box fills as far as it can."""
LINES = (8, 16, 32, 64, 128, 256)
"""Places of a box along the innermost loop: of eight that follow each other, fragments are read without conflicts."""
SIDES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
"""Places along others."""
MOST_BOXES = 4
"""Of each size that are looked at more closely."""
HALO = 0.3
"""What a place of the image costs a box, beside one of the output."""
WIDEST = 128
WARPS = ((32, 32), (64, 32), (32, 24), (64, 24), (32, 40), (32, 16), (64, 16), (16, 32), (64, 8))
"""Places and channels of a warp, as far as registers go."""
FEWEST_THREADS, MOST_THREADS = 128, 512
TERMS_PER_CLOCK = 1250
"""Products of bfloat16 numbers of a multiprocessor."""
PLACE_CLOCKS, FRAGMENT_CLOCKS = 0.3, (12.0, 6.0)
"""What copying and splitting a number takes; reading a warp's fragment of 16 places, of 8 channels, for 16 terms."""
HIDDEN = 0.7
"""The share of the shorter of reading fragments and multiplying that the longer one hides."""
ENOUGH_THREADS = 256
"""On a multiprocessor, to hide what one of them waits for."""
OWN_REGISTERS = 60
"""Of a thread, beside its sums and as many for what goes with them, as the compiler has it without a bound."""
ALONE = 1.1
"""What it costs that no other block multiplies while one splits its chunk."""


def halo_schedules(problem: Problem, found: GemmForm, products: int = 6) -> list[Parameters]:
    """A few schedules, none where this is no convolution of several taps and enough channels.

    products: for each of two numbers, as `BoxParams` says.
    """
    halo = halo_of(found)
    if halo is None or not 2 <= halo.tap_count <= MOST_TAPS:
        return []
    if halo.channel[1] < LEAST_CHANNELS or found.n < LEAST_COLUMNS:
        return []
    ranked = sorted(
        _all(found, halo),
        key=lambda one: _clocks(found, halo, one[0], one[1], problem.device, products),
    )
    return best_of_tiles(
        ((tile, boxed_parameters(SKETCH, box, tile, products)) for box, tile in ranked),
        lambda own: halo_writer(problem, found, own, "k"),
    )


Tile = tuple[int, int, int, int]
"""Places and channels of a block, and of a warp."""
BoxTile = tuple[tuple[int, ...], Tile]
"""A box, and its tile."""


def best_of_tiles(
    ranked: Iterable[tuple[Tile, Parameters]], writer: Callable[[Parameters], HaloWriter]
) -> list[Parameters]:
    """The first few that can be written, each with a tile of its own."""
    chosen: dict[Tile, Parameters] = {}
    for tile, own in ranked:
        if tile in chosen:
            continue
        try:
            writer(own).check()
        except Unsupported:
            continue
        chosen[tile] = own
        if len(chosen) == MOST:
            break
    return list(chosen.values())


def _all(found: GemmForm, halo: Halo) -> Iterator[BoxTile]:
    boxes = [box for rows in ROWS for box in best_boxes(halo, rows)]
    for box, (warp_m, warp_n) in itertools.product(boxes, WARPS):
        tile_m = ceildiv(math.prod(box), warp_m) * warp_m
        for columns in whole_warps(found.n, warp_n):
            threads = tile_m // warp_m * (columns // warp_n) * 32
            fits = threads * _registers(warp_m, warp_n) <= REGISTERS
            if fits and FEWEST_THREADS <= threads <= MOST_THREADS:
                yield box, (tile_m, columns, warp_m, warp_n)


def whole_warps(n: int, warp: int, counts: Sequence[int] = (1, 2, 3, 4, 8)) -> list[int]:
    """Columns of so many warps: all, or several tiles of them with little padding."""
    least = ceildiv(n, warp) * warp
    wide = {warp * count for count in counts if warp * count <= min(least, WIDEST)}
    return sorted(wide)


def best_boxes(halo: Halo, rows: int) -> list[tuple[int, ...]]:
    """The few that fill a tile of so many rows with the least padding and halo."""
    sizes = [axis.row[1] for axis in halo.axes]
    options = [_sides(size, rows, SIDES) for size in sizes[:-1]] + [_sides(sizes[-1], rows, LINES)]
    full = (b for b in itertools.product(*options) if rows // 2 < math.prod(b) <= rows)

    def cost(box: tuple[int, ...]) -> float:
        return halo.boxes(box) * (
            ceildiv(math.prod(box), 16) * 16 + HALO * math.prod(halo.places(box))
        )

    return sorted(full, key=cost)[:MOST_BOXES]


def _sides(size: int, rows: int, allowed: tuple[int, ...]) -> list[int]:
    short = [n for n in allowed if n < size and n <= rows]
    return [*short, size] if size <= rows else short


def _clocks(
    found: GemmForm,
    halo: Halo,
    box: tuple[int, ...],
    tile: Tile,
    device: DeviceFacts,
    products: int,
) -> float:
    """Of the busiest multiprocessor, about."""
    tile_m, tile_n, warp_m, warp_n = tile
    warps = tile_m // warp_m * (tile_n // warp_n)
    multiplying = tile_m * tile_n * CHUNK * products / TERMS_PER_CLOCK
    reading = warps * (warp_m // 16 * FRAGMENT_CLOCKS[0] + warp_n // 8 * FRAGMENT_CLOCKS[1])
    reading *= PARTS[products] / PARTS[6]
    step = max(multiplying, reading) + (1 - HIDDEN) * min(multiplying, reading)
    chunks = ceildiv(halo.channel[1], CHUNK)
    places = chunks * CHUNK * math.prod(halo.places(box)) * PLACE_CLOCKS
    clocks = steps_of(halo) * step + places
    room = Room(tile_n, 32 * warps, _registers(warp_m, warp_n), place_bytes(PARTS[products]))
    return clocks * turns(halo, box, found.batches, found.n, room, device)


@dataclass(frozen=True)
class Room:
    """What a block takes: columns, threads, registers of each, and bytes of a place of the image."""

    columns: int
    threads: int
    registers: int
    place_bytes: int


def turns(
    halo: Halo, box: tuple[int, ...], batches: int, columns: int, room: Room, device: DeviceFacts
) -> float:
    """Of a block's time that the busiest multiprocessor takes, about: one after another, hidden by one another."""
    each = batches * halo.boxes(box) * ceildiv(columns, room.columns) / device.sm_count
    shared = math.prod(halo.places(box)) * room.place_bytes
    fit = min(REGISTERS // (room.threads * room.registers), device.shared_per_block_bytes // shared)
    resident = min(max(1, fit), max(1.0, each))
    busy = min(1.0, resident * room.threads / ENOUGH_THREADS) ** 0.5
    waves = max(1.0, (each + math.ceil(each)) / 2)
    return float(waves * (ALONE if resident < 2 else 1.0) / busy)


def _registers(warp_m: int, warp_n: int) -> int:
    """Of a thread, about."""
    return OWN_REGISTERS + 2 * warp_m * warp_n // 32


def boxed_parameters(sketch: str, box: tuple[int, ...], tile: Tile, products: int) -> Parameters:
    """Of a schedule; `EXACT` products are not said."""
    _, tile_n, warp_m, warp_n = tile
    text = "x".join(map(str, box))
    found: Parameters = {
        "sketch": sketch, "box": text, "tile_n": tile_n, "warp_m": warp_m, "warp_n": warp_n,
    }  # fmt: skip
    return found if products == EXACT else {**found, "products": products}
