"""Which layouts of a row kernel are worth trying on a device, best guess first.

The list starts with what `estimate` finds best among all `candidates`. `SOURCES` then adds layouts for special kinds of
kernels, each at its rank. Last, some layouts are repeated with the other choice of how loads leave the L2 cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cuda_agent_backend.codegen.cuda.rows import special_layouts
from cuda_agent_backend.codegen.cuda.rows.candidates import candidates
from cuda_agent_backend.codegen.cuda.rows.estimate import estimate, resident_blocks
from cuda_agent_backend.codegen.cuda.rows.problem import Parameters, RowProblem
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion

STREAMED_RANK = 3
"""Where the best guess with stores that leave the L2 cache first goes."""
OTHER_MARK_RANKS = 1, 4
"""Where the other choice of marked loads goes: of the best guess, which won as often on the practice set, and of
another layout."""
MARKED_BYTES = 8
"""Narrower loads along a row are slower with the mark: 0.79 against 0.94 over eager for a sum of single floats."""
ONCE_L2 = 4
"""Sizes of the L2 cache up to which reads of what is needed once are marked so."""


@dataclass(frozen=True)
class Source:
    """Where schedules come from, and the place in the list that the first of them takes.

    repeats: whether schedules that the list has already are proposed once more.
    """

    rank: int
    propose: Callable[[RowProblem], list[Parameters]]
    repeats: bool = False


SOURCES = (
    Source(1, special_layouts.single_pass_blocks),
    Source(1, special_layouts.blocked_rows),
    Source(1, special_layouts.loads_ahead),
    Source(1, special_layouts.running_products, repeats=True),
    Source(2, special_layouts.columns_in_one_wave),
    Source(0, special_layouts.transposed_squares, repeats=True),
    Source(1, special_layouts.cooperative_blocks, repeats=True),
)
"""In the order in which they are added: of two with one rank, the later one comes first in the list."""


def row_schedules(
    kernel: Kernel, region: LoweredRegion, device: DeviceFacts, most: int
) -> list[Parameters]:
    """Up to ``most`` ways to lay rows over the device, best guess first. Raises Unsupported where they have no form."""
    problem = RowProblem(kernel, region, device)
    chosen = _other_width_second(_best_of_each_kind(_by_estimate(problem), problem, most))
    for source in SOURCES:
        found = source.propose(problem)
        new = [p for p in found if (source.repeats or p not in chosen) and problem.fits(p)]
        chosen[source.rank : source.rank] = new
    if problem.facts.writes:
        streamed = [{**p, "stream": 1} for p in chosen[:1] if not p.get("stream")]
        chosen[STREAMED_RANK:STREAMED_RANK] = streamed
    return _with_marks(chosen, problem)[:most]


def _by_estimate(problem: RowProblem) -> list[Parameters]:
    """All candidates that make sense, best first."""
    facts = problem.facts
    scored: list[tuple[float, int, Parameters]] = []
    for number, parameters in enumerate(candidates(problem)):
        layout = problem.layout(parameters)
        try:
            layout.check(problem.device)
        except Unsupported:
            continue
        score = estimate(layout, facts, problem.device)
        if score > 0:
            if (layout.keep == "registers" and not facts.scans) or layout.stages > 1:
                parameters["blocks"] = resident_blocks(layout, facts)
            scored.append((-score, number, {"sketch": "row", **parameters}))
    scored.sort(key=lambda item: item[:2])
    return [parameters for *_, parameters in scored]


def _best_of_each_kind(
    ordered: Iterable[Parameters], problem: RowProblem, most: int
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
        if not problem.fits(p):
            continue
        counts[way] = counts.get(way, 0) + 1
        chosen.append(p)
        if len(chosen) == most:
            break
    return chosen


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


def _with_marks(chosen: list[Parameters], problem: RowProblem) -> list[Parameters]:
    """The schedules with loads marked or not, and one of them once more with the other choice.

    Reads that leave the cache first spare what others left there. Beside much larger data that is nothing.
    """
    once = int(problem.bytes < ONCE_L2 * problem.device.l2_bytes)
    chosen = [{"once": once * _bears_the_mark(p, problem), **p} for p in chosen]
    # copies to shared memory carry no mark
    marked = [p for p in chosen if p["keep"] != "shared" and p["exchange"] != "grid"]
    for p in marked[:1]:
        other = {**p, "once": 1 - int(p["once"])}
        if problem.text(other) != problem.text(p):
            rank = OTHER_MARK_RANKS[p is not chosen[0]]
            chosen[rank:rank] = [other]
    return chosen


def _bears_the_mark(p: Parameters, problem: RowProblem) -> bool:
    return p.get("lanes") == "outer" or int(p["vector"]) * problem.facts.item >= MARKED_BYTES
