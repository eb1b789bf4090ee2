"""A search's tools on a landscape of made-up speeds: what a policy tries is then known in advance."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent_backend.agent.protocol import Message, Policy, Stopped, ToolCall, tool_message
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.timing.decision import order_bounds

CLOSE = 0.95
"""Of the best speed-up: what a search has to reach."""
PAIRS = 12
"""Of one profile."""
TURNS = 400


@dataclass(frozen=True)
class Row:
    """One schedule: its candidate, its true speed-up over the baseline (None: it does not work), its paired ratios."""

    schedule: Schedule
    candidate: str
    speedup: float | None
    ratios: tuple[float, ...] = ()

    def profile(self, chance: random.Random) -> dict[str, float]:
        """What one profile would say: the median of twelve pairs that were taken one after another, with its interval;
        the truth where there are no pairs."""
        passes = len(self.ratios) // PAIRS
        if not passes:
            true = self.speedup or 0.0
            return {"low": 0.97 * true, "median": true, "high": 1.03 * true}
        start = PAIRS * chance.randrange(passes)
        ordered = sorted(self.ratios[start : start + PAIRS])
        low, high = order_bounds(PAIRS, 0.95)
        return {"low": ordered[low], "median": statistics.median(ordered), "high": ordered[high]}


@dataclass(frozen=True)
class Table:
    """All that a simulated search needs to know of a task."""

    proposals: tuple[Schedule, ...]
    rows: Mapping[Schedule, Row]
    room: float = 10.0

    @property
    def best(self) -> float:
        """The largest true speed-up."""
        return max((r.speedup or 0.0 for r in self.rows.values()), default=0.0)

    @property
    def close(self) -> frozenset[str]:
        """Candidates within `CLOSE` of the best."""
        rows = self.rows.values()
        return frozenset(r.candidate for r in rows if (r.speedup or 0.0) >= CLOSE * self.best > 0)


@dataclass
class Game:
    """Tools that answer from a table. judged: candidates in the order in which they were profiled. until: candidates of
    which one ends the game.
    """

    table: Table
    seed: int = 0
    neighbours: Sequence[dict[str, Any]] = ()
    until: frozenset[str] = frozenset()
    judged: list[str] = field(default_factory=list)
    submitted: list[str] = field(default_factory=list)
    compiled: int = 0
    over: bool = False

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._by_name = {row.candidate: row for row in self.table.rows.values()}

    def play(self, policy: Policy) -> Game:
        """Until the policy submits something, or `TURNS` turns are over."""
        messages: list[Message] = [{"role": "user", "content": "a task"}]
        for _ in range(TURNS):
            turn = policy.act(messages, ())
            if isinstance(turn, Stopped) or self.over or not turn.calls:
                break
            messages.append(turn.to_message())
            messages += [tool_message(call, self._answer(call)) for call in turn.calls]
            if self.over:
                break
        return self

    def _answer(self, call: ToolCall) -> dict[str, Any]:
        arguments = json.loads(call.arguments)
        match call.name:
            case "look":
                schedules = [json.loads(s.to_json()) for s in self.table.proposals]
                about = {
                    "room": min(self.table.room, 1e9),
                    "sketch": "some",
                    "schedules": schedules,
                }
                return {"ok": True, **about, "neighbours": list(self.neighbours)}
            case "sketch":
                row = self.table.rows.get(Schedule.from_json(json.dumps(arguments["schedule"])))
                if row is None:
                    return {"ok": False, "error": "the schedule does not fit"}
                self.compiled += 1
                return {"ok": True, "candidate": row.candidate}
            case "profile":
                return self._profile(self._by_name[arguments["candidate"]])
        self.over = True
        if "candidate" in arguments:
            self.submitted.append(arguments["candidate"])
        return {"ok": True}

    def _profile(self, row: Row) -> dict[str, Any]:
        self.judged.append(row.candidate)
        self.over = row.candidate in self.until
        if row.speedup is None:
            return {"ok": False, "status": "wrong", "reason": "wrong"}
        return {"ok": True, "speedup": row.profile(self._chance)}


def needed(judged: Iterable[str], table: Table) -> int | None:
    """Judgements until a candidate close to the best was among them; None where that never came."""
    return next((n for n, name in enumerate(judged, 1) if name in table.close), None)


def at_random(table: Table, seed: int) -> list[str]:
    """All candidates of the table in uniformly random order."""
    names = list(dict.fromkeys(row.candidate for row in table.rows.values()))
    random.Random(seed).shuffle(names)
    return names
