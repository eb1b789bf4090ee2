"""How well a layout of a row kernel should use a GPU: an estimate that orders schedules, not a model.

The measure is memory: bytes that a multiprocessor moves while its blocks take turns, against the time in which they
move none (starting, meeting, waiting). The constants were fitted to runs on one H200.
"""

from __future__ import annotations

import math

from cuda_agent_backend.codegen.cuda.rows.combine import near_threads
from cuda_agent_backend.codegen.cuda.rows.facts import RowFacts
from cuda_agent_backend.codegen.cuda.rows.frame import row_groups
from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.ir.device import WARP, DeviceFacts, ceildiv

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
LONE_WARPS = 24
"""Warps of a multiprocessor below which arithmetic waits for itself."""


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
    if layout.in_grid:
        return _in_a_grid(layout, facts, device)
    blocks = resident_blocks(layout, facts)
    if blocks < 1 or (layout.keep == "registers" and registers_of(layout, facts) > MOST_REGISTERS):
        return 0.0
    score = _of_blocks(layout, facts, device, blocks)
    score = _less_what_is_empty(score, layout, facts, device, blocks)
    return _less_what_passes_cost(score, layout, facts, device)


def _groups(layout: Layout, facts: RowFacts) -> int:
    """Blocks of the launch."""
    return row_groups(layout, facts.columns) * layout.segments


def _of_blocks(layout: Layout, facts: RowFacts, device: DeviceFacts, blocks: int) -> float:
    """The share that blocks reach while they take turns, ``blocks`` of them on a multiprocessor."""
    groups = _groups(layout, facts)
    resident = min(blocks, max(1.0, groups / device.sm_count))
    moved = layout.segment * layout.across * layout.scalar_lanes * facts.item * (1 + facts.writes)
    under_way = resident * layout.threads * facts.item * _loads_under_way(layout, facts)
    warps = resident * layout.threads / WARP
    score = resident * moved / (resident * moved + _idle(layout, facts) * BYTES_PER_MICROSECOND)
    score *= under_way / (under_way + LATENCY_BYTES)
    score *= _of_lone_warps(warps)
    score *= min(1.0, groups / device.sm_count)
    return score / _cost_of_narrow_loads(layout, facts)


def _of_lone_warps(warps: float) -> float:
    """What few warps of a multiprocessor reach, whose arithmetic waits for itself."""
    return 1 / (1 + 0.15 * max(0.0, LONE_WARPS / warps - 1))


def _cost_of_narrow_loads(layout: Layout, facts: RowFacts) -> float:
    return 1 + NARROW * (WIDE_BYTES / (layout.vector * facts.item) - 1)


def _less_what_is_empty(
    score: float, layout: Layout, facts: RowFacts, device: DeviceFacts, blocks: int
) -> float:
    """``score`` less the parts of lines, tiles, teams and waves that do nothing."""
    width, teams = layout.across * layout.scalar_lanes, row_groups(layout, facts.columns)
    if not layout.inner and width * facts.item < LINE_BYTES <= facts.columns * facts.item:
        score *= PART_OF_A_LINE
    score /= layout.chunks * layout.tile * layout.segments / facts.points
    score *= layout.rows / (teams * width)  # some have no row of their own
    waves = _groups(layout, facts) / (device.sm_count * blocks)
    if layout.stages == 1 and waves > 1:
        score *= 0.6 + 0.4 * waves / math.ceil(waves)
    return score


def _less_what_passes_cost(
    score: float, layout: Layout, facts: RowFacts, device: DeviceFacts
) -> float:
    """``score`` less second launches, stores in pieces, and what passes read or work out again."""
    if layout.is_split:
        alone = facts.points * facts.rows * facts.item / (BYTES_PER_MICROSECOND * device.sm_count)
        score *= alone / (alone + SECOND_LAUNCH) / (1 + 0.5 * facts.scans)
    if layout.inner and facts.store_line % layout.vector:
        score *= IN_PIECES
    if facts.scans and layout.keep == "none":
        score *= 0.8  # its tiles wait for each other
    if facts.arrays and (layout.keep == "none" or layout.is_split):
        score /= 1 + 0.4 * (facts.passes - 1)
    return score / _cost_of_reading_again(layout, facts, device)


def _cost_of_reading_again(layout: Layout, facts: RowFacts, device: DeviceFacts) -> float:
    """1 where a row is kept whole, and more where passes read what is not kept again."""
    if not layout.partial:
        return 1.0
    return 1 + 0.5 * (facts.passes - 1) * _read_again(layout, facts, device)


def _in_a_grid(layout: Layout, facts: RowFacts, device: DeviceFacts) -> float:
    """The same of groups of blocks that stay: while one meets, others move bytes, or it reads its next row."""
    room = layout.blocks * device.sm_count
    groups = min(layout.rows, room // layout.segments)
    turns = ceildiv(layout.rows, groups)
    moved = layout.points * layout.rows * facts.item * (1 + facts.writes)
    alone = moved / (BYTES_PER_MICROSECOND * device.sm_count)
    stopped = turns * max(1, facts.passes - 1) * GRID_MEETING
    score = alone / (alone + stopped / min(MOST_HIDDEN, groups + 2 * (layout.stages - 1)))
    # the others have nothing to do, or not to the end
    score *= layout.rows / turns * layout.segments / room
    under_way = layout.blocks * layout.threads * facts.item * _loads_under_way(layout, facts)
    score *= under_way / (under_way + LATENCY_BYTES)
    warps = layout.blocks * layout.threads / WARP
    score *= _of_lone_warps(warps)
    score /= _cost_of_narrow_loads(layout, facts)
    return score / _cost_of_reading_again(layout, facts, device)


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
