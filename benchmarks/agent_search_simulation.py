"""Policies played on measured tables: a judgement is a look into the table, so that many searches take minutes."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.store import Facts
from cuda_agent_backend.agent.memory.offer import adapt
from cuda_agent_backend.agent.memory.task_distance import distance, features_of, unlike
from cuda_agent_backend.agent.protocol import Message, Policy, Stopped, ToolCall, tool_message
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.schedule_space import MOST, space_of
from sandbox.task.task import Task
from sandbox.timing.decision import order_bounds

CLOSE = 0.95
"""Of the best speed-up in the table: what a search has to reach."""
PAIRS = 12
"""Of one profile."""
QUIET = 0.015
"""Standard deviation of a profile's median, as a logarithm, on a machine that does nothing else."""
MOST_ERROR = 2.0
"""Times eager's own error that a kernel's may be."""
WORTH = 1.05
"""What a kernel must be faster by to be promoted, and so to be in a memory."""
TURNS = 400


@dataclass(frozen=True)
class Row:
    """One schedule: its candidate, its true speed-up over the baseline (None: it does not work), its paired ratios."""

    schedule: Schedule
    candidate: str
    speedup: float | None
    ratios: tuple[float, ...] = ()

    def profile(self, chance: random.Random, quiet: bool) -> dict[str, float]:
        """What one profile would say: the median of twelve pairs that were taken one after another, with its interval.

        quiet: a machine of `QUIET` instead, on which every profile is within a few percent of the truth.
        """
        passes = len(self.ratios) // PAIRS
        true = self.speedup or 0.0
        if quiet or not passes:
            median = true * math.exp(chance.gauss(0.0, QUIET)) if quiet else true
            return {"low": 0.97 * median, "median": median, "high": 1.03 * median}
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
    task: Task | None = None
    space: int = MOST

    @property
    def best(self) -> float:
        """The largest true speed-up."""
        return max((r.speedup or 0.0 for r in self.rows.values()), default=0.0)

    @property
    def close(self) -> frozenset[str]:
        """Candidates within `CLOSE` of the best."""
        rows = self.rows.values()
        return frozenset(r.candidate for r in rows if (r.speedup or 0.0) >= CLOSE * self.best > 0)


def table_of(facts: Facts) -> Table:
    """The table of one sample of the result file."""
    rows = {}
    proposals = tuple(Schedule.from_json(json.dumps(s)) for s in facts["proposals"])
    space = set(space_of(proposals).schedules())
    for row in facts["rows"]:
        schedule = Schedule.from_json(json.dumps(row["schedule"]))
        if schedule not in space:
            continue  # measured when the space was another one
        samples = dict(row.get("samples", {}))
        own = samples.pop("candidate", [])
        others = next(iter(samples.values()), [])
        ratios = tuple(b / c for b, c in zip(others, own, strict=True))
        rows[schedule] = Row(schedule, row["candidate"], row.get("speedup"), ratios)
    task = Task.from_json(json.dumps(facts["task"]))
    return Table(proposals, rows, facts["room"], task)


def table_of_products(outcome: Facts) -> Table:
    """The table of one case of ``h200-products.json``: all that a sketch proposed, timed on a quiet machine."""
    times, errors = outcome["times"], outcome["errors"]
    baseline = min(times["eager"], times["inductor"])
    rows: dict[Schedule, Row] = {}
    for number in range(len(outcome["variants"])):
        name = f"v{number}"
        schedule = Schedule.from_json(outcome["variants"][name]["schedule"])
        works = name in times and errors.get(name, math.inf) <= MOST_ERROR
        rows.setdefault(schedule, Row(schedule, name, baseline / times[name] if works else None))
    return Table(tuple(rows), rows, math.inf, None, len(rows))


@dataclass
class Game:
    """Tools that answer from a table. judged: candidates in the order in which they were profiled. until: candidates of
    which one ends the game. quiet: see `Row.profile`.
    """

    table: Table
    seed: int = 0
    neighbours: Sequence[Facts] = ()
    until: frozenset[str] = frozenset()
    quiet: bool = False
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

    def _answer(self, call: ToolCall) -> Facts:
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

    def _profile(self, row: Row) -> Facts:
        self.judged.append(row.candidate)
        self.over = row.candidate in self.until
        if row.speedup is None:
            return {"ok": False, "status": "wrong", "reason": "wrong"}
        return {"ok": True, "speedup": row.profile(self._chance, self.quiet)}


def needed(judged: Iterable[str], table: Table) -> int | None:
    """Judgements until a candidate close to the best was among them; None where that never came."""
    return next((n for n, name in enumerate(judged, 1) if name in table.close), None)


def at_random(table: Table, seed: int) -> list[str]:
    """All candidates of the table in uniformly random order."""
    names = list(dict.fromkeys(row.candidate for row in table.rows.values()))
    random.Random(seed).shuffle(names)
    return names


def as_planned(table: Table, rounds: int = 3, size: int = 4) -> list[str]:
    """The plan before there was a model: proposals in order, by rounds of ``size``, as long as a round brings 3 %."""
    order = [table.rows[s] for s in table.proposals if s in table.rows]
    judged: list[Row] = []
    best = 0.0
    for start in range(0, min(len(order), rounds * size), size):
        judged += order[start : start + size]
        found = max(row.speedup or 0.0 for row in judged)
        if found <= 1.03 * best:
            break
        best = found
    return list(dict.fromkeys(row.candidate for row in judged))


def remembered(name: str, tables: Mapping[str, Table], most: int = 3) -> list[dict[str, Any]]:
    """What a memory would offer for a task, had the searches of all other tasks ended with their best schedules."""
    mine = tables[name]
    if mine.task is None:
        return []
    near = features_of(mine.task)
    found: list[tuple[float, dict[str, Any]]] = []
    for other, table in tables.items():
        if other == name or table.task is None or table.best < WORTH:
            continue
        theirs = features_of(table.task)
        if theirs.structure != near.structure and unlike(theirs, near) > 0.5:
            continue
        best = max(table.rows.values(), key=lambda row: row.speedup or 0.0)
        schedule = adapt(best.schedule, mine.proposals, lambda s: s in mine.rows)
        if schedule is not None:
            gap = distance(near, theirs)
            found.append((gap, {"distance": gap, "schedule": json.loads(schedule.to_json())}))
    return [offer for _, offer in sorted(found, key=lambda pair: pair[0])[:most]]
