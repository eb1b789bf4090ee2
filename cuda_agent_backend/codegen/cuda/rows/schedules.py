"""Which layouts of a row kernel are worth trying on a device, best guess first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cuda_agent_backend.codegen.cuda.rows.cooperative_schedules import grid_schedules
from cuda_agent_backend.codegen.cuda.rows.estimate import (
    LINE_BYTES,
    REGISTERS,
    RowFacts,
    estimate,
    held_chunks,
    resident_blocks,
    row_facts,
)
from cuda_agent_backend.codegen.cuda.rows.frame import row_groups
from cuda_agent_backend.codegen.cuda.rows.layout import read_layout
from cuda_agent_backend.codegen.cuda.rows.row_blocking import TOGETHER, shared_loop
from cuda_agent_backend.codegen.cuda.rows.transposed_loads import square_schedules
from cuda_agent_backend.codegen.cuda.rows.writer import emit_rows
from cuda_agent_backend.codegen.ir.device import MAX_THREADS, WARP, DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.nest import Kernel, merge_outer
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter
from cuda_agent_backend.codegen.ir.ssa import Unsupported

KEPT_PER_THREAD = 64
"""Elements that a thread may keep in registers."""


KEPT_OF_PRODUCTS, PRODUCT_REGISTERS = 28, 64
"""Factors that a thread keeps of a row, and the registers that this takes with what goes before them in double."""


LEAST_HELD = 0.2
"""Share of a row worth keeping."""


MOST_SPLIT = 1024


LEAST_IN_ONE_GO, MOST_IN_ONE_GO = 8, 1 << 14
"""Partial results of a row that one block still joins quickly."""


MOST_IN_ONE_WAVE = 64
"""Partial results of a column that each of its blocks joins by itself."""


MOST_CLUSTER = 16
"""Blocks."""


MANY_BLOCKS = 16
"""For each multiprocessor, from which on they even out."""


SHORT_ROW = 1024


MARKED_BYTES = 8
"""Narrower loads along a row are slower with the mark: 0.79 against 0.94 over eager for a sum of single floats."""


ASKED = ((2, 3), (4, 2))
"""Chunks that a thread asks for together, and blocks of each multiprocessor then: more with fewer, fewer with more."""


FULL_WAVE = 0.85
"""Of the blocks that would fit, so many have to be there: the others' multiprocessors ask for less."""


ASKED_REGISTERS = 64
"""Of a thread, for what it asks for together."""


BRANCHING = frozenset(
    ("div", "erf", "expm1", "log", "log10", "log1p", "log2", "pow", "sqrt", "tanh", "truediv")
)
"""Functions with a branch for rare numbers, before which the compiler asks for nothing that comes after."""


LEAST_SHARED_BYTES = 64 << 10
"""Of what rows share, from which on it no longer stays in the L1 cache beside all else that goes through there."""


TOGETHER_ROWS = (4, 3, 2)
"""How many rows are taken together: the first that divides their number."""


def _vectors(item: int, size: int) -> list[int]:
    """Vector widths of up to 16 bytes that divide ``size``, widest first; 1 is always among them."""
    return [v for v in (16, 8, 4, 2) if v * item <= 16 and size % v == 0] + [1]


def row_schedules(
    kernel: Kernel, region: LoweredRegion, device: DeviceFacts, most: int
) -> list[Parameters]:
    """Up to ``most`` ways to lay rows over the device, best guess first. Raises Unsupported where they have no form."""
    facts = row_facts(kernel, region)
    scored: list[tuple[float, int, Parameters]] = []
    for number, parameters in enumerate(_candidates(facts, device)):
        layout = read_layout(parameters, facts.points, facts.rows, facts.scans, facts.wide)
        try:
            layout.check(device)
        except Unsupported:
            continue
        score = estimate(layout, facts, device)
        if score > 0:
            if (layout.keep == "registers" and not facts.scans) or layout.stages > 1:
                parameters["blocks"] = resident_blocks(layout, facts)
            scored.append((-score, number, {"sketch": "row", **parameters}))
    scored.sort(key=lambda item: item[:2])
    chosen = _diverse((p for *_, p in scored), kernel, region, device, most)
    chosen = _other_width_second(chosen)
    in_one_go = [*_rows_together(kernel, facts, device), *_in_one_go(facts, device)]
    chosen[1:1] = [p for p in in_one_go if p not in chosen and _text(kernel, region, p, device)]
    chosen[1:1] = [
        p
        for p in _asked_together(kernel, facts, device)
        if p not in chosen and _text(kernel, region, p, device)
    ]
    chosen[1:1] = [p for p in _running_products(facts, device) if _text(kernel, region, p, device)]
    chosen[2:2] = [
        p
        for p in _columns_in_one_wave(facts, device)
        if p not in chosen and _text(kernel, region, p, device)
    ]
    squares = square_schedules(kernel, facts.item, facts.line, facts.columns, device)
    chosen[:0] = [{"sketch": "row", **p} for p in squares if _text(kernel, region, p, device)]
    vector = _vectors(facts.item, facts.line)[0]
    chosen[1:1] = grid_schedules(
        facts, device, vector, lambda p: bool(_text(kernel, region, p, device))
    )
    if facts.writes:
        chosen[3:3] = [{**p, "stream": 1} for p in chosen[:1] if not p.get("stream")]
    # reads that leave the cache first spare what others left there; beside much larger data that is nothing
    once = int(facts.points * facts.rows * facts.item < ONCE_L2 * device.l2_bytes)
    chosen = [{"once": once * _bears_the_mark(p, facts), **p} for p in chosen]
    # copies to shared memory carry no mark
    marked = [p for p in chosen if p["keep"] != "shared" and p["exchange"] != "grid"]
    for p in marked[:1]:
        other = {**p, "once": 1 - int(p["once"])}
        if _text(kernel, region, other, device) != _text(kernel, region, p, device):
            place = 1 if p is chosen[0] else 4  # the other way won as often on the practice set
            chosen[place:place] = [other]
    return chosen[:most]


def _bears_the_mark(p: Parameters, facts: RowFacts) -> bool:
    return p.get("lanes") == "outer" or int(p["vector"]) * facts.item >= MARKED_BYTES


def _in_one_go(facts: RowFacts, device: DeviceFacts) -> list[Parameters]:
    """Two ways to cut long rows into blocks that load all they ever do at once, as those of a pointwise kernel do.

    Blocks that stay and loop over equal parts end when the slowest multiprocessor does, and read at many places of
    memory at once. Here a multiprocessor takes the next block when it is ready, and blocks side by side read
    neighbours.
    """
    if not facts.inner or facts.arrays or facts.scans or facts.writes or facts.passes > 1:
        return []
    if facts.points * facts.rows * facts.item < device.l2_bytes:
        return []
    vector = _vectors(facts.item, facts.line)[0]
    found: list[Parameters] = []
    for team, elements in ((256, 32), (512, 16), (512, 32), (1024, 32)):
        segments = ceildiv(facts.points, team * max(vector, elements))
        if not LEAST_IN_ONE_GO <= segments <= MOST_IN_ONE_GO:
            continue
        if segments * facts.rows < MANY_BLOCKS * device.sm_count:
            continue
        cut: Parameters = {"vector": vector, "team": team, "across": 1, "exchange": "split"}
        cut |= {"segments": segments, "keep": "none"}
        layout = read_layout(cut, facts.points, facts.rows, facts.scans, facts.wide)
        # the loop's whole turns, written out
        found.append({"sketch": "row", **cut, "unroll": max(1, layout.segment // layout.tile)})
    return found[:2]


def _asked_together(kernel: Kernel, facts: RowFacts, device: DeviceFacts) -> list[Parameters]:
    """Ways to keep more of what is read under way, where several operands are read or functions branch.

    A wave of blocks is what fits with the registers that this takes: none waits for a second, which would not be full.
    """
    if not facts.inner or facts.arrays or facts.scans or facts.writes or facts.passes > 1:
        return []
    branching = any(i.op in BRANCHING for s in kernel.stages if s.inner for i in s.body.walk())
    if not branching and facts.streams < 2:
        return []
    if facts.points * facts.rows * facts.item < device.l2_bytes:
        return []
    vector = _vectors(facts.item, facts.line)[0]
    words = vector * max(1, facts.item // 4) * facts.streams
    found: list[Parameters] = []
    for ahead, resident in ASKED:
        segments = resident * device.sm_count // facts.rows
        if not 1 <= segments <= MOST_SPLIT or ahead * words > ASKED_REGISTERS:
            continue
        if segments * facts.rows < FULL_WAVE * resident * device.sm_count:
            continue
        exchange = "block" if segments == 1 else "split"
        if 1 < segments <= MOST_CLUSTER // 2 and device.has_clusters:
            exchange = "cluster"
        found.append(
            {
                "sketch": "row",
                "vector": vector,
                "team": 256,
                "across": 1,
                "exchange": exchange,
                "segments": segments,
                "keep": "none",
                "unroll": ahead,
                "ahead": ahead,
            }
        )
    return found


def _rows_together(kernel: Kernel, facts: RowFacts, device: DeviceFacts) -> list[Parameters]:
    """Two ways to read what long rows share once for several rows; otherwise as `_in_one_go`."""
    if not _in_one_go(facts, device) or facts.points * facts.item < LEAST_SHARED_BYTES:
        return []
    loop = shared_loop(merge_outer(kernel))
    count = next((n for n in TOGETHER_ROWS if loop is not None and loop[1] % n == 0), 1)
    if count == 1:
        return []
    vector, team = _vectors(facts.item, facts.line)[0], 256
    found: list[Parameters] = []
    for chunks, once in ((8 // count, 1), (16 // count, 0)):
        cut: Parameters = {"vector": vector, "team": team, "across": 1, "exchange": "split"}
        cut |= {"segments": ceildiv(facts.points, team * vector * chunks), "keep": "none"}
        cut |= {"unroll": chunks, "whole": 1, "once": once, TOGETHER: count}
        found.append({"sketch": "row", **cut})
    return found


def _running_products(facts: RowFacts, device: DeviceFacts) -> list[Parameters]:
    """A way to keep rows in so few registers, with what goes before a vector in double, that many are under way."""
    if not facts.products or not facts.inner:
        return []
    vector = _vectors(facts.item, facts.store_line)[0]
    for team in _powers(WARP, MAX_THREADS):
        kept: Parameters = {"vector": vector, "team": team, "across": max(1, 128 // team)}
        kept |= {"exchange": "block", "segments": 1, "keep": "registers"}
        layout = read_layout(kept, facts.points, facts.rows, True, facts.wide)
        if layout.chunks * vector <= KEPT_OF_PRODUCTS:
            blocks = REGISTERS // (PRODUCT_REGISTERS * layout.threads)
            return [{"sketch": "row", **kept, "blocks": blocks}]
    return []


def _columns_in_one_wave(facts: RowFacts, device: DeviceFacts) -> list[Parameters]:
    """Two ways to read columns twice that no cluster keeps: as many blocks as are at work at once, each as long as all.

    More blocks would join more partial results, and those of a last wave that is not full leave processors idle.
    """
    if not facts.outer or facts.scans or facts.passes < 2 or not facts.writes:
        return []
    if facts.points * facts.rows * facts.item < device.l2_bytes:
        return []
    vector = _vectors(facts.item, facts.columns)[0]
    found: list[Parameters] = []
    for across, resident in ((WARP, 3), (WARP // 4, 4)):
        cut: Parameters = {"lanes": "outer", "vector": vector, "team": 256 // across}
        cut |= {"across": across, "exchange": "split", "keep": "none", "unroll": 8, "stream": 1}
        layout = read_layout(cut, facts.points, facts.rows, facts.scans, facts.wide)
        segments = resident * device.sm_count // row_groups(layout, facts.columns)
        if 1 < segments <= MOST_IN_ONE_WAVE:
            found.append({"sketch": "row", **cut, "segments": segments})
    return found


def _other_width_second(chosen: list[Parameters]) -> list[Parameters]:
    """The best with strips of columns at least twice or half as wide as the first's comes before the others.

    Memory prefers wide strips, the number of blocks narrow ones; which counts for more is the device's to say.
    """

    def width(p: Parameters) -> int:
        return int(p["across"]) * int(p["vector"])

    if not chosen or chosen[0].get("lanes") != "outer":
        return chosen
    others = [p for p in chosen if width(p) != width(chosen[0])]
    return [chosen[0], *others[:1], *(p for p in chosen[1:] if p not in others[:1])]


def _diverse(
    ordered: Iterable[Parameters],
    kernel: Kernel,
    region: LoweredRegion,
    device: DeviceFacts,
    most: int,
) -> list[Parameters]:
    """The best few of every way to keep and to meet, in order of the estimate."""
    counts: dict[tuple[object, ...], int] = {}
    chosen: list[Parameters] = []
    for p in ordered:
        way = (p["keep"], p["exchange"], p.get("stages", 1) == 1, "held" in p)
        usual = not chosen or (p["exchange"] == chosen[0]["exchange"] and p.get("stages", 1) == 1)
        usual = usual and "held" not in p
        if counts.get(way, 0) >= (most // 2 if usual else max(2, most // 5)):
            continue
        if not _text(kernel, region, p, device):
            continue
        counts[way] = counts.get(way, 0) + 1
        chosen.append(p)
        if len(chosen) == most:
            break
    return chosen


def _text(
    kernel: Kernel, region: LoweredRegion, p: Parameters, device: DeviceFacts
) -> tuple[str, ...]:
    """What a schedule prints; nothing where it does not fit."""
    try:
        return emit_rows(kernel, region, p, "k", device).functions
    except Unsupported:
        return ()


def _powers(low: int, high: int) -> list[int]:
    return [1 << n for n in range(high.bit_length()) if low <= 1 << n <= high]


def _candidates(facts: RowFacts, device: DeviceFacts) -> Iterator[Parameters]:
    if facts.inner:
        yield from _inner_candidates(facts, device)
    if facts.outer:
        yield from _outer_candidates(facts, device)


def _exchanges(rows: int, device: DeviceFacts) -> Iterator[Parameters]:
    yield {"exchange": "block", "segments": 1}
    for segments in _powers(2, MOST_CLUSTER):
        yield {"exchange": "cluster", "segments": segments}
    # of a single row every multiprocessor gets as many parts
    even = [n * device.sm_count for n in (1, 2, 4, 8)] if rows == 1 else []
    for segments in sorted({*_powers(2, MOST_SPLIT), *even}):
        yield {"exchange": "split", "segments": segments}


def _inner_candidates(facts: RowFacts, device: DeviceFacts) -> Iterator[Parameters]:
    stored = _vectors(facts.item, facts.store_line)[0]
    for vector in dict.fromkeys((stored, _vectors(facts.item, facts.line)[0])):
        yield from _inner_widths(facts, device, vector)


def _inner_widths(facts: RowFacts, device: DeviceFacts, vector: int) -> Iterator[Parameters]:
    """Candidates with vectors of one width along the row."""
    least = WARP if facts.points > SHORT_ROW else 8 if facts.points >= 256 else 1
    if facts.points * facts.item >= 2 * LINE_BYTES:
        # threads with rows of their own would leave half of what they fetch to a later read, by when it may be gone
        least = max(least, _powers(1, max(1, LINE_BYTES // 2 // (vector * facts.item)))[-1])
    for exchange in _exchanges(facts.rows, device):
        for team in _powers(least, 1024):
            block = 256 if facts.points <= SHORT_ROW else 128
            base: Parameters = {
                "vector": vector,
                "team": team,
                "across": max(1, block // team),
                **exchange,
            }
            yield from _ways(
                base, facts, ceildiv(facts.points, team * int(exchange["segments"])), 1024
            )


def _outer_candidates(facts: RowFacts, device: DeviceFacts) -> Iterator[Parameters]:
    widths = [v for v in _vectors(facts.item, facts.columns) if v * facts.item >= 4] or [1]
    narrow = min(WARP, 1 << (facts.columns - 1).bit_length())
    for exchange in _exchanges(facts.rows, device):
        for team in _powers(1, 128):
            for vector in widths[:3]:
                # wide loads of few neighbours: as many bytes of a line, with fewer instructions
                line = LINE_BYTES // (vector * facts.item)
                few = (line, 2 * line) if 4 <= line < WARP // 2 and vector == widths[0] else ()
                few = few if facts.arrays or facts.scans else ()
                half = (line // 2,) if few and not _cluster_keeps_lines(facts, device) else ()
                wide = (32, 64) if team <= 32 else ()
                for across in (*half, *few, *wide) if facts.columns > WARP else (narrow,):
                    base: Parameters = {
                        "lanes": "outer",
                        "vector": vector,
                        "team": team,
                        "across": across,
                        **exchange,
                    }
                    per_thread = ceildiv(facts.points, team * int(exchange["segments"])) * vector
                    yield from _ways(base, facts, per_thread, 1)


def _cluster_keeps_lines(facts: RowFacts, device: DeviceFacts) -> bool:
    """Whether a strip of columns as wide as a line of the cache stays on the chip: of one half as wide more does."""
    return facts.points * LINE_BYTES <= MOST_CLUSTER * device.shared_per_block_bytes


def _part_held(base: Parameters, facts: RowFacts) -> Iterator[Parameters]:
    """Rows too long for a cluster: what fits is kept, the rest read again."""
    way: Parameters = {**base, "keep": "shared", "unroll": 8, "stream": 1}
    layout = read_layout({**way, "held": 1}, facts.points, facts.rows, False, facts.wide)
    held = held_chunks(layout, facts)
    widest = layout.vector == _vectors(facts.item, facts.line if layout.inner else facts.columns)[0]
    if not widest or not 512 <= layout.threads <= MAX_THREADS:
        return
    if layout.chunks > held >= layout.chunks * LEAST_HELD:
        yield {**way, "held": held}


def _ways(
    base: Parameters, facts: RowFacts, per_thread: int, most_scan_team: int
) -> Iterator[Parameters]:
    """Ways to keep what passes share, for rows dealt as in ``base``."""
    split, several = base["exchange"] == "split", facts.arrays > 0
    cluster = base["exchange"] == "cluster"
    if cluster and facts.again and int(base["segments"]) >= 8 and not facts.scans:
        yield from _part_held(base, facts)
    if (several or facts.scans) and not split and per_thread <= KEPT_PER_THREAD:
        yield {**base, "keep": "registers"}
    if several and not facts.scans and not split:
        for stages in (1, 2, 3) if base.get("lanes") != "outer" else (1,):
            yield {**base, "keep": "shared", "stages": stages, "unroll": 4}
    if facts.scans and (
        base["exchange"] == "cluster" or (not split and int(base["team"]) > most_scan_team)
    ):
        return
    for unroll in (
        (8, 16, 4) if not several and base["exchange"] == "block" else (4,) if several else (8,)
    ):
        yield {**base, "keep": "none", "unroll": unroll}


Parameters = dict[str, Parameter]


ONCE_L2 = 4
"""Sizes of the L2 cache up to which reads of what is needed once are marked so."""
