"""Tiles that may suit a GEMM, each with its share: how much of its kind's peak rate it can reach.

There are tables of tiles for each main loop (`tiles.MainLoop`) and each kind of shape: large, with few rows or
columns, or as wide as the columns. `candidates` yields those that suit a GEMM's shape, in no order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.gemm.aligned_operands import (
    sides_of,
)
from cuda_agent_backend.codegen.cuda.gemm.estimate import (
    blocks_of,
)
from cuda_agent_backend.codegen.cuda.gemm.facts import MAX_BATCHES
from cuda_agent_backend.codegen.cuda.gemm.operands import Side
from cuda_agent_backend.codegen.cuda.gemm.tiles import (
    HALF_WGMMA_DEPTH,
    MAX_SPLIT,
    WGMMA_DEPTH,
    WGMMA_ROWS,
    MainLoop,
    Tiles,
)
from cuda_agent_backend.codegen.cuda.gemm.tma_boxes import in_batches, tma_boxes_of
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported

FewTile = tuple[int, int, int, int, int, int, int, float]
WGMMA_RUNS = (32, 64)
"""Terms after which sums of warp groups move on (see `gemm.cuh`). After longer runs sums that cancel are less
accurate than eager's (test_contraction_accuracy)."""
WARP_RUNS = (16, 32)
"""Those of warps. The operands of a run lie split in registers, so the longer one is for small tiles."""
SMALL = 32 * 16
"""Results of a warp up to which the longer one leaves enough registers."""
TILES = (
    # rows, columns, depth, rows and columns of a warp, stages; the share of its peak that the tile can reach
    (128, 64, 16, 64, 32, 4, 0.9), (64, 128, 16, 32, 64, 4, 0.9),
    (128, 64, 32, 32, 32, 3, 0.88), (64, 128, 32, 32, 32, 3, 0.88), (64, 64, 32, 32, 32, 4, 0.75),
    (64, 64, 16, 32, 32, 4, 0.7), (256, 32, 16, 64, 16, 4, 0.6), (32, 256, 16, 32, 32, 4, 0.6),
    (128, 32, 32, 32, 16, 4, 0.5), (32, 128, 32, 16, 32, 4, 0.5), (32, 64, 32, 16, 32, 4, 0.4),
    (64, 32, 32, 32, 16, 4, 0.4), (16, 128, 32, 16, 32, 4, 0.3), (128, 16, 32, 32, 16, 4, 0.3),
    (32, 32, 32, 16, 16, 4, 0.3),
)  # fmt: skip
FITTED = (
    # rows, depth, rows of a warp, stages; the share of its peak that the tile can reach
    (128, 16, 32, 4, 0.7), (128, 32, 32, 3, 0.68),
)  # fmt: skip
"""Tiles as wide as all columns, which one warp has, so that rows are split once and nothing is added up in vain."""
WIDEST_FITTED = 56
FEW = 32
"""Rows (or columns) up to which reading the other operand is what takes the time."""
FEW_TILES = (
    # few, many; depth, few and many of a warp, warps that share terms, stages; the share of its peak that it can reach
    (32, 64, 64, 32, 32, 4, 4, 0.8), (32, 64, 64, 16, 32, 4, 4, 0.78), (32, 128, 32, 32, 32, 2, 4, 0.75),
    (32, 32, 128, 32, 32, 8, 3, 0.6),
    (16, 64, 64, 16, 32, 4, 4, 0.6), (16, 128, 32, 16, 32, 2, 4, 0.55), (16, 32, 128, 16, 32, 8, 3, 0.45),
)  # fmt: skip
"""Stages of 128 bytes of a row and more, and room for two blocks in shared memory; warps share the terms of a stage, as
there are too few others to hide how long one product waits for the one before it."""
QUANTIZED_TILES = (
    # as `FEW_TILES`; wide, as the few rows, of four times as many bytes, are read anew for each tile
    (32, 256, 64, 32, 32, 1, 4, 0.95), (32, 128, 64, 32, 32, 2, 4, 0.9), (32, 256, 32, 32, 32, 1, 4, 0.85),
    (16, 256, 64, 16, 32, 1, 4, 0.7), (16, 128, 64, 16, 32, 2, 4, 0.65),
)  # fmt: skip
FEW_RUN = 16
EVEN_DEPTH, EVEN_SHARING, EVEN_STAGES, EVEN_SHARE = 128, 8, 3, 0.95
"""Those of the tile that gives every multiprocessor as many blocks, one at a time."""
WIDEST_EVEN = 96
WGMMA_TILES = (
    # rows, columns; the share of the other tiles' peak that the tile can reach
    (128, 128, 1.5), (128, 64, 1.1), (64, 64, 1.0), (64, 128, 0.97), (128, 32, 0.75), (64, 32, 0.7),
)  # fmt: skip
WGMMA_STAGES = {MainLoop.WGMMA_SPLIT_IN_SHARED: 4, MainLoop.WGMMA_SPLIT_IN_REGISTERS: 5}
OTHER_WAY = 0.1
"""The share that the best tile loses where B takes the way that is the slower one for its layout."""
LESS = 0.005
"""By how much the longer run of the best tile comes behind the more accurate one."""
HALF_TILES = (
    # as `TILES`; reading shared memory takes as long as the products of a warp's 64 by 64 results
    (128, 256, 32, 64, 64, 4, 1.0), (256, 128, 32, 64, 64, 4, 1.0), (128, 128, 64, 64, 64, 3, 0.97),
    (128, 128, 32, 64, 64, 4, 0.95), (128, 128, 32, 64, 32, 4, 0.9), (128, 64, 64, 64, 32, 3, 0.75),
    (64, 128, 64, 32, 64, 3, 0.75), (128, 64, 32, 32, 32, 4, 0.7), (64, 128, 32, 32, 32, 4, 0.7),
    (64, 64, 64, 32, 32, 4, 0.55), (64, 64, 32, 32, 32, 4, 0.5), (256, 32, 32, 64, 32, 4, 0.5),
    (32, 256, 32, 32, 64, 4, 0.5), (128, 32, 32, 32, 32, 4, 0.4), (32, 128, 32, 32, 32, 4, 0.4),
    (64, 32, 64, 32, 16, 4, 0.35), (32, 64, 64, 16, 32, 4, 0.35), (128, 16, 32, 32, 16, 4, 0.3),
    (16, 128, 32, 16, 32, 4, 0.3), (32, 32, 64, 16, 16, 4, 0.25),
)  # fmt: skip
HALF_WGMMA_TILES = (
    # rows, columns, stages; the share, of which the other tiles' best has 1
    (128, 256, 4, 1.4), (128, 128, 3, 1.3), (256, 128, 4, 1.3), (128, 64, 4, 0.9), (64, 256, 4, 0.85),
    (64, 128, 4, 0.8), (64, 64, 4, 0.6),
)  # fmt: skip
TMA_TILES = (
    # as `HALF_WGMMA_TILES`; shares as measured at 4096 cubed on an H200 (740 TFLOP/s with the first)
    (128, 256, 4, 1.9), (256, 128, 4, 1.9), (128, 128, 6, 1.65), (64, 256, 4, 1.6), (64, 128, 4, 1.5),
    (128, 64, 4, 1.2), (64, 64, 6, 0.75),
)  # fmt: skip
HALF_FEW_TILES = (
    # as `FEW_TILES`
    (32, 64, 128, 32, 32, 4, 4, 0.8), (32, 64, 64, 16, 32, 2, 4, 0.7), (32, 128, 64, 32, 32, 2, 4, 0.75),
    (32, 32, 256, 32, 32, 8, 3, 0.6),
    (16, 64, 128, 16, 32, 4, 4, 0.6), (16, 128, 64, 16, 32, 2, 4, 0.55), (16, 32, 256, 16, 32, 8, 3, 0.45),
)  # fmt: skip
MOST_WAITING, WGMMA_WAITING = 16, 32
"""Elements that are copied by themselves, which a thread has registers for: of each operand; of both, for warp groups
that do not have to share a multiprocessor's registers with two more."""
MOST_WGMMA_THREADS, MOST_WGMMA_COLUMNS = 256, 128


def runs_for(k: int) -> tuple[int, ...]:
    """Runs of warp groups that keep sums of ``k`` terms as accurate as eager's."""
    return tuple(run for run in WGMMA_RUNS if run == WGMMA_RUNS[0] or 2 * run <= k)


def warp_run(results: int, depth: int) -> int:
    """The run of a warp with so many results, within a stage: moving sums on then costs few registers."""
    return min(depth, WARP_RUNS[results <= SMALL])


def candidates(
    c: GemmForm, sides: tuple[Side, Side], device: DeviceFacts
) -> Iterator[tuple[Tiles, float]]:
    if c.is_half:
        found = [
            *_tma_tiles(c, sides, device),
            *_half_wgmma_tiles(sides, device),
            *_half_tiles(sides),
        ]
        found += _few_tiles(c, HALF_FEW_TILES)
    else:
        found = [*_wgmma_tiles(c, sides[1], device), *_warp_tiles(), *_fitted_tiles(c)]
        found += _few_tiles(c, (*(QUANTIZED_TILES if c.is_quantized else ()), *FEW_TILES))
    for one, share in found:
        yield one, share
        blocks = blocks_of(c, one)
        if blocks < device.sm_count and c.k >= 4 * one.step:
            for split in _splits(blocks, ceildiv(c.k, one.step), device):
                yield replace(one, split=split), share
    if not c.is_half:
        yield from _even_tiles(c, device)


def _warp_tiles() -> Iterator[tuple[Tiles, float]]:
    for rows, columns, depth, warp_rows, warp_columns, stages, share in TILES:
        run = warp_run(warp_rows * warp_columns, depth)
        yield Tiles(rows, columns, depth, warp_rows, warp_columns, stages, run), share


def _fitted_tiles(c: GemmForm) -> Iterator[tuple[Tiles, float]]:
    """For columns that no other tile is as wide as."""
    columns = ceildiv(c.n, 8) * 8
    if not FEW // 2 < columns <= WIDEST_FITTED or columns == FEW:
        return
    for rows, depth, warp_rows, stages, share in FITTED:
        run = warp_run(warp_rows * columns, depth)
        yield Tiles(rows, columns, depth, warp_rows, columns, stages, run), share


def _half_tiles(sides: tuple[Side, Side]) -> Iterator[tuple[Tiles, float]]:
    for rows, columns, depth, warp_rows, warp_columns, stages, share in HALF_TILES:
        one = Tiles(rows, columns, depth, warp_rows, warp_columns, stages, products=1)
        if _may_wait(one, sides):
            yield one, share


def _tma_tiles(
    c: GemmForm, sides: tuple[Side, Side], device: DeviceFacts
) -> Iterator[tuple[Tiles, float]]:
    """``sides``: as they are, or copies of them."""
    apart = in_batches(c)
    if device.arch != "sm_90a" or apart.batches > MAX_BATCHES:
        return
    try:
        for side in sides if apart == c else sides_of(apart):
            tma_boxes_of(side, apart.batch, WGMMA_ROWS, HALF_WGMMA_DEPTH, c.dtype.itemsize)
    except Unsupported:
        return
    for rows, columns, stages, share in TMA_TILES:
        shape = (rows, columns, HALF_WGMMA_DEPTH, WGMMA_ROWS, columns, stages)
        tiles = Tiles(*shape, products=1, group=MainLoop.HALF_WGMMA_TMA)
        yield tiles, share * blocks_of(c, tiles) / blocks_of(apart, tiles)


def _half_wgmma_tiles(
    sides: tuple[Side, Side], device: DeviceFacts
) -> Iterator[tuple[Tiles, float]]:
    if device.arch != "sm_90a":
        return
    for rows, columns, stages, share in HALF_WGMMA_TILES:
        shape = (rows, columns, HALF_WGMMA_DEPTH, WGMMA_ROWS, columns, stages)
        one = Tiles(*shape, products=1, group=MainLoop.HALF_WGMMA)
        if _may_wait(one, sides):
            yield one, share


def _may_wait(t: Tiles, sides: tuple[Side, Side]) -> bool:
    """Whether a thread has registers for the elements that are copied by themselves."""
    lone = [n for n, side in zip((t.tile_m, t.tile_n), sides, strict=True) if side.vector == 1]
    if t.is_half_wgmma and lone:
        few = t.threads <= MOST_WGMMA_THREADS and t.tile_n <= MOST_WGMMA_COLUMNS
        return few and sum(lone) * t.depth <= WGMMA_WAITING * t.threads
    return all(n * t.depth <= MOST_WAITING * t.threads for n in lone)


def _few_tiles(c: GemmForm, tiles: Sequence[FewTile]) -> Iterator[tuple[Tiles, float]]:
    """Where one operand is short, and the other lies in memory as it is read."""
    short = min(c.m, c.n)
    if short > FEW or c.left.mask is not None or c.right.mask is not None:
        return
    run, products = (0, 1) if c.is_half else (FEW_RUN, 6)
    for few, many, depth, warp_few, warp_many, sharing, stages, share in tiles:
        if c.k < 2 * depth or (few < FEW) != (short <= FEW // 2):
            continue
        rows, columns, warp_rows, warp_columns = few, many, warp_few, warp_many
        if c.n == short:
            rows, columns, warp_rows, warp_columns = many, few, warp_many, warp_few
        shape = (rows, columns, depth, warp_rows, warp_columns, stages)
        yield Tiles(*shape, run, products=products, warps_k=sharing), share


def _even_tiles(c: GemmForm, device: DeviceFacts) -> Iterator[tuple[Tiles, float]]:
    """As `_few_tiles`, as wide as shares the other operand evenly: none waits for another's second block."""
    few, many = sorted((c.m, c.n))
    if few > FEW or c.k < 2 * EVEN_DEPTH or c.left.mask is not None or c.right.mask is not None:
        return
    waves = ceildiv(many, device.sm_count * WIDEST_EVEN)
    width = ceildiv(many, device.sm_count * waves * 16) * 16
    if c.m == few:  # columns come by eight
        width = ceildiv(many, device.sm_count * waves * 8) * 8
    high = FEW // 2 if few <= FEW // 2 else FEW
    rows, columns = (high, width) if c.m == few else (width, high)
    if width >= FEW and c.batches == 1:
        yield (
            Tiles(
                rows, columns, EVEN_DEPTH, rows, columns, EVEN_STAGES, FEW_RUN, warps_k=EVEN_SHARING
            ),
            EVEN_SHARE if high == FEW else EVEN_SHARE * 0.75,
        )


def _wgmma_tiles(c: GemmForm, right: Side, device: DeviceFacts) -> Iterator[tuple[Tiles, float]]:
    if device.arch != "sm_90a":
        return
    runs = runs_for(c.k)
    for number, (rows, columns, group, share) in enumerate(_ways(right)):
        stages = WGMMA_STAGES[group]
        tiles = Tiles(rows, columns, WGMMA_DEPTH, WGMMA_ROWS, columns, stages, runs[0], group=group)
        yield tiles, share
        if number == 0 and len(runs) > 1:  # moving sums on costs next to nothing, as others prepare
            yield replace(tiles, run=runs[-1]), share - LESS


def _ways(right: Side) -> Iterator[tuple[int, int, MainLoop, float]]:
    """Rows, columns, main loop and share: the best tile both ways, the others by the one that was measured."""
    ways = [MainLoop.WGMMA_SPLIT_IN_SHARED, MainLoop.WGMMA_SPLIT_IN_REGISTERS]
    # only wide copies along the rows are cheaper when they go to shared memory first
    if right.along_k or right.vector == 1:
        ways.reverse()
    (rows, columns, share), *others = WGMMA_TILES
    yield rows, columns, ways[0], share
    yield rows, columns, ways[1], share - OTHER_WAY
    for rows, columns, share in others:
        yield rows, columns, MainLoop.WGMMA_SPLIT_IN_REGISTERS, share


def _splits(blocks: int, turns: int, device: DeviceFacts) -> list[int]:
    """Shares of a tile that fill the device once or twice, none of them empty, each long enough to be worth a block."""
    wanted = {ceildiv(waves * device.sm_count, blocks) for waves in (1, 2)}
    wanted |= {
        waves * device.sm_count // blocks for waves in (1, 2)
    }  # no block has to wait for another
    wanted |= {2, 4} if blocks * 4 <= device.sm_count else {2}
    possible = (s for s in wanted if 2 <= s <= min(MAX_SPLIT, turns // 2))
    return sorted({ceildiv(turns, ceildiv(turns, s)) for s in possible})
