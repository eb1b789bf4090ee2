"""All layouts of a row kernel that the estimate compares: vectors, teams, segments, and what stays on the chip."""

from __future__ import annotations

from collections.abc import Iterator

from cuda_agent_backend.codegen.cuda.common.sizes import powers, vectors
from cuda_agent_backend.codegen.cuda.rows.estimate import LINE_BYTES, held_chunks
from cuda_agent_backend.codegen.cuda.rows.problem import Parameters, RowProblem
from cuda_agent_backend.codegen.ir.device import MAX_THREADS, WARP, ceildiv

KEPT_PER_THREAD = 64
"""Elements that a thread may keep in registers."""
LEAST_HELD = 0.2
"""Share of a row worth keeping."""
MOST_SPLIT = 1024
"""Segments of a row that meet by launching again."""
MOST_CLUSTER = 16
"""Blocks of a cluster."""
SHORT_ROW = 1024
MOST_OUTER_TEAM = 128
"""Threads of a column."""


def candidates(problem: RowProblem) -> Iterator[Parameters]:
    """Every layout that may be worth a look; those that do not fit are among them."""
    if problem.facts.inner:
        yield from _inner(problem)
    if problem.facts.outer:
        yield from _outer(problem)


def _exchanges(problem: RowProblem) -> Iterator[Parameters]:
    """How blocks that share a row meet, and how many there are."""
    yield {"exchange": "block", "segments": 1}
    for segments in powers(2, MOST_CLUSTER):
        yield {"exchange": "cluster", "segments": segments}
    # of a single row every multiprocessor gets as many parts
    single = problem.facts.rows == 1
    even = [n * problem.device.sm_count for n in (1, 2, 4, 8)] if single else []
    for segments in sorted({*powers(2, MOST_SPLIT), *even}):
        yield {"exchange": "split", "segments": segments}


def _inner(problem: RowProblem) -> Iterator[Parameters]:
    """Lanes along the row."""
    facts = problem.facts
    for vector in dict.fromkeys((problem.vector(facts.store_line), problem.vector(facts.line))):
        yield from _inner_widths(problem, vector)


def _inner_widths(problem: RowProblem, vector: int) -> Iterator[Parameters]:
    """Lanes along the row, with vectors of one width."""
    facts = problem.facts
    least = WARP if facts.points > SHORT_ROW else 8 if facts.points >= 256 else 1
    if facts.points * facts.item >= 2 * LINE_BYTES:
        # threads with rows of their own would leave half of what they fetch to a later read, by when it may be gone
        least = max(least, powers(1, max(1, LINE_BYTES // 2 // (vector * facts.item)))[-1])
    block = 256 if facts.points <= SHORT_ROW else 128
    for exchange in _exchanges(problem):
        for team in powers(least, MAX_THREADS):
            base: Parameters = {"vector": vector, "team": team, "across": max(1, block // team)}
            base |= exchange
            per_thread = ceildiv(facts.points, team * int(exchange["segments"]))
            yield from _ways(base, problem, per_thread, MAX_THREADS)


def _outer(problem: RowProblem) -> Iterator[Parameters]:
    """Lanes across rows, which are neighbours in memory."""
    facts = problem.facts
    widths = [v for v in vectors(facts.item, facts.columns) if v * facts.item >= 4] or [1]
    for exchange in _exchanges(problem):
        for team in powers(1, MOST_OUTER_TEAM):
            for vector in widths[:3]:
                for across in _strips(problem, team, vector, vector == widths[0]):
                    base: Parameters = {"lanes": "outer", "vector": vector, "team": team}
                    base |= {"across": across, **exchange}
                    per_thread = ceildiv(facts.points, team * int(exchange["segments"])) * vector
                    yield from _ways(base, problem, per_thread, 1)


def _strips(problem: RowProblem, team: int, vector: int, widest: bool) -> tuple[int, ...]:
    """How many vectors of neighbouring rows a block has side by side."""
    facts = problem.facts
    if facts.columns <= WARP:
        return (min(WARP, 1 << (facts.columns - 1).bit_length()),)
    # wide loads of few neighbours: as many bytes of a line, with fewer instructions
    line = LINE_BYTES // (vector * facts.item)
    few = (line, 2 * line) if 4 <= line < WARP // 2 and widest else ()
    few = few if facts.arrays or facts.scans else ()
    half = (line // 2,) if few and not _cluster_keeps_lines(problem) else ()
    wide = (32, 64) if team <= 32 else ()
    return (*half, *few, *wide)


def _cluster_keeps_lines(problem: RowProblem) -> bool:
    """Whether a strip of columns as wide as a line of the cache stays on the chip: of one half as wide more does."""
    room = MOST_CLUSTER * problem.device.shared_per_block_bytes
    return problem.facts.points * LINE_BYTES <= room


def _ways(
    base: Parameters, problem: RowProblem, per_thread: int, most_scan_team: int
) -> Iterator[Parameters]:
    """Ways to keep what passes share, for rows dealt as in ``base``.

    per_thread: elements of a thread. most_scan_team: threads of a scan whose tiles are not kept.
    """
    facts = problem.facts
    split, several = base["exchange"] == "split", facts.arrays > 0
    cluster = base["exchange"] == "cluster"
    if cluster and facts.again and int(base["segments"]) >= 8 and not facts.scans:
        yield from _part_held(base, problem)
    if (several or facts.scans) and not split and per_thread <= KEPT_PER_THREAD:
        yield {**base, "keep": "registers"}
    if several and not facts.scans and not split:
        for stages in (1, 2, 3) if base.get("lanes") != "outer" else (1,):
            yield {**base, "keep": "shared", "stages": stages, "unroll": 4}
    if facts.scans and (cluster or (not split and int(base["team"]) > most_scan_team)):
        return
    block = base["exchange"] == "block"
    for unroll in (8, 16, 4) if not several and block else (4,) if several else (8,):
        yield {**base, "keep": "none", "unroll": unroll}


def _part_held(base: Parameters, problem: RowProblem) -> Iterator[Parameters]:
    """Rows too long for a cluster: what fits is kept, the rest read again."""
    facts = problem.facts
    way: Parameters = {**base, "keep": "shared", "unroll": 8, "stream": 1}
    layout = problem.layout({**way, "held": 1}, ordered=False)
    held = held_chunks(layout, facts)
    widest = layout.vector == problem.vector(facts.line if layout.inner else facts.columns)
    if not widest or not 512 <= layout.threads <= MAX_THREADS:
        return
    if layout.chunks > held >= layout.chunks * LEAST_HELD:
        yield {**way, "held": held}
