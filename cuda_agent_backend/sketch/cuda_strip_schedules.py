"""Strips worth trying for rows, or columns, that no block keeps and that several passes read (`cuda_strip`)."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent_backend.sketch.cuda_estimate import LINE_BYTES, RowFacts
from cuda_agent_backend.sketch.cuda_frame import row_groups
from cuda_agent_backend.sketch.cuda_layout import DeviceFacts, read_layout
from cuda_agent_backend.sketch.schedule import Parameter

Parameters = dict[str, Parameter]

MOST_OF_L2 = 5
"""A strip is at most this part of the L2 cache, which holds two or three of them beside what is written."""
LEAST_BAND = 64
"""Bytes of a row in a group of columns: two sectors of memory."""
MOST_COLUMNS = 4
"""Of a thread, which has accumulators, and a row's results, for each of them."""
UNDER_WAY, MOST_UNROLLED, REGISTER = 128, 16, 4
"""Bytes of registers for what a thread asks for at once, vectors of that, and bytes that an element takes at least."""


@dataclass(frozen=True)
class Way:
    """share: of the L2 cache, 1/share, that a strip takes, about; item: bytes of a block's piece of work;
    band: bytes of a row in a group of columns; blocks: of a multiprocessor."""

    share: int
    item: int
    threads: int
    ahead: int
    blocks: int
    band: int = LINE_BYTES


ROWS = (
    Way(12, 64 << 10, 256, 3, 4),
    Way(6, 64 << 10, 512, 1, 2),
    Way(20, 32 << 10, 256, 3, 4),
    Way(6, 128 << 10, 512, 2, 2),
)
COLUMNS = (
    Way(12, 64 << 10, 256, 2, 4),
    Way(6, 128 << 10, 512, 1, 2, 2 * LINE_BYTES),
    Way(6, 64 << 10, 256, 1, 4, 2 * LINE_BYTES),
    Way(12, 32 << 10, 256, 2, 4),
)


def strip_schedules(facts: RowFacts, device: DeviceFacts, vector: int) -> list[Parameters]:
    """Best guess first; ``vector``: the widest that rows, or columns, allow."""
    bytes_again = facts.item * facts.again
    if facts.scans or facts.passes < 2 or not bytes_again:
        return []
    if facts.points * facts.rows * bytes_again <= device.l2_bytes:
        return []
    beside = 1 if facts.inner else LINE_BYTES // facts.item
    if 2 * facts.points * beside * bytes_again <= device.shared_per_block_bytes:
        return []  # a multiprocessor keeps two such rows, one of which is loaded while the other is stored
    ways = ROWS if facts.inner else COLUMNS
    vector = vector if facts.inner else min(vector, MOST_COLUMNS)
    found: list[Parameters] = []
    for way in ways:
        one = _schedule(way, facts, device, vector)
        if one is not None and one not in found:
            found.append(one)
    return found


def _schedule(way: Way, facts: RowFacts, device: DeviceFacts, vector: int) -> Parameters | None:
    across = 1 if facts.inner else _across(way, facts, vector)
    if not across:
        return None
    cut: Parameters = {"vector": vector, "team": way.threads // across, "across": across}
    cut |= {"lanes": "inner" if facts.inner else "outer", "keep": "none", "blocks": way.blocks}
    layout = read_layout(cut, facts.points, facts.rows, facts.scans, facts.wide)
    lanes = across * (1 if facts.inner else vector)
    piece = max(1, way.item // (facts.item * lanes * layout.tile)) * layout.tile
    segments = (
        facts.points // piece
    )  # a little more than whole turns of the loop each, not a little less
    if segments < 2:
        return None
    group = facts.points * lanes * facts.item * facts.again
    if group > device.l2_bytes // MOST_OF_L2:
        return None
    strip = max(1, device.l2_bytes // way.share // group)
    strip = min(strip, row_groups(layout, facts.columns))
    unroll = min(MOST_UNROLLED, max(1, UNDER_WAY // (vector * max(REGISTER, facts.item))))
    return {
        "sketch": "row",
        **cut,
        "exchange": "strip",
        "segments": segments,
        "strip": strip,
        "ahead": way.ahead,
        "unroll": unroll,
        "stream": 1,
        "once": 1,
    }


def _across(way: Way, facts: RowFacts, vector: int) -> int:
    """Vectors side by side in a group of columns; 0 where there are too few columns."""
    band = way.band
    while band > facts.columns * facts.item:
        band //= 2
    return band // (vector * facts.item) if band >= LEAST_BAND else 0
