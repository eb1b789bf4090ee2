"""Nearest neighbours: what was fast on the most similar training tasks is tried first."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from cuda_agent_backend.agent.memory.offer import adapt
from cuda_agent_backend.agent.memory.task_distance import (
    TaskFeatures,
    distance,
    features_of,
    unlike,
)
from cuda_agent_backend.agent.policies.findings import differences
from trainer.rivals.protocol import Play, View, then_rest
from trainer.world.rows import Table

NEIGHBOURS = 8
WINNERS = 3
"""Of neighbours, as a memory would offer them."""
FAILED = math.log(0.1)
"""What a schedule that does not work counts, as a logarithm of its share of the best."""
PER_DIFFERENCE = 0.5
"""By how much each parameter that differs lowers the weight of a neighbour's schedule, as a factor."""
UNLIKE = 0.5
"""Share of operators not in common beyond which a task is no neighbour."""


class Nearest:
    """The mean over neighbours of what their nearest schedule was worth, weighted by how near both are."""

    name = "nearest"

    def __init__(self, neighbours: int = NEIGHBOURS) -> None:
        self.neighbours = neighbours
        self.known: list[tuple[TaskFeatures, Table]] = []

    def fit(self, tables: Sequence[Table], seed: int) -> None:
        """Remember."""
        self.known = [(features_of(t.parsed), t) for t in tables if t.best > 0]

    def play(self, view: View, seed: int) -> Play:
        """See `Rival`."""
        near = nearest(view, self.known, self.neighbours)
        if not near:
            return then_rest((), view)
        votes = [(1.0 / (0.05 + gap), _values(table)) for gap, table in near]
        kernels = [json.loads(s.to_json()) for s in view.schedules]
        texts = [s.to_json() for s in view.schedules]
        scores = [_score(text, own, votes) for text, own in zip(texts, kernels, strict=True)]
        return then_rest(sorted(view.order, key=lambda row: -scores[row]), view)


def nearest(
    view: View, known: Sequence[tuple[TaskFeatures, Table]], most: int
) -> list[tuple[float, Table]]:
    """The nearest tables with their distances, nearest first."""
    mine = view.features
    like = [
        (distance(mine, theirs), table)
        for theirs, table in known
        if theirs.structure == mine.structure or unlike(mine, theirs) <= UNLIKE
    ]
    return sorted(like, key=lambda pair: (pair[0], pair[1].id))[:most]


def winners(view: View, known: Sequence[tuple[TaskFeatures, Table]]) -> list[dict[str, Any]]:
    """What won on neighbours, with what differs made to fit, as `look` offers it."""
    found = []
    for gap, table in nearest(view, known, WINNERS):
        best = max(table.rows, key=lambda row: row.speed or 0.0)
        schedule = adapt(best.schedule, view.proposals, lambda s: s in view.rows)
        if schedule is not None:
            found.append({"distance": gap, "schedule": json.loads(schedule.to_json())})
    return found


_Values = Mapping[str, tuple[list[Any], float]]


def _values(table: Table) -> _Values:
    """By schedule: its kernels, and the logarithm of its share of the best."""
    found = {}
    for row in table.rows:
        share = math.log(row.speed / table.best) if row.speed else FAILED
        for text in row.schedules:
            found[text] = (json.loads(text), max(FAILED, share))
    return found


def _score(text: str, kernels: list[Any], votes: Sequence[tuple[float, _Values]]) -> float:
    total = weight = 0.0
    for near, values in votes:
        if text in values:
            share, likeness = values[text][1], 1.0
        else:
            gaps = [(differences(kernels, own), -value) for own, value in values.values()]
            gap, negative = min(gaps, default=(1000, 0.0))
            share, likeness = -negative, PER_DIFFERENCE ** min(gap, 20)
        total += near * likeness * share
        weight += near * likeness
    return total / weight if weight > 0 else FAILED
