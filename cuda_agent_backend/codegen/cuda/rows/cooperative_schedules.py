"""Which groups of blocks are worth trying for rows that a cluster holds badly or not at all (see `cooperative`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from cuda_agent_backend.codegen.cuda.rows.estimate import estimate, held_chunks, resident_blocks
from cuda_agent_backend.codegen.cuda.rows.facts import RowFacts
from cuda_agent_backend.codegen.cuda.rows.layout import Layout, read_layout
from cuda_agent_backend.codegen.ir.device import MAX_THREADS, DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Parameter
from sandbox.compile.occupancy import RESERVED_SHARED

Parameters = dict[str, Parameter]

HELD_WELL = 8
"""Blocks of a cluster that any device has room for; of twice as many some multiprocessors stay idle."""
MOST = 3
KEPT_PER_THREAD = 48
"""Elements that a thread may keep in registers."""
LEAST_HELD = 0.2
"""Share of a row worth keeping."""
LESS = 0.8
"""Of what found no room on a multiprocessor, what is tried next."""


def grid_schedules(
    facts: RowFacts, device: DeviceFacts, vector: int, fits: Callable[[Parameters], bool]
) -> list[Parameters]:
    """Up to ``MOST``, the best of every kind, best guess first: rows in flight, two blocks of a multiprocessor, one,
    registers. vector: elements of a load. fits: whether a schedule can be printed.
    """
    if not facts.inner or facts.scans or not facts.writes or not max(facts.arrays, facts.again):
        return []
    cluster = HELD_WELL if device.has_clusters else 1
    if facts.points * facts.item * max(1, facts.arrays) <= cluster * device.shared_per_block_bytes:
        return []
    if facts.points * facts.rows * facts.item < device.l2_bytes:
        return []
    bases = list(_bases(facts, device, vector))
    whole = [way for base in bases for way in _whole(base)]
    parts = (way for base in bases for way in _part_held(base, facts))
    return _best(whole, facts, device, fits) or _best(parts, facts, device, fits)


def _best(
    ways: Iterable[Parameters],
    facts: RowFacts,
    device: DeviceFacts,
    fits: Callable[[Parameters], bool],
) -> list[Parameters]:
    """Of what does not fit, as results need more room than what they are made of, less is tried next."""
    scored = [(_score(way, facts, device), way) for way in ways]
    most: dict[tuple[Parameter, ...], float] = {}
    chosen: list[Parameters] = []
    for score, way in sorted(scored, key=lambda found: -found[0]):
        share = int(way["blocks"]) * int(way.get("stages", 1)) / int(way["segments"])
        if score <= 0 or share > most.get(_kind(way), math.inf):
            continue
        found: Parameters = {"sketch": "row", **way}
        fitting = fits(found)
        most[_kind(way)] = 0.0 if fitting else LESS * share
        chosen += [found] if fitting else []
        if len(chosen) == MOST:
            break
    return chosen


def _kind(way: Parameters) -> tuple[Parameter, ...]:
    stages = way.get("stages", 1)
    alone = way["keep"] == "shared" and stages == 1
    return way["keep"], stages, way["blocks"] if alone else 0


def _bases(facts: RowFacts, device: DeviceFacts, vector: int) -> Iterator[Parameters]:
    for blocks in (1, 2):
        room = blocks * device.sm_count
        for segments in dict.fromkeys(room // n for n in range(1, min(facts.rows, room // 2) + 1)):
            for team in (256, 512, MAX_THREADS):
                base: Parameters = {"vector": vector, "team": team, "across": 1, "blocks": blocks}
                base |= {"exchange": "grid", "segments": segments}
                yield base


def _whole(base: Parameters) -> Iterator[Parameters]:
    yield {**base, "keep": "registers"}
    for stages in (1, 2):
        yield {**base, "keep": "shared", "stages": stages, "unroll": 4}


def _part_held(base: Parameters, facts: RowFacts) -> Iterator[Parameters]:
    """What fits is kept, the rest read again; one block of a multiprocessor keeps as much as two."""
    way: Parameters = {**base, "keep": "shared", "unroll": 8, "stream": 1}
    layout = read_layout({**way, "held": 1}, facts.points, facts.rows, False, facts.wide)
    held = held_chunks(layout, facts)
    if layout.blocks == 1 and layout.chunks > held >= layout.chunks * LEAST_HELD:
        yield {**way, "held": held}


def _score(way: Parameters, facts: RowFacts, device: DeviceFacts) -> float:
    layout = read_layout(way, facts.points, facts.rows, False, facts.wide)
    try:
        layout.check(device)
    except Unsupported:
        return 0.0
    return estimate(layout, facts, device) if _fits(layout, facts, device) else 0.0


def _fits(layout: Layout, facts: RowFacts, device: DeviceFacts) -> bool:
    """Whether as many blocks as the layout counts on find room, as far as one can tell before it is compiled."""
    if layout.keep == "registers" and layout.chunks * layout.vector > KEPT_PER_THREAD:
        return False
    meet = facts.slots * (layout.warps * layout.stages + 1) + 512
    arrays = facts.again if layout.partial else facts.arrays * layout.stages
    kept = layout.threads * layout.kept_chunks * layout.vector * facts.item * arrays
    room = device.shared_per_block_bytes + RESERVED_SHARED
    fits = layout.keep != "shared" or layout.blocks * (kept + meet + RESERVED_SHARED) <= room
    return fits and resident_blocks(layout, facts) >= layout.blocks
