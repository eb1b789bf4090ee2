"""An episode's tools, answering from a table: the same tools, arguments and messages as those that ask the judge.

A schedule that was not measured is answered as one that cannot be built. Not in a table, and so not in an answer, are
counts of instructions. There are no files: a policy that writes source needs a judge.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from cuda_agent_backend.agent.environment import Environment
from cuda_agent_backend.agent.memory.recall import Neighbour
from cuda_agent_backend.agent.tools.tool import Answer
from cuda_agent_backend.agent.tools.toolbox import Toolbox
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.accuracy.report import AccuracyReport, OutputReport
from sandbox.compile.disassembly import Inspection
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Buffer, Launch, Plan
from sandbox.task.task import Task
from sandbox.timing import decision, roofline
from sandbox.timing.decision import SpeedReport
from sandbox.timing.machine import Ceilings
from sandbox.verdict import Baselines, Correct, TooSlow, Unchecked, Verdict, reward
from trainer.world.replay import Replay
from trainer.world.rows import Row, Table

NOT_MEASURED = "does not compile: it is not in the table that answers here"
NO_INSTRUCTIONS = "a table has no instructions"


@dataclass(frozen=True)
class Remembered(Candidate):
    """A candidate of a table: its source is gone, its name is known."""

    name: str = ""

    @cached_property
    def digest(self) -> str:
        """As far as the table has it."""
        return self.name


@dataclass(frozen=True)
class Built:
    """What compiling told."""

    facts: Mapping[str, Mapping[str, Any]]


class TableBench:
    """A bench that answers for one table. spent_s: what its answers would take of a judge, by what measuring took."""

    def __init__(self, table: Table, seed: int = 0) -> None:
        self.table, self.replay, self.spent_s = table, Replay(table, seed), 0.0
        self.rows = {row.candidate: number for number, row in enumerate(table.rows)}

    def row(self, candidate: Candidate) -> Row:
        """Of a candidate that the table has."""
        return self.table.rows[self.rows[candidate.digest]]

    def baselines(self, task: Task) -> Baselines:
        """See `Judge.baselines`."""
        self.spent_s += self.table.steps["baselines"]
        return self.table.baselines

    def ceilings(self) -> Ceilings:
        """See `Judge.ceilings`."""
        return self.table.rates

    def compile(self, candidate: Candidate) -> Built:
        """See `Judge.compile`; of those that compile."""
        row = self.row(candidate)
        self.spent_s += row.compile_s
        return Built(json.loads(row.facts))

    def inspect(self, candidate: Candidate) -> Inspection:
        """See `Judge.inspect`."""
        return Inspection(json.loads(self.row(candidate).facts), {}, NO_INSTRUCTIONS)

    def verify(self, task: Task, candidate: Candidate) -> Correct:
        """See `Judge.verify`; of those that are right."""
        row = self.row(candidate)
        self.spent_s += row.check_s
        return Correct(_accuracy(row))

    def profile(self, task: Task, candidate: Candidate, *, worth: float) -> Correct | Unchecked:
        """See `Judge.profile`; of those that are right."""
        number = self.rows[candidate.digest]
        row = self.table.rows[number]
        speed = self._report(self.replay.draw(number, worth))
        seconds = speed.seconds["candidate"]
        table = self.table
        achieved = roofline.achieved(task, table.operations, seconds, table.rates)
        self.spent_s += row.profile_s
        if speed.speedup.median < worth:
            return Unchecked(speed, achieved)
        self.spent_s += row.check_s
        return Correct(_accuracy(row), speed, achieved)

    def judge(self, task: Task, candidate: Candidate) -> Verdict:
        """See `Judge.judge`: by all timings that there are. The slower baseline's are the faster one's, scaled by what
        both take alone."""
        row = self.row(candidate)
        self.spent_s += row.check_s + row.time_s
        pairs, table = enough_pairs(row.pairs), self.table
        other = "inductor" if table.rival == "eager" else "eager"
        times = {"eager": table.eager_s, "inductor": table.inductor_s}
        scale = max(1.0, times[other] / times[table.rival])
        samples = {
            table.rival: [b for b, _ in pairs],
            other: [scale * b for b, _ in pairs],
            "candidate": [c for _, c in pairs],
        }
        speed, accuracy = decision.report(samples), _accuracy(row)
        outcome = Correct(accuracy, speed) if speed.wins else TooSlow(accuracy, speed)
        status = "wins" if speed.wins else outcome.status
        return Verdict(status, outcome.reason, reward(outcome), accuracy, speed)

    def _report(self, pairs: Sequence[tuple[float, float]]) -> SpeedReport:
        samples = {self.table.rival: [b for b, _ in pairs], "candidate": [c for _, c in pairs]}
        return decision.report(samples)


class ReplayTools(Toolbox):
    """The tools on a table."""

    bench: TableBench

    @staticmethod
    def of(table: Table, seed: int = 0, neighbours: Sequence[Neighbour] = ()) -> ReplayTools:
        """seed: of what each timing says. One call after another: each counts its own seconds."""
        bench = cast(Any, TableBench(table, seed))
        return ReplayTools(table.parsed, bench, neighbours=neighbours, compile_jobs=1)

    @property
    def table(self) -> Table:
        """What answers."""
        return self.bench.table

    @property
    def best_known(self) -> float:
        """The largest speed-up over the faster baseline in the table; 0 where nothing works."""
        return self.table.best

    def _covered(self) -> tuple[str, list[Schedule]] | NotCovered:
        return self.table.sketch, [Schedule.from_json(text) for text in self.table.proposals]

    def _written(self, schedule: Schedule) -> Candidate | NotCovered:
        text = schedule.to_json()
        row = self._by_schedule.get(text)
        if row is None:
            return NotCovered(self._refused.get(text, NOT_MEASURED))
        target = cast(Any, self.task.target)
        language = "cuda" if target == "cuda" else "c++"
        return Remembered(
            target, cast(Any, language), "", self._plan, "sketch", text, row.candidate
        )

    def _add(self, candidate: Candidate, name: str) -> Answer:
        answer = self._said_of(candidate)
        if "error" in answer:
            self.bench.spent_s += self.bench.row(candidate).compile_s
            return answer
        return super()._add(candidate, name)

    def _verify(self, candidate: str) -> Answer:
        return self._said_of(self._candidate(candidate)) or super()._verify(candidate)

    def _profile(self, candidate: str) -> Answer:
        said = self._said_of(self._candidate(candidate))
        facts = self.built.get(candidate)
        return (said | ({"facts": facts} if facts else {})) if said else super()._profile(candidate)

    def _submit(self, candidate: str = "", reason: str = "") -> Answer:
        said = self._said_of(self._candidate(candidate)) if candidate else {}
        if not said:
            return super()._submit(candidate, reason)
        self.verdicts[candidate] = Verdict(said["status"], said["reason"], -1.0)
        answer: Answer = {"ok": False, "reward": -1.0}
        return answer | {n: said[n] for n in ("status", "reason", "outputs") if n in said}

    def _said_of(self, candidate: Candidate) -> Answer:
        """What the judge said of one that does not work; nothing of one that does."""
        text = self.bench.row(candidate).answer
        found: Answer = json.loads(text) if text else {}
        return found

    def worked(self) -> float:
        """See `Toolbox`: what the answers so far took when they were measured."""
        return self.bench.spent_s

    @cached_property
    def _by_schedule(self) -> dict[str, Row]:
        return {text: row for row in self.table.rows for text in row.schedules}

    @cached_property
    def _refused(self) -> dict[str, str]:
        return {one.schedule: one.reason for one in self.table.refused}

    @cached_property
    def _plan(self) -> Plan:
        """As far as it matters: the task's own tensors."""
        task = self.task
        inputs = [Buffer(f"in{i}", "input", spec) for i, spec in enumerate(task.inputs)]
        outputs = [Buffer(f"out{i}", "output", spec) for i, spec in enumerate(task.output_specs)]
        return Plan(cast(Any, task.target), (*inputs, *outputs), (Launch("kernel"),))


def enough_pairs(pairs: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """The pairs of one that works, as many as a verdict needs. Away from a table's best it stopped being timed early,
    where the judge goes on until it is sure; the least of these pairs is then the lower bound."""
    rounds = -(-decision.MIN_PAIRS // len(pairs))
    return pairs if rounds == 1 else (list(pairs) * rounds)[: decision.MIN_PAIRS]


def replay_environment(
    table: Table, seed: int = 0, neighbours: Sequence[Neighbour] = ()
) -> Environment:
    """The environment of a table's task, for policies that need no files."""
    return Environment(table.parsed, ReplayTools.of(table, seed, neighbours))


def _accuracy(row: Row) -> AccuracyReport:
    return AccuracyReport((OutputReport(0, True, error_ratio=row.error_ratio or 0.0),))
