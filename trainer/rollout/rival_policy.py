"""The arena's rivals as policies that speak: demonstrations, from which a model made from nothing learns to choose."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from cuda_agent_backend.agent.protocol import Message, Policy, Schema, ToolCall, Turn
from trainer.rivals.protocol import Play, Rival, view_of
from trainer.rollout.episodes import Plan
from trainer.world.replay import Judgement
from trainer.world.rows import Table

FOLDS = 5


class RivalPolicy:
    """One episode of a rival: it looks, has one row after another sketched and profiled, and the best one judged.

    It ends where the rival asks for no more, or the time is up.
    """

    def __init__(self, rival: Rival, table: Table, seed: int) -> None:
        self.name, self._table = rival.name, table
        self._game: Play = rival.play(view_of(table), seed)
        self._row: int | None = None
        self._begun = False
        self._speeds: dict[str, float] = {}
        self._calls = 0

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
        """See `Policy`."""
        last = messages[-1]
        if last["role"] != "tool":
            return self._submit() if self._begun else self._call("look")
        answer = json.loads(last["content"])
        if last["name"] == "look":
            self._begun = True
            return self._next(None)
        if last["name"] == "sketch" and answer.get("ok"):
            return self._call("profile", candidate=answer["candidate"])
        if last["name"] in ("sketch", "profile"):
            return self._next(self._judged(answer))
        return self._call("submit", reason="the best one does not win")

    def _next(self, told: Judgement | None) -> Turn:
        try:
            self._row = next(self._game) if told is None else self._game.send(told)
        except StopIteration:
            return self._submit()
        schedule = json.loads(self._table.rows[self._row].schedules[0])
        return self._call("sketch", schedule=schedule)

    def _judged(self, answer: dict[str, Any]) -> Judgement:
        assert self._row is not None
        row = self._table.rows[self._row]
        speed = answer.get("speedup")
        if speed is None:
            return Judgement(self._row, row.status, False, 0.0, 0.0, 0.0, row.judging_s)
        self._speeds[row.candidate] = speed["median"]
        bounds = (speed["low"], speed["median"], speed["high"])
        return Judgement(self._row, row.status, True, *bounds, row.judging_s)

    def _submit(self) -> Turn:
        """The best is judged even where it will not win: an episode in which nothing was is worth less."""
        best = max(self._speeds, key=self._speeds.__getitem__, default="")
        if not best:
            return self._call("submit", reason="nothing works")
        return self._call("submit", candidate=best)

    def _call(self, name: str, **arguments: Any) -> Turn:
        self._calls += 1
        return Turn("", (ToolCall.of(f"call_{self._calls}", name, **arguments),))


class Tutors:
    """A rival fitted several times, so that each task is shown by one that never saw its family: what a rival does on
    what it has learnt by heart is no example of choosing.

    tables: to learn from, and to play. make: a new rival. seed: of fitting.
    """

    def __init__(self, make: Callable[[], Rival], tables: Sequence[Table], seed: int) -> None:
        self._make, self._seed = make, seed
        self._tables = {table.id: table for table in tables}
        self._fitted: dict[int, Rival] = {}

    def policy(self, plan: Plan) -> Policy:
        """For one episode. Raises KeyError where the plan's task has no table."""
        table = self._tables[plan.task]
        return RivalPolicy(self._of(_fold(table.family)), table, _number(plan.seed))

    def _of(self, fold: int) -> Rival:
        if fold not in self._fitted:
            rival = self._make()
            others = [t for t in self._tables.values() if _fold(t.family) != fold]
            rival.fit(others, self._seed)
            self._fitted[fold] = rival
        return self._fitted[fold]


def _fold(family: str) -> int:
    return _number(family) % FOLDS


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")
