"""Schedules of a GEMM with whole rows in its tiles, best guess first: tiles as wide as a row among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.gemm.candidates import (
    LESS,
    runs_for,
    warp_run,
)
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.match import LONGEST, RowMatch
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.writer import SKETCH as ROW
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.writer import row_epilogue_writer
from cuda_agent_backend.codegen.cuda.gemm.schedules import ranked_schedules
from cuda_agent_backend.codegen.cuda.gemm.tiles import (
    WGMMA_COLUMNS,
    WGMMA_DEPTH,
    WGMMA_ROWS,
    MainLoop,
    Tiles,
)
from cuda_agent_backend.codegen.cuda.gemm.writer import GemmWriter
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.schedule import Parameter

WIDER_TILES = (
    # columns, rows; the share, as `WGMMA_TILES`
    (136, 128, 1.5), (160, 64, 0.95), (192, 64, 0.95),
)  # fmt: skip
WIDER_STAGES = 5
WIDE = (
    # rows, rows of a warp, warps side by side, of whose columns each has a multiple; stages; the share, as `TILES`
    (128, 32, 2, 8, 3, 0.8), (64, 32, 4, 8, 3, 0.75), (64, 16, 2, 8, 3, 0.6),
)  # fmt: skip
"""Tiles as wide as a row."""
WIDE_HALF = ((128, 64, 4, 16, 4, 0.9), (128, 32, 2, 16, 4, 0.8), (64, 32, 4, 16, 4, 0.7))


def row_schedules(whole: RowMatch, device: DeviceFacts, most: int) -> list[dict[str, Parameter]]:
    """Up to ``most`` schedules for the GEMM and what is done with its rows; none where none fits."""

    def writer(tiles: Tiles) -> GemmWriter:
        return row_epilogue_writer(whole, tiles, device)

    c = whole.gemm
    wide = tuple(wide_tiles(c, device))
    return ranked_schedules(ROW, c, whole.region, device, most, writer, wide)


def wide_tiles(c: GemmForm, device: DeviceFacts) -> Iterator[tuple[Tiles, float]]:
    """For rows that no other tile has whole, or only with many columns that do not exist."""
    if not WGMMA_COLUMNS[-2] < c.n <= LONGEST:
        return
    for columns, rows, share in () if c.is_half or device.arch != "sm_90a" else WIDER_TILES:
        if c.n <= columns:
            shape = (rows, columns, WGMMA_DEPTH, WGMMA_ROWS, columns, WIDER_STAGES)
            runs = runs_for(c.k)
            for run in dict.fromkeys((runs[0], runs[-1])):
                tiles = Tiles(*shape, run, group=MainLoop.WGMMA_SPLIT_IN_REGISTERS)
                yield tiles, share - LESS * (run > runs[0])
            break
    for rows, warp_rows, sharing, least, stages, share in WIDE_HALF if c.is_half else WIDE:
        columns = ceildiv(c.n, sharing * least) * sharing * least
        depth = 32 if c.is_half else 16
        run = 0 if c.is_half else warp_run(warp_rows * columns // sharing, depth)
        tiles = Tiles(rows, columns, depth, warp_rows, columns // sharing, stages, run)
        yield replace(tiles, products=1 if c.is_half else 6), share
