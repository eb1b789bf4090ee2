"""The schedule's parameters of convolutions whose blocks have boxes of the image, plain or transposed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent_backend.codegen.cuda.conv.halo.match import Halo
from cuda_agent_backend.codegen.cuda.conv.halo.sizes import (
    CHUNK,
    PARTS,
)
from cuda_agent_backend.codegen.cuda.gemm.tiles import Tiles
from cuda_agent_backend.codegen.ir.device import MAX_THREADS, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.multiply_precision import EXACT
from cuda_agent_backend.codegen.ir.parameters import integer, require, string
from cuda_agent_backend.codegen.ir.schedule import Parameter


@dataclass(frozen=True)
class BoxParams:
    """The schedule's parameters."""

    box: str = string('the places of the output that a block has, by loop, as "1x8x16"')
    tile_n: int = integer("output channels of a block", most=MAX_THREADS)
    warp_m: int = integer(
        "places of a warp, a multiple of 16; the tile has as many more places than the box as its warps do"
    )
    warp_n: int = integer("channels of a warp, a multiple of 8 that divides the tile's")
    products: int = integer(
        "6, which need not be said, or, where TF32 will do, 3: of numbers that are split into two parts, which err by "
        "a 32nd of what TF32 does",
        among=tuple(PARTS),
        default=EXACT,
        fixed=True,
    )


def read_box(parameters: Mapping[str, Parameter], halo: Halo) -> tuple[tuple[int, ...], Tiles, int]:
    """The box, the tiles that follow from it, and how many parts numbers have.

    Raises Unsupported where parameters are missing or unknown, or no sizes.
    """
    given = require(BoxParams, parameters)
    box = _box_of(given.box, halo)
    tile_m = ceildiv(math.prod(box), given.warp_m) * given.warp_m
    tiles = Tiles(tile_m, given.tile_n, CHUNK, given.warp_m, given.warp_n, stages=2, run=CHUNK)
    return box, tiles, PARTS[given.products]


def _box_of(text: str, halo: Halo) -> tuple[int, ...]:
    parts = text.split("x")
    box = tuple(int(part) for part in parts if part.isdecimal() and len(part) < 6)
    if len(box) != len(parts) or len(box) != len(halo.axes) or min(box) < 1:
        raise Unsupported(f"box: {text}; places by loop of the output, as 1x8x16")
    return box
