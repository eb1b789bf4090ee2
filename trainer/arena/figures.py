"""From games to figures, with intervals by a bootstrap over families: tables of one family say the same thing twice."""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.arena.play import BUDGETS, Played

RESAMPLES = 1000
CONFIDENCE = 0.95

Measured = tuple[str, str, float]
"""Of one seed: the family, the table or task, and the value."""


@dataclass(frozen=True)
class Game:
    """A rival's run on a table. family: what the bootstrap draws."""

    table: str
    family: str
    seed: int
    played: Played


def figures(games: Sequence[Game]) -> dict[str, Any]:
    """All figures of one rival on one split."""
    seeds = sorted({game.seed for game in games})
    found: dict[str, Any] = {
        "tables": len({game.table for game in games}),
        "families": len({game.family for game in games}),
        "seeds": len(seeds),
        "at": {str(budget): _at(games, budget) for budget in BUDGETS},
    }
    found["to_close"] = _to_close(games)
    return found


def _at(games: Sequence[Game], budget: int) -> dict[str, Any]:
    def of(name: str) -> Callable[[Game], float]:
        return lambda game: float(getattr(game.played.at[budget], name))

    return {
        "slowdown": _geometric(games, of("slowdown")),
        "worst_slowdown": max(of("slowdown")(game) for game in games),
        "exploration": _geometric(games, of("exploration")),
        "selection": _geometric(games, of("selection")),
        "hits": bootstrapped(games, of("hit"), statistics.fmean),
        "speedup": _geometric(games, of("speedup")),
    }


def _geometric(games: Sequence[Game], of: Callable[[Game], float]) -> dict[str, float]:
    return geometric([(game.family, game.table, of(game)) for game in games])


def geometric(measured: Sequence[Measured]) -> dict[str, float]:
    """The geometric mean over tables of the one over seeds, of values above 0, with its interval."""
    logs = [(family, table, math.log(value)) for family, table, value in measured]
    found = over_families(logs, statistics.fmean)
    return {name: math.exp(value) for name, value in found.items()}


def _to_close(games: Sequence[Game]) -> dict[str, Any]:
    """Judgements until one within 95 % of the best: None stands for more than the largest budget."""

    def judgements(game: Game) -> float:
        found = game.played.judgements
        return math.inf if found is None else float(found)

    seconds = [g.played.seconds for g in games]
    spent = [math.inf if s is None else s for s in seconds]
    return {
        "judgements": {
            name: _finite(value) for name, value in bootstrapped(games, judgements, median).items()
        },
        "judgements_p90": _finite(quantile([judgements(game) for game in games], 0.9)),
        "capped_mean": bootstrapped(
            games, lambda game: min(judgements(game), BUDGETS[-1] + 1.0), statistics.fmean
        ),
        "censored": statistics.fmean(game.played.judgements is None for game in games),
        "seconds": _finite(median(spent)),
        "seconds_p90": _finite(quantile(spent, 0.9)),
    }


def bootstrapped(
    games: Sequence[Game],
    of: Callable[[Game], float],
    summary: Callable[[Sequence[float]], float],
) -> dict[str, float]:
    """See `over_families`."""
    return over_families([(game.family, game.table, of(game)) for game in games], summary)


def over_families(
    measured: Sequence[Measured], summary: Callable[[Sequence[float]], float]
) -> dict[str, float]:
    """A summary over tables of the mean over seeds, with its interval: families are drawn with replacement, with all of
    their tables."""
    by_table: dict[tuple[str, str], list[float]] = defaultdict(list)
    for family, table, value in measured:
        by_table[family, table].append(value)
    by_family: dict[str, list[float]] = defaultdict(list)
    for (family, _), values in sorted(by_table.items()):
        by_family[family].append(statistics.fmean(values))
    families = list(by_family.values())
    chance = random.Random(0)
    drawn = sorted(
        summary([v for own in chance.choices(families, k=len(families)) for v in own])
        for _ in range(RESAMPLES)
    )
    tail = (1 - CONFIDENCE) / 2
    return {
        "value": summary([v for own in families for v in own]),
        "low": drawn[int(tail * RESAMPLES)],
        "high": drawn[int((1 - tail) * RESAMPLES) - 1],
    }


def ratio(one: Sequence[Game], other: Sequence[Game]) -> dict[str, float]:
    """Judgements to 95 % of the best, one rival's over another's on the same tables: the geometric mean of the ratios
    of what each needs (one more than the largest budget where it never got there)."""
    return _over(one, other, lambda game: float(game.played.judgements or BUDGETS[-1] + 1))


def paired(one: Sequence[Game], other: Sequence[Game], budget: int) -> dict[str, float]:
    """The same of the slowdown after so many judgements."""
    return _over(one, other, lambda game: game.played.at[budget].slowdown)


def _over(
    one: Sequence[Game], other: Sequence[Game], of: Callable[[Game], float]
) -> dict[str, float]:
    """One rival's figure over another's, table by table, each in the geometric mean over its seeds; the geometric mean
    of these ratios with its interval."""
    theirs: dict[str, list[float]] = defaultdict(list)
    for game in other:
        theirs[game.table].append(math.log(of(game)))
    means = {table: statistics.fmean(logs) for table, logs in theirs.items()}

    def over(game: Game) -> float:
        return math.log(of(game)) - means[game.table]

    found = bootstrapped([game for game in one if game.table in means], over, statistics.fmean)
    return {name: math.exp(value) for name, value in found.items()}


def saved(one: Sequence[Game], today: Sequence[Game]) -> float:
    """Seconds of judging a task to 95 % of its best that one rival saves over another, in the mean over games that both
    have brought there; 0 where there is none."""
    spent = {(game.table, game.seed): game.played.seconds for game in today}
    found = [
        theirs - game.played.seconds
        for game in one
        if game.played.seconds is not None
        and (theirs := spent.get((game.table, game.seed))) is not None
    ]
    return statistics.fmean(found) if found else 0.0


def median(values: Sequence[float]) -> float:
    """The upper one of two middle values, so that what never came is not averaged with what did."""
    return sorted(values)[len(values) // 2]


def quantile(values: Sequence[float], share: float) -> float:
    """The least value that so many are at or below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
