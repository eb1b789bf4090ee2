"""Schedules of a GEMM that is reduced in its tiles, best guess first."""

from __future__ import annotations

from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.directions import shape_of
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.match import ReduceMatch
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.writer import SKETCH as REDUCE
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.writer import reduce_epilogue_writer
from cuda_agent_backend.codegen.cuda.gemm.schedules import ranked_schedules
from cuda_agent_backend.codegen.cuda.gemm.tiles import (
    Tiles,
)
from cuda_agent_backend.codegen.cuda.gemm.writer import GemmWriter
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Parameter

MOST_PADDING = 1.25
"""Of a group's results that are reduced to one, those of its tiles."""


def reduce_schedules(
    reducing: ReduceMatch, device: DeviceFacts, most: int
) -> list[dict[str, Parameter]]:
    """Up to ``most`` schedules for the GEMM and its reductions within tiles; none where none fits."""

    def writer(tiles: Tiles) -> GemmWriter:
        if not is_mostly_filled(reducing, tiles):
            raise Unsupported("tiles that are padding for a good part")
        return reduce_epilogue_writer(reducing, tiles, device)

    return ranked_schedules(REDUCE, reducing.gemm, reducing.region, device, most, writer)


def is_mostly_filled(reducing: ReduceMatch, t: Tiles) -> bool:
    """Whether tiles of a group are not padding for a good part, which those of all groups together were not."""
    one = reducing.directions[0]
    width = one.width(shape_of(t))
    padded = ceildiv(one.extent, width) * width
    return not reducing.grouped or padded <= MOST_PADDING * one.extent
