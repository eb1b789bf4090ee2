"""How well a layout of a row kernel should use a GPU: an estimate that orders schedules, not a model.

The measure is memory: bytes that a multiprocessor moves while its blocks take turns, against the time in which they
move none (starting, meeting, waiting). The constants were fitted to runs on one H200.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sympy

from cuda_agent_backend.codegen.analysis.gemm import contraction_of
from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.common.access import POSITION, Flat
from cuda_agent_backend.codegen.cuda.common.parts import needs_wide
from cuda_agent_backend.codegen.cuda.rows.combine import near_threads
from cuda_agent_backend.codegen.cuda.rows.frame import row_groups
from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.cuda.rows.program import Key, RowProgram, is_full, row_points
from cuda_agent_backend.codegen.ir.device import WARP, DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.nest import Kernel, RowStage, coefficient, merge_outer
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.ssa import GATHER, Instruction, Unsupported
from cuda_agent_backend.codegen.ir.value_types import stage_dtype

REGISTERS, MOST_WARPS, MOST_BLOCKS, SHARED_BYTES = 65536, 64, 32, 227 << 10
"""Of one multiprocessor."""
BASE_REGISTERS = 30
"""Registers of a thread beside the elements it keeps."""
MOST_REGISTERS = 128
BYTES_PER_MICROSECOND = 32600
"""Memory traffic of one multiprocessor when all are busy."""
LATENCY_BYTES = 20 << 10
"""Bytes of loads under way at which half the bandwidth would be reached."""
SECOND_LAUNCH = 3.0
"""Microseconds."""
GRID_MEETING, MOST_HIDDEN = 2.0, 4
"""Microseconds until blocks have met by way of memory, and how often less than that is lost at best. Not measured."""
NARROW, WIDE_BYTES = 0.02, 16
"""What loads of half the width cost: more instructions for as many bytes."""
LINE_BYTES, PART_OF_A_LINE = 128, 0.95
"""Of the caches, and what strips of columns that are narrower reach; the latter is an assumption."""
L2_SHARE = 0.35
"""Of the L2 cache that holds what was read last, beside what is written."""
IN_PIECES = 0.8
"""What vectors reach that are stored element by element, as their places are not aligned; an assumption."""
TERMS_PER_BYTE = 12
"""Products that are summed while a byte is moved."""
LEAST_TRAFFIC = 4 << 20
"""Bytes that take as long as a launch."""
LONE_WARPS = 24
"""Warps of a multiprocessor below which arithmetic waits for itself."""


@dataclass(frozen=True)
class RowFacts:
    """What the estimate needs to know of a kernel's rows.

    ``item``: bytes of an element; ``arrays``: arrays over the row that are kept at the same time; ``passes``: loops
    over the row; ``loose``: loads over the row that only one pass does; ``line``: what a vector must divide;
    ``inner``/``outer``: which lanes find neighbours in memory, for most of what is read; ``again``: loads that several
    passes do where no array over the row is kept; ``products``: running products, which are kept in double;
    ``slots``: bytes of the accumulators of a row; ``store_line``: what a vector must divide to be stored whole;
    ``streams``: elements that one pass reads at a position, the most of any.
    """

    points: int
    rows: int
    columns: int
    item: int
    arrays: int
    passes: int
    loose: int
    scans: bool
    writes: bool
    line: int
    inner: bool
    outer: bool
    wide: bool
    again: int = 0
    slots: int = 0
    store_line: int = 0
    streams: int = 1
    products: bool = False


def item_bytes(kernel: Kernel, region: LoweredRegion) -> int:
    """Bytes of the widest element in the largest buffers: they set the vector width."""
    names = {i.buffer for s in kernel.stages for i in s.body.accesses() if i.buffer is not None}
    names |= {s.buffer for st in kernel.stages for s in st.stores}
    buffers = [region.buffers[n] for n in names]
    most = max((b.extent for b in buffers), default=1)
    return max((b.dtype.itemsize for b in buffers if b.extent * 2 > most), default=4)


def traffic_of(kernel: Kernel, region: LoweredRegion) -> float:
    """What a kernel does, in bytes of memory traffic, about: arithmetic of products at its rate, and never nothing."""
    reached: dict[str, int] = {}
    for stage in kernel.stages:
        for i in stage.body.accesses():
            if i.buffer is not None:
                reached[i.buffer] = max(reached.get(i.buffer, 0), _reached(i, kernel, stage))
    buffers = region.buffers
    read = sum(min(n, buffers[b].extent) * buffers[b].dtype.itemsize for b, n in reached.items())
    stored = {s.buffer for st in kernel.stages for s in st.stores}
    written = sum(buffers[b].extent * buffers[b].dtype.itemsize for b in stored)
    product = contraction_of(kernel)
    terms = 0 if product is None else product.batches * product.m * product.n * product.k
    return max(read + written, terms / TERMS_PER_BYTE, LEAST_TRAFFIC)


def row_facts(kernel: Kernel, region: LoweredRegion) -> RowFacts:
    """Raises Unsupported where the kernel has no row form."""
    kernel = merge_outer(kernel)
    points = row_points(kernel)
    scans = any(s.kind == "scan" for s in kernel.stages)
    program = RowProgram.of(kernel, Layout(points, kernel.rows, ordered=scans), region)
    full = [p for p in program.passes if is_full(p, points)]
    inner = outer = loose = 0
    for stage in (s for p in full for s in p.stages):
        for i in stage.body.accesses():
            if i.index is None:
                continue
            weight = _reached(i, kernel, stage)
            loose += 1
            inner += weight * (abs(coefficient(i.index, stage.inner[-1][0]) or 0) == 1)
            outer += weight * (
                bool(kernel.outer) and coefficient(i.index, kernel.outer[-1][0]) == 1
            )
    line = math.gcd(*(p.inner[-1][1] for p in full)) if full else 1
    return RowFacts(
        points=points,
        rows=kernel.rows,
        columns=kernel.outer[-1][1] if kernel.outer else 1,
        item=item_bytes(kernel, region),
        arrays=max(len(program.kept), len(program.own)),
        passes=len(full),
        loose=loose - sum(_uses(program, key) for key in program.kept),
        scans=scans,
        writes=any(s.stores for p in full for s in p.stages if s.kind != "reduce"),
        line=line,
        inner=inner >= outer,
        outer=outer > inner,
        wide=needs_wide(region, kernel),
        again=_loads_again(kernel, region),
        slots=sum(_slot_bytes(s) for s in kernel.stages if s.kind == "reduce"),
        store_line=math.gcd(line, *_store_places(full)) if scans else line,
        streams=_streams(program, points),
        products=any(s.kind == "scan" and s.combine == "prod" for s in kernel.stages),
    )


def _streams(program: RowProgram, points: int) -> int:
    """Loads of different elements of a row that a full pass does at one position, the most of any."""

    def of_pass(p: Pass, flat: Flat) -> int:
        loads = [i for s in p.stages for i in s.body.loads()]
        places = {(i.buffer, flat.of(i.index)) for i in loads if i.index is not None}
        return sum(index.has(POSITION) for _, index in places)

    pairs = zip(program.passes, program.flats, strict=True)
    return max((of_pass(p, flat) for p, flat in pairs if is_full(p, points)), default=1)


def _store_places(full: Sequence[Pass]) -> Iterator[int]:
    """What must divide by a vector's width for the vectors that passes store along the row to be aligned."""
    for stage in (s for p in full for s in p.stages):
        lane = stage.inner[-1][0]
        for s in stage.stores:
            step = coefficient(s.index, lane)
            if step in (1, -1):
                rest = sympy.expand(s.index - step * lane + int(step == -1))
                yield from (int(c) for c in rest.as_coefficients_dict().values())


def _loads_again(kernel: Kernel, region: LoweredRegion) -> int:
    """Loads that several passes do, where arrays over the row are computed again."""
    if any(s.kind == "scan" for s in kernel.stages):
        return 0
    layout = Layout(row_points(kernel), kernel.rows, team=1, keep="shared", held=1)
    try:
        return len(RowProgram.of(kernel, layout, region).kept)
    except Unsupported:
        return 0


def _slot_bytes(stage: RowStage) -> int:
    """Bytes of an accumulator, about."""
    return max(8, 3 * stage_dtype(stage).itemsize)


def _reached(i: Instruction, kernel: Kernel, stage: RowStage) -> int:
    """Elements that all points of a stage read by ``i``: what is read for every row or every column again is near."""
    loops = (*kernel.outer, *stage.inner)
    if i.op == GATHER or i.index is None:
        return math.prod(n for _, n in loops)
    return math.prod(n for symbol, n in loops if symbol in i.index.free_symbols)


def _uses(program: RowProgram, key: Key) -> int:
    """How often the bodies of full passes load ``key``."""
    pairs = zip(program.passes, program.flats, strict=True)
    loads = ((i, flat) for p, flat in pairs for s in p.stages for i in s.body.loads())
    return sum(
        i.buffer == key[0] and i.index is not None and flat.of(i.index) == key[1]
        for i, flat in loads
    )


def registers_of(layout: Layout, facts: RowFacts) -> int:
    """Registers of a thread, about."""
    words = max(1, facts.item // 4)
    kept = layout.chunks * layout.vector * max(1, facts.arrays)
    kept -= 8 * facts.scans  # whose bodies are short
    held = kept if layout.keep == "registers" else layout.unroll * layout.vector
    return max(32, BASE_REGISTERS + (held + 2 * layout.vector) * words)


def resident_blocks(layout: Layout, facts: RowFacts) -> int:
    """Blocks that fit one multiprocessor."""
    registers = ceildiv(registers_of(layout, facts), 8) * 8
    by_registers = REGISTERS // (layout.threads * registers)
    by_warps = MOST_WARPS * WARP // layout.threads
    arrays = facts.again if layout.partial else facts.arrays * layout.stages
    shared = layout.threads * layout.kept_chunks * layout.vector * facts.item * arrays
    by_shared = SHARED_BYTES // (shared + 2048) if layout.keep == "shared" else MOST_BLOCKS
    return min(by_registers, by_warps, by_shared, MOST_BLOCKS)


def estimate(layout: Layout, facts: RowFacts, device: DeviceFacts) -> float:
    """Share of the memory bandwidth that the layout should reach, about; 0 where it makes no sense."""
    if layout.is_split and layout.segments > ceildiv(facts.points, layout.tile):
        return 0.0
    blocks = resident_blocks(layout, facts)
    if layout.in_grid:
        return _in_a_grid(layout, facts, device)
    if blocks < 1 or (layout.keep == "registers" and registers_of(layout, facts) > MOST_REGISTERS):
        return 0.0
    lanes = 1 if layout.inner else layout.vector
    teams = row_groups(layout, facts.columns)
    groups = teams * layout.segments
    resident = min(blocks, max(1.0, groups / device.sm_count))
    moved = layout.segment * layout.across * lanes * facts.item * (1 + facts.writes)
    under_way = resident * layout.threads * facts.item * _loads_under_way(layout, facts)
    warps = resident * layout.threads / WARP
    score = resident * moved / (resident * moved + _idle(layout, facts) * BYTES_PER_MICROSECOND)
    score *= under_way / (under_way + LATENCY_BYTES)
    score *= 1 / (1 + 0.15 * max(0.0, LONE_WARPS / warps - 1))
    score *= min(1.0, groups / device.sm_count)
    score /= 1 + NARROW * (WIDE_BYTES / (layout.vector * facts.item) - 1)
    if (
        not layout.inner
        and layout.across * lanes * facts.item < LINE_BYTES <= facts.columns * facts.item
    ):
        score *= PART_OF_A_LINE
    score /= layout.chunks * layout.tile * layout.segments / facts.points
    score *= layout.rows / (teams * layout.across * lanes)  # some have no row of their own
    waves = groups / (device.sm_count * blocks)
    if layout.stages == 1 and waves > 1:
        score *= 0.6 + 0.4 * waves / math.ceil(waves)
    if layout.is_split:
        alone = facts.points * facts.rows * facts.item / (BYTES_PER_MICROSECOND * device.sm_count)
        score *= alone / (alone + SECOND_LAUNCH) / (1 + 0.5 * facts.scans)
    if layout.inner and facts.store_line % layout.vector:
        score *= IN_PIECES
    if facts.scans and layout.keep == "none":
        score *= 0.8  # its tiles wait for each other
    if facts.arrays and (layout.keep == "none" or layout.is_split):
        score /= 1 + 0.4 * (facts.passes - 1)
    if layout.partial:
        score /= 1 + 0.5 * (facts.passes - 1) * _read_again(layout, facts, device)
    return score


def _in_a_grid(layout: Layout, facts: RowFacts, device: DeviceFacts) -> float:
    """The same of groups of blocks that stay: while one meets, others move bytes, or it reads its next row."""
    room = layout.blocks * device.sm_count
    groups = min(layout.rows, room // layout.segments)
    turns = ceildiv(layout.rows, groups)
    moved = layout.points * layout.rows * facts.item * (1 + facts.writes)
    alone = moved / (BYTES_PER_MICROSECOND * device.sm_count)
    stopped = turns * max(1, facts.passes - 1) * GRID_MEETING
    score = alone / (alone + stopped / min(MOST_HIDDEN, groups + 2 * (layout.stages - 1)))
    score *= (
        layout.rows / turns * layout.segments / room
    )  # the others have nothing to do, or not to the end
    under_way = layout.blocks * layout.threads * facts.item * _loads_under_way(layout, facts)
    score *= under_way / (under_way + LATENCY_BYTES)
    warps = layout.blocks * layout.threads / WARP
    score *= 1 / (1 + 0.15 * max(0.0, LONE_WARPS / warps - 1))
    score /= 1 + NARROW * (WIDE_BYTES / (layout.vector * facts.item) - 1)
    if layout.partial:
        score /= 1 + 0.5 * (facts.passes - 1) * _read_again(layout, facts, device)
    return score


def held_chunks(layout: Layout, facts: RowFacts) -> int:
    """Chunks of a thread that fit shared memory, beside what blocks need to meet."""
    if layout.inner:
        meet = layout.warps * layout.segments
    else:
        meet = layout.team // near_threads(layout) + layout.segments
        meet *= layout.across * layout.vector
    chunk = layout.threads * layout.vector * facts.item * facts.again
    return max(0, SHARED_BYTES - meet * facts.slots - 512) // chunk if chunk else 0


def _read_again(layout: Layout, facts: RowFacts, device: DeviceFacts) -> float:
    """Share of a row's bytes that are read again, those from the L2 cache counted for a quarter."""
    rest = 1 - layout.held / layout.chunks
    lanes = 1 if layout.inner else layout.vector
    row = layout.points * layout.across * lanes * facts.item * facts.again
    alive = device.sm_count // layout.segments * row * rest
    near = min(1.0, L2_SHARE * device.l2_bytes / max(1.0, alive))
    return rest * (1 - 0.75 * near)


def _loads_under_way(layout: Layout, facts: RowFacts) -> int:
    """Elements that a thread has asked for and not yet got."""
    own = layout.chunks * layout.vector
    if layout.keep == "none":
        return min(own, layout.unroll * layout.vector)
    return own * max(1, facts.arrays)


def _idle(layout: Layout, facts: RowFacts) -> float:
    """Microseconds of a block's life in which it moves nothing."""
    meetings = max(1, facts.passes - 1)
    trips = ceildiv(layout.chunks, layout.unroll) if layout.keep == "shared" and facts.loose else 0
    if facts.scans and layout.keep == "none" and layout.inner:
        meetings = ceildiv(layout.chunks, layout.unroll)
    return 1.5 * max(0, trips - 1) + _meeting_time(layout, meetings)


def _meeting_time(layout: Layout, meetings: int) -> float:
    if layout.clustered:
        return 0.6 + (0.2 + 0.1 * layout.segments) * meetings
    if layout.is_split:
        return 0.5 + 0.02 * layout.segments
    if layout.stages > 1:
        return 0.4 + 0.15 * meetings
    return 0.2 + 0.1 * meetings * (layout.team > WARP or not layout.inner)
