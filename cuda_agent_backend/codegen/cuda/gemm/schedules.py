"""Which tiles of a sum of products are worth trying on a device, best guess first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.gemm.aligned_operands import (
    aligned_sides,
    aligning_pays,
    sides_of,
)
from cuda_agent_backend.codegen.cuda.gemm.banded import banded_operands_of, leaving_out_pays
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.match import GluMatch
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.writer import SKETCH as GATING
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.writer import glu_writer
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.match import PoolMatch
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.writer import SKETCH as POOLING
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.writer import pool_epilogue_writer
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.match import ReduceMatch
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.writer import SKETCH as REDUCING
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.writer import (
    reduce_epilogue_writer,
    shape_of,
)
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.match import LONGEST, RowMatch
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.writer import SKETCH as WHOLE_ROWS
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.writer import row_epilogue_writer
from cuda_agent_backend.codegen.cuda.gemm.operands import Side
from cuda_agent_backend.codegen.cuda.gemm.tail_split import writer_of
from cuda_agent_backend.codegen.cuda.gemm.tail_wave import best_tail_wave
from cuda_agent_backend.codegen.cuda.gemm.tiles import (
    HALF_WGMMA_DEPTH,
    MAX_SPLIT,
    WGMMA_COLUMNS,
    WGMMA_DEPTH,
    WGMMA_ROWS,
    MainLoop,
    Tiles,
)
from cuda_agent_backend.codegen.cuda.gemm.tma_boxes import in_batches, tma_boxes_of
from cuda_agent_backend.codegen.cuda.gemm.writer import MAX_BATCHES, SKETCH, GemmWriter
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter

Few = tuple[int, int, int, int, int, int, int, float]
WGMMA_RUNS = (32, 64)
"""Terms after which sums of warp groups move on (see `gemm.cuh`). After longer runs sums that cancel are less
accurate than eager's (test_contraction_accuracy)."""
WARP_RUNS = (16, 32)
"""Those of warps. The operands of a run lie split in registers, so the longer one is for small tiles."""
SMALL = 32 * 16
"""Results of a warp up to which the longer one leaves enough registers."""
TF32_RUNS = (128, 64, 32)
"""The same where one TF32 product is right."""
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
CODED_TILES = (
    # as `FEW_TILES`; wide, as the few rows, of four times as many bytes, are read anew for each tile
    (32, 256, 64, 32, 32, 1, 4, 0.95), (32, 128, 64, 32, 32, 2, 4, 0.9), (32, 256, 32, 32, 32, 1, 4, 0.85),
    (16, 256, 64, 16, 32, 1, 4, 0.7), (16, 128, 64, 16, 32, 2, 4, 0.65),
)  # fmt: skip
FEW_RUN = 16
EVEN_DEPTH, EVEN_SHARING, EVEN_STAGES, EVEN_SHARE = 128, 8, 3, 0.95
"""Those of the tile that gives every multiprocessor as many blocks, one at a time."""
WIDEST_EVEN = 96
FEW_RESIDENT = 2
"""Blocks of such tiles that a multiprocessor runs without either getting slower."""
WGMMA_TILES = (
    # rows, columns; the share of the other tiles' peak that the tile can reach
    (128, 128, 1.5), (128, 64, 1.1), (64, 64, 1.0), (64, 128, 0.97), (128, 32, 0.75), (64, 32, 0.7),
)  # fmt: skip
WGMMA_STAGES = {MainLoop.WGMMA_SPLIT_IN_SHARED: 4, MainLoop.WGMMA_SPLIT_IN_REGISTERS: 5}
OTHER_WAY = 0.1
"""The share that the best tile loses where B takes the way that is the slower one for its layout."""
LESS = 0.005
"""By how much the longer run of the best tile comes behind the more accurate one."""
WASTE = 1.12
"""What may be added in zeros, as the terms are no multiple of a run, before a shorter run is taken."""
MOST_PADDING = 1.25
"""Of a group's results that are reduced to one, those of its tiles."""
ENOUGH_THREADS = 256
"""On a multiprocessor, to hide what one of them waits for."""
JOIN_COST, HALF_JOIN_COST = 0.02, 0.1
"""What a second kernel costs, as a share of the time of a wave of blocks for each share of a tile; of 16-bit operands
a wave takes less time."""
LAUNCH, HALF_LAUNCH = 0.8e6, 4.4e6
"""What launching it costs, 3 us, in products that a multiprocessor adds up meanwhile with tiles of a share of 1."""
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
MOST_WAITING, WGMMA_WAITING = 16, 32
"""Elements that are copied by themselves, which a thread has registers for: of each operand; of both, for warp groups
that do not have to share a multiprocessor's registers with two more."""
MOST_WGMMA_THREADS, MOST_WGMMA_COLUMNS = 256, 128


def gemm_schedules(
    kernel: Kernel, gemm: GemmForm, region: LoweredRegion, device: DeviceFacts, most: int
) -> list[dict[str, Parameter]]:
    """Up to ``most`` schedules that fit, none where the device does not take so many batches."""

    def writer(tiles: Tiles) -> GemmWriter:
        return writer_of(kernel, gemm, region, tiles, "k", device)

    return _schedules(SKETCH, gemm, region, device, most, writer)


def reduce_schedules(
    reducing: ReduceMatch, device: DeviceFacts, most: int
) -> list[dict[str, Parameter]]:
    """The same for a product that is reduced in its tiles."""

    def writer(tiles: Tiles) -> GemmWriter:
        if not _fills(reducing, tiles):
            raise Unsupported("tiles that are padding for a good part")
        return reduce_epilogue_writer(reducing, tiles, device)

    return _schedules(REDUCING, reducing.gemm, reducing.region, device, most, writer)


def pool_schedules(
    pooling: PoolMatch, device: DeviceFacts, most: int
) -> list[dict[str, Parameter]]:
    """The same for a product that is pooled in its tiles, for it and its pooling together."""

    def writer(tiles: Tiles) -> GemmWriter:
        return pool_epilogue_writer(pooling, tiles, device)

    return _schedules(POOLING, pooling.gemm, pooling.region, device, most, writer)


def glu_schedules(gating: GluMatch, device: DeviceFacts, most: int) -> list[dict[str, Parameter]]:
    """The same for a product whose parts are combined in its tiles."""

    def writer(tiles: Tiles) -> GemmWriter:
        return glu_writer(gating, tiles, device)

    return _schedules(GATING, gating.gemm, gating.region, device, most, writer)


def row_schedules(whole: RowMatch, device: DeviceFacts, most: int) -> list[dict[str, Parameter]]:
    """The same for a product whose rows are done in its tiles, for it and what is done together."""

    def writer(tiles: Tiles) -> GemmWriter:
        return row_epilogue_writer(whole, tiles, device)

    c = whole.gemm
    wide = tuple(_wide_tiles(c, device))
    return _schedules(WHOLE_ROWS, c, whole.region, device, most, writer, wide)


def _schedules(
    sketch: str,
    c: GemmForm,
    region: LoweredRegion,
    device: DeviceFacts,
    most: int,
    writer_of: Callable[[Tiles], GemmWriter],
    more: Sequence[tuple[Tiles, float]] = (),
) -> list[dict[str, Parameter]]:
    """``more``: tiles that are not for every product, with their shares."""
    if c.batches > MAX_BATCHES:
        return []
    best = _with_tf32(_ranked(c, region, device, writer_of, more), c, device, most, writer_of)
    return [_parameters(tiles, sketch) for tiles in best]


def _ranked(
    c: GemmForm,
    region: LoweredRegion,
    device: DeviceFacts,
    writer_of: Callable[[Tiles], GemmWriter],
    more: Sequence[tuple[Tiles, float]],
) -> list[Tiles]:
    """All that fit, best guess first."""
    best: list[Tiles] = []
    for way in _all_ways(c, region, device, more):
        best = _by_turns(_best(c, device, writer_of, way), best)
    return best


def _fills(reducing: ReduceMatch, t: Tiles) -> bool:
    """Whether tiles of a group are not padding for a good part, which those of all groups together were not."""
    one = reducing.directions[0]
    width = one.width(shape_of(t))
    padded = ceildiv(one.extent, width) * width
    return not reducing.grouped or padded <= MOST_PADDING * one.extent


def _with_tf32(
    best: list[Tiles],
    c: GemmForm,
    device: DeviceFacts,
    most: int,
    writer_of: Callable[[Tiles], GemmWriter],
) -> list[Tiles]:
    """Up to ``most``. Where TF32 is allowed two in it come before each exact one: eager mostly uses it, but only the
    judge knows."""
    if not device.tf32 or c.is_half:
        return best[:most]
    fast = iter(_in_tf32(best[:most], c.k))
    mixed = dict.fromkeys(t for exact in best[:most] for t in (*itertools.islice(fast, 2), exact))
    return [t for t in mixed if not t.last_wave or _fits(t, writer_of)][:most]


def _fits(tiles: Tiles, writer_of: Callable[[Tiles], GemmWriter]) -> bool:
    """Whether such a product can be written."""
    try:
        writer_of(tiles)
    except Unsupported:
        return False
    return True


def _all_ways(
    c: GemmForm,
    region: LoweredRegion,
    device: DeviceFacts,
    more: Sequence[tuple[Tiles, float]],
) -> list[list[tuple[Tiles, float]]]:
    """Tiles as they are, with copies of operands, with terms left out, as far as each pays: the likeliest last."""
    sides, copies = sides_of(c), aligned_sides(c, region, "k")
    ways = [[*_candidates(c, sides, device), *more]]
    if aligning_pays(c, copies):
        by_name = {one.side.name: one.side for one in copies}
        sides = by_name.get("a", sides[0]), by_name.get("b", sides[1])
        found = (*_candidates(c, sides, device), *more)
        ways.append([(replace(tiles, aligned=1), share) for tiles, share in found])
    bands = banded_operands_of(c, region)
    if bands is not None and leaving_out_pays(c, bands):
        ways.append([(replace(tiles, banded=1), share) for tiles, share in ways[-1]])
    return ways


def _best(
    gemm: GemmForm,
    device: DeviceFacts,
    writer_of: Callable[[Tiles], GemmWriter],
    candidates: Iterable[tuple[Tiles, float]],
) -> list[Tiles]:
    """Those that fit, by the estimate."""
    scored: list[tuple[float, int, Tiles]] = []
    for number, (tiles, share) in enumerate(candidates):
        try:
            writer = writer_of(tiles)
            tiles.check(writer.shared_bytes, device, gemm.is_half)
        except Unsupported:
            continue
        seconds = writer.share * _seconds(gemm, tiles, share, device)
        scored.append((seconds, number, tiles))
        shared = _with_last_wave(writer, seconds, device)
        if shared is not None and shared[0] < seconds and _fits(shared[1], writer_of):
            scored.append((shared[0], number, shared[1]))
    scored.sort(key=lambda item: item[:2])
    return [tiles for *_, tiles in scored]


def _with_last_wave(
    plain: GemmWriter, seconds: float, device: DeviceFacts
) -> tuple[float, Tiles] | None:
    """The schedule of ``plain``, which takes ``seconds``, with its last wave shared, and what that takes.

    None where there is no such wave, and for tiles of which blocks wait for memory.
    """
    c, t, (high, wide) = plain.gemm, plain.tiles, plain.grid
    if t.split > 1 or t.warps_k > 1:
        return None
    tiles = c.batches * high * wide
    join, launch = (HALF_JOIN_COST, HALF_LAUNCH) if c.is_half else (JOIN_COST, LAUNCH)
    try:
        wave = best_tail_wave(t, plain.shared_bytes, tiles, c.k, device, join)
    except Unsupported:
        return None
    waves = wave.waves(device, join) / _waves(tiles / device.sm_count)
    return seconds * waves + launch, replace(t, last_wave=wave.parts)


def _by_turns(likely: list[Tiles], plain: list[Tiles]) -> list[Tiles]:
    """As whether copying, or leaving terms out, pays is an estimate: one with it, one without, another with."""
    turns = itertools.zip_longest(likely[::2], plain, likely[1::2])
    return [one for turn in turns for one in turn if one is not None]


def _in_tf32(tiles: list[Tiles], k: int) -> list[Tiles]:
    """Eager's sums do not move on then, so ours need not."""
    whole = [run for run in TF32_RUNS if ceildiv(k, run) * run <= WASTE * k]
    run = whole[0] if whole else TF32_RUNS[-1]
    return [replace(t, products=1, run=run if t.is_wgmma else 0) for t in tiles]


def runs_for(k: int) -> tuple[int, ...]:
    """Runs of warp groups that keep sums of ``k`` terms as accurate as eager's."""
    return tuple(run for run in WGMMA_RUNS if run == WGMMA_RUNS[0] or 2 * run <= k)


def warp_run(results: int, depth: int) -> int:
    """The run of a warp with so many results, within a stage: moving sums on then costs few registers."""
    return min(depth, WARP_RUNS[results <= SMALL])


def _candidates(
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
        found += _few_tiles(c, (*(CODED_TILES if c.is_quantized else ()), *FEW_TILES))
    for one, share in found:
        yield one, share
        blocks = _blocks(c, one)
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


def _wide_tiles(c: GemmForm, device: DeviceFacts) -> Iterator[tuple[Tiles, float]]:
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
        yield tiles, share * _blocks(c, tiles) / _blocks(apart, tiles)


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


def _few_tiles(c: GemmForm, tiles: Sequence[Few]) -> Iterator[tuple[Tiles, float]]:
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


def _blocks(c: GemmForm, t: Tiles) -> int:
    return c.batches * ceildiv(c.m, t.tile_m) * ceildiv(c.n, t.tile_n)


def _seconds(c: GemmForm, t: Tiles, share: float, device: DeviceFacts) -> float:
    """Relative: the work of the busiest multiprocessor, whose blocks share its rate."""
    blocks = _blocks(c, t) * t.split / device.sm_count
    terms = ceildiv(ceildiv(c.k, t.split), t.step) * t.step
    threads = min(t.resident, max(1.0, blocks)) * t.threads
    busy = share * min(1.0, threads / ENOUGH_THREADS) ** 0.5
    waves = _waves(blocks)
    if t.warps_k > 1:
        waves = max(1.0, math.ceil(blocks / FEW_RESIDENT))
    join = (HALF_JOIN_COST if c.is_half else JOIN_COST) * t.split * (t.split > 1)
    return float(waves * t.tile_m * t.tile_n * terms / busy * (1 + join))


def _waves(blocks: float) -> float:
    """Of so many blocks for each multiprocessor."""
    # one that finishes early makes room for the next, so that less than a whole wave may be lost
    return max(1.0, (blocks + math.ceil(blocks)) / 2)


def _parameters(t: Tiles, sketch: str) -> dict[str, Parameter]:
    found: dict[str, Parameter] = {
        "sketch": sketch, "tile_m": t.tile_m, "tile_n": t.tile_n, "depth": t.depth, "warp_m": t.warp_m,
        "warp_n": t.warp_n, "stages": t.stages, "run": t.run, "split": t.split,
        "products": t.products, "group": int(t.group), "warps_k": t.warps_k,
    }  # fmt: skip
    rare = ("aligned", "banded", "last_wave")
    return found | {name: value for name in rare if (value := getattr(t, name))}
