"""Today's search, a Gaussian process over a task's schedules, without its stops: cold, with a memory, and blind."""

from __future__ import annotations

import json
from collections.abc import Sequence

from cuda_agent_backend.agent.memory.task_distance import TaskFeatures, features_of
from cuda_agent_backend.agent.policies.search.factory import make
from cuda_agent_backend.agent.policies.search.tuner import Tuner
from cuda_agent_backend.agent.policies.spec import PolicySpec
from cuda_agent_backend.agent.tools.workbench import WORTH_SUBMITTING
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.verdict import Wrong
from trainer.rivals.nearest import winners
from trainer.rivals.protocol import Play, View
from trainer.world.rows import Table

PATIENT = -1.0
"""The least gain of a search that goes on until all is tried: what its order is worth, apart from when it stops."""


class Search:
    """The policy `bayesian`. warm: told of what won on its neighbours among the training tasks. blind: a control that
    hears of each judgement only whether it worked, and so must be worse."""

    def __init__(self, warm: bool = False, blind: bool = False) -> None:
        self.warm, self.blind = warm, blind
        self.name = "search" + ("-warm" if warm else "") + ("-blind" if blind else "")
        self.known: list[tuple[TaskFeatures, Table]] = []

    def fit(self, tables: Sequence[Table], seed: int) -> None:
        """Remember, where it is warm."""
        if self.warm:
            self.known = [(features_of(t.parsed), t) for t in tables if t.best > 0]

    def play(self, view: View, seed: int) -> Play:
        """See `Rival`."""
        won: dict[Schedule, float] = {}
        for offer in winners(view, self.known) if self.warm else ():
            row = view.rows[Schedule.from_json(json.dumps(offer["schedule"]))]
            won.setdefault(view.schedules[row], 1.0 / (1.0 + offer["distance"]))
        ordered = list(dict.fromkeys([*won, *(view.schedules[row] for row in view.order)]))
        first = max(make(PolicySpec("bayesian")).first, len(won) + 1)
        tuner = Tuner(ordered, dict(enumerate(won.values())), first, True, seed, PATIENT)
        return driven(tuner, view, self.blind)


def driven(tuner: Tuner, view: View, blind: bool = False) -> Play:
    """Rows in the order in which a tuner of a view's schedules wants them judged, one by one."""
    while wanted := tuner.wanted(WORTH_SUBMITTING, 1):
        row = view.rows[tuner.schedules[wanted[0]]]
        name = view.names[row]
        tuner.made(wanted[0], name)
        found = yield row
        if not found.works:
            tuner.spoiled(name)
            if found.status == Wrong.status:
                tuner.too_inexact(name)
        elif blind:
            tuner.timed(name, {"low": 1.0, "median": 1.0, "high": 1.0})
        else:
            tuner.timed(name, {"low": found.low, "median": found.speed, "high": found.high})
        tuner.end_round()
