"""How a graph's budget is spent: a part is kept for the whole graph, the rest goes where time may be saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LEAST_TASK_S = 8.0
"""No task is begun with less: an episode that is cut before it has timed anything is a waste."""
WHOLE_EPISODE_S = 20.0
"""What a task may take in any case if there is so much: most episodes end by themselves in a part of it."""
LEAST_SEARCH_S = 0.5
"""No search is asked for with less."""
MANY_OPERATORS = 256
"""Beyond so many, compiling the baseline may take a graph's whole budget, and it is not interrupted: on an H100 one of
544, 64 steps of a loop, took all of a minute, and four others had no turn."""
JUDGEMENT_S = 2.0
"""About what judging one candidate takes."""
ACCEPT_PART, LEAST_ACCEPT_S = 0.3, 20.0
"""What is kept for the measurement of the whole graph: it compiles the graph twice before it times anything."""

MOST_ACCEPT_PART = 0.6
WHOLE_JUDGEMENT_S = 10.0
"""What the one judgement on which a promotion rests takes, where no such is known."""
MARGIN = 1.25
"""What took so long may take so much longer the next time."""
LAYOUTS_PART, LEAST_LAYOUTS_S = 0.4, 12.0
OVERTIME_PART = 0.5


def acceptance_reserve(budget_s: float, took: Sequence[float] = ()) -> float:
    """Seconds of the budget that the search leaves over: without that measurement, no kernel is used.

    took: what the latest measurements took here. Other graphs take other times, so half of what is kept without knowing
    any is kept in any case.
    """
    blind = max(ACCEPT_PART * budget_s, min(LEAST_ACCEPT_S, budget_s / 2))
    return min(max(MARGIN * max(took), blind / 2), MOST_ACCEPT_PART * budget_s) if took else blind


def judgement_reserve(budget_s: float, took: Sequence[float] = ()) -> float:
    """Seconds of a task's share that are kept to judge the best of what was tried. took: by the latest judgements."""
    return min(MARGIN * max(took) if took else WHOLE_JUDGEMENT_S, budget_s / 2)


def allowance(search_s: float, budget_s: float, spent_s: float, part: float) -> float:
    """Seconds to go on with what earlier processes have left over of a graph, 0 where that is not worth beginning.

    search_s: what a search could have now. budget_s: of the graph. spent_s: what searches for it had already. part: of
    what may be saved in the graph, that which is left over. Each process has half of what is left of two budgets, so
    that a model which is never searched to the end costs no more than that, however often it is started.
    """
    if not spent_s:
        return search_s
    left = min(search_s, max(search_s * part, WHOLE_EPISODE_S), (2 * budget_s - spent_s) / 2)
    return left if left >= min(LEAST_TASK_S, search_s) else 0.0


def enough_to_measure(left_s: float, too_few_s: float) -> bool:
    """Whether to measure a graph for which an earlier process had too few seconds."""
    return left_s >= MARGIN * too_few_s


def layouts_share(left_s: float, took: Sequence[float] = ()) -> float:
    """Seconds for the choice of layouts, which comes before the search; 0 where too few are left for that. took: what
    the latest measurements of whole graphs took here."""
    seconds = LAYOUTS_PART * left_s
    return seconds if seconds >= (min(took) if took else LEAST_LAYOUTS_S) else 0.0


def overtime(reserve_s: float) -> float:
    """Seconds of what is kept for the whole graph in which a judgement that is under way may come to its end: what it
    promotes is kept, and the whole graph can be measured by the next process."""
    return OVERTIME_PART * reserve_s


def order_by_promise(
    digests: Sequence[str],
    promises: Mapping[str, float],
    operators: Mapping[str, int] | None = None,
) -> list[str]:
    """The tasks in the order in which to search them: the most promising first, else as they come; those of more than
    `MANY_OPERATORS` after all others."""
    counts = operators or {}

    def place(digest: str) -> tuple[bool, float]:
        return counts.get(digest, 0) > MANY_OPERATORS, -promises.get(digest, 0.0)

    return sorted(digests, key=place)


def share(left_s: float, promises: Sequence[float], first: bool = False) -> float | None:
    """Seconds for the next task; None where too little is left to begin it.

    promises: what this task and all after it may save. A task gets the part of the time that it has of what may be
    saved, which others inherit where it ends early. first: it is begun whatever is left.
    """
    if left_s < LEAST_TASK_S:
        return max(left_s, 0.0) if first else None
    total = sum(promises)
    part = promises[0] / total if total > 0 else 1 / len(promises)
    return min(left_s, max(left_s * part, WHOLE_EPISODE_S))


def share_of_deadline(left_s: float, episodes: int, first: bool = False) -> float | None:
    """Seconds for each of several episodes with one deadline; None where too little is left to begin one.

    When the time is up each may have a candidate judged, one after another: that much is kept, but not over half.
    """
    if left_s < LEAST_TASK_S:
        return share(left_s, [1.0], first)
    return max(left_s / 2, left_s - JUDGEMENT_S * (episodes - 1))
