"""Which tiles of a transposition are worth trying, best guess first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuda_agent_backend.codegen.cuda.transpose.match import (
    LEAST,
    MOST,
    SKETCH,
    Transposition,
    fits_vectors,
    size_of,
    transposition_of,
)
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.parameters import integer, switch
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter

SIDES = (32, 64)
"""Of a square: 128 bytes are a line of the cache."""
MOST_ELEMENTS = 8192
"""Of a tile that both loops fill."""
MANY_TILES = 256
VECTOR = 4
SECTOR = 8
"""Elements of four bytes that memory moves at once."""


@dataclass(frozen=True)
class TransposeParams:
    """The schedule's parameters."""

    wide: int = integer("elements of a tile along the results' loop", least=LEAST, most=MOST)
    tall: int = integer(
        "elements along the operands' loop, as many as along the other where it is left out",
        least=LEAST,
        most=MOST,
        default=0,
    )
    joined: int = switch(
        "1 takes the loops that go on in memory where these end together with them, so that tiles lie across their "
        "ends",
        default=0,
    )
    vector: int = integer(
        "neighbours that a thread loads and stores at a time, where nothing but such operands is read",
        default=1,
    )


def transpose_schedules(kernel: Kernel, region: LoweredRegion) -> list[dict[str, Parameter]]:
    """Squares first, then tiles across the ends of loops, then tiles that the loops fill.

    None where nothing is read across.
    """
    crossing, further = transposition_of(kernel), transposition_of(kernel, True)
    found = _tile_schedules(crossing, region)
    joined = [{**it, "joined": 1} for it in _tile_schedules(further, region)]
    return [
        *_in_vectors(crossing, found, region),
        *_in_vectors(further, joined, region),
        *found[: len(SIDES)],
        *joined[: len(SIDES)],
        *found[len(SIDES) :],
    ]


def _in_vectors(
    crossing: Transposition | None, found: Sequence[dict[str, Parameter]], region: LoweredRegion
) -> list[dict[str, Parameter]]:
    """The squares of ``found`` and a taller tile, by vectors, where there can be some."""
    if crossing is None or not fits_vectors(crossing, region, VECTOR):
        return []
    squares = list(found[: len(SIDES)])
    if len(crossing.loads) == 1:  # longer lines of what is read, as far as shared memory goes
        squares.append({**squares[-1], "wide": max(SIDES), "tall": 2 * max(SIDES)})
    return [{**it, "vector": VECTOR} for it in squares]


def _tile_schedules(
    crossing: Transposition | None, region: LoweredRegion
) -> list[dict[str, Parameter]]:
    if crossing is None:
        return []
    item = min(region.buffers[buffer].dtype.itemsize for buffer, _ in crossing.loads)
    sides = SIDES if item >= 4 else SIDES[::-1]
    found: list[dict[str, Parameter]] = [{"sketch": SKETCH, "wide": side} for side in sides]
    for wide, tall in dict.fromkeys(_filling(crossing, max(sides))):
        if wide != tall or wide not in SIDES:
            found.append({"sketch": SKETCH, "wide": wide, "tall": tall})
    return found


def _filling(crossing: Transposition, side: int) -> list[tuple[int, int]]:
    """Tiles of which few elements are beyond the loops' ends: even parts of the loops.

    Where both loops are small and there are many of them, also the two as a whole.
    """
    width, height = size_of(crossing.columns), size_of(crossing.rows)
    parts = _part(width, side), _part(height, side)
    small = max(width, height) <= MOST and width * height <= MOST_ELEMENTS
    many = size_of(crossing.others) >= MANY_TILES
    return [parts, (width, height)] if small and many else [parts]


def _part(size: int, side: int) -> int:
    """The side of a tile when as few as are needed share a loop evenly, but for whole sectors."""
    count = ceildiv(size, side)
    return size if count == 1 else ceildiv(ceildiv(size, count), SECTOR) * SECTOR
