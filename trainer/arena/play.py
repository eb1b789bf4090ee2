"""One rival on one table, and what came of it."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from sandbox.timing.decision import interval
from trainer.rivals.protocol import NO_ROW, Rival, view_of
from trainer.world.replay import Judgement, Replay
from trainer.world.rows import Table
from trainer.world.worth import best_known, worth_of_best

BUDGETS = (1, 3, 10, 30)
"""Judgements. One that fails costs as much as any other."""
NOTHING = Judgement(NO_ROW, "refused", False, 0.0, 0.0, 0.0, 0.0)
CLOSE = 0.95
"""Of the best known speed: what is counted until it is reached."""
LEAST_NOISE, MOST_NOISE = 0.01, 0.1
"""Bounds of what is taken for the noise of a table's best."""


@dataclass(frozen=True)
class At:
    """After so many judgements. slowdown: the best known over what the rival chose by what it was told (by the
    baseline's speed where nothing works yet, and at least 1), of which `exploration` is the part that was not judged at
    all and `selection` that of choosing another than the best of those judged. All three scatter about their values, so
    below 1 too: a choice among equals is now and then timed as faster than the best (see `worth`). hit: whether the
    choice is in the set of answers within noise of the best. speedup: of the choice over the faster baseline, which is
    used where it is faster."""

    slowdown: float
    exploration: float
    selection: float
    hit: bool
    speedup: float


@dataclass(frozen=True)
class Played:
    """judged: rows in their order, one as often as it was asked for, and `NO_ROW`. at: by budget. judgements, seconds:
    until one within `CLOSE` of the best was judged; None where it never was."""

    judged: tuple[int, ...]
    at: dict[int, At] = field(default_factory=dict)
    judgements: int | None = None
    seconds: float | None = None


def answers(table: Table) -> frozenset[int]:
    """Rows within noise of the best known: that of the best one's pairs, between `LEAST_NOISE` and `MOST_NOISE`."""
    best = max(table.rows, key=lambda row: row.speed or 0.0)
    if not best.pairs:
        return frozenset()
    found = interval([b / c for b, c in best.pairs])
    noise = min(MOST_NOISE, max(LEAST_NOISE, 1.0 - found.low / found.median))
    known = min(best_known(table), table.best)
    return frozenset(
        n for n, row in enumerate(table.rows) if (row.speed or 0.0) >= (1.0 - noise) * known
    )


def play(rival: Rival, table: Table, seed: int, most: int = BUDGETS[-1]) -> Played:
    """Play up to ``most`` judgements. seed: of what the rival draws, and of what each judgement says."""
    replay = Replay(table, noise_of(table, seed))
    game = rival.play(view_of(table), seed)
    judged: list[int] = []
    told: list[float] = []
    seconds: list[float] = []
    try:
        row = next(game)
        while True:
            found = replay.judge(row) if row != NO_ROW else NOTHING
            judged.append(row)
            told.append(found.speed)
            seconds.append(found.seconds)
            if len(judged) >= most:
                break
            row = game.send(found)
    except StopIteration:
        pass
    game.close()
    return _result(table, judged, told, seconds)


def noise_of(table: Table, seed: int) -> int:
    """The seed of what judgements say: every rival hears the same of the same row, asked for at the same place."""
    return random.Random(f"{table.id} {seed}").getrandbits(62)


def _result(
    table: Table, judged: Sequence[int], told: Sequence[float], seconds: Sequence[float]
) -> Played:
    speeds = [0.0 if row == NO_ROW else table.rows[row].speed or 0.0 for row in judged]
    known = best_known(table)
    close = next((n for n, speed in enumerate(speeds, 1) if speed >= CLOSE * known > 0), None)
    spent = sum(seconds[:close]) if close is not None else None
    wanted = answers(table)
    at = {budget: _at(table, known, judged[:budget], told, wanted) for budget in BUDGETS}
    return Played(tuple(judged), at, close, spent)


def _at(
    table: Table,
    known: float,
    judged: Sequence[int],
    told: Sequence[float],
    wanted: frozenset[int],
) -> At:
    working = [n for n in range(len(judged)) if told[n] > 0]
    if not working:
        lost = max(1.0, known)
        return At(lost, lost, 1.0, False, 1.0)
    chosen = judged[max(working, key=lambda n: (told[n], -n))]
    speed = table.rows[chosen].speed or 0.0
    best = worth_of_best([table.rows[row] for row in {judged[n] for n in working}])
    return At(
        slowdown=known / speed,
        exploration=known / best,
        selection=best / speed,
        hit=chosen in wanted,
        speedup=max(1.0, speed),
    )


def chance(table: Table) -> float:
    """The share of rows that are answers."""
    return len(answers(table)) / max(1, len(table.rows))


def geomean(values: Sequence[float]) -> float:
    """Of positive numbers; NaN of none."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan
