"""Candidate against baselines: equips the workers, takes the samples, checks outputs of timed runs."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sandbox import roofline, timing
from sandbox.accuracy import Draw, compare_draws
from sandbox.expected import InputSet, Source
from sandbox.machine import Ceilings
from sandbox.protocol import NO_SLOT
from sandbox.rounds import Contestant, Effort, Record, Stopwatch
from sandbox.session import CANDIDATE, EAGER, INDUCTOR, TIMED_SETS, Session
from sandbox.supervisor import RunTime, Trouble, WorkerProcess
from sandbox.task import Task
from sandbox.timing import Control, SpeedReport
from sandbox.verdict import Baselines, Failed, Failure, Noisy, Outcome, Wrong

if TYPE_CHECKING:
    import torch

CHECKED_RUNS, CHECKED_LATER = 6, 2
"""So many timed runs of the candidate, picked at random, have their outputs checked as well: of the first rounds, of
those between any two looks after them, and one run after all. Who leaves out half of the work, the least that a median
shows, passes once in a hundred times; who begins with it later has to leave out more to move the median."""
CONTROL = Effort(min_rounds=10, max_rounds=24, seconds=3.0)
FAR_BEHIND = 1.5
"""A baseline slower than the other by this factor takes part in the first rounds only."""
FIRST_ROUNDS = 12
SETTLE_SECONDS = 0.005
"""Lets threads of this process, which spin a while after their work, go to sleep."""
TIMED_DISTRIBUTIONS = ("normal", "uniform", "normal")


class Race:
    """One race for a session's task. eager_task: what eager mode runs, if not the task itself."""

    def __init__(
        self,
        session: Session,
        baseline: WorkerProcess,
        candidate: WorkerProcess,
        eager_task: Task | None,
        ceilings: Callable[[], Ceilings],
    ) -> None:
        self.session, self.ceilings = session, ceilings
        self.baseline, self.candidate = baseline, candidate
        self.eager_task = eager_task or session.task
        self._fetched: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
        """Inputs and outputs of timed runs that are not checked yet."""
        self._chosen: frozenset[int] = frozenset()
        self._timed_runs = self._checked_runs = 0
        self._wrong: Wrong | Failed | None = None

    def baselines(self) -> Baselines | Failure:
        """Times of eager and Inductor alone; measured once per session and eager task."""
        known = self.session.baselines.get(self.eager_task.digest)
        if known is not None:
            return known
        sets = self._timed_sets(fresh=False)
        trouble = self._equip_baseline(sets)
        if trouble is not None:
            return trouble
        watch = self._watch(sets, self.baseline)
        contestants = [
            Contestant("eager", self.baseline, EAGER),
            Contestant("inductor", self.baseline, INDUCTOR),
            Contestant("harness", self.baseline, NO_SLOT),
        ]
        trouble = watch.warm_up(contestants[:2])
        if trouble is not None:
            return trouble
        record = watch.rounds(contestants, Effort(6, 20, 2.0))
        if not isinstance(record, Record):
            return record
        floor = roofline.reachable_seconds(self.session.task, self.ceilings())
        found = Baselines(
            _median(record.device["eager"]),
            _median(record.device["inductor"]),
            _median(record.device["harness"]),
            floor,
        )
        self.session.baselines[self.eager_task.digest] = found
        return found

    def run(self, effort: Effort, *, fresh: bool = False, early: bool = False) -> Record | Failure:
        """Samples of the candidate and both baselines. early: stop when the answer is clear."""
        field = self._line_up(fresh)
        if not isinstance(field, list):
            return field
        watch = self._watch(list(self.session.timed), self.baseline, self.candidate)
        trouble = watch.warm_up(field)
        if trouble is not None:
            return trouble
        stop = (lambda record: timing.settled(record.device)) if early else None
        return watch.rounds(field, effort, stop)

    def judge(self, effort: Effort, evidence: dict[str, Any]) -> SpeedReport | Outcome:
        """The timing that promotion rests on: fresh inputs, controls, outputs checked."""
        self._timed_runs = 0
        self._choose(range(effort.min_rounds), CHECKED_RUNS)
        field = self._line_up(fresh=True)
        if not isinstance(field, list):
            return field
        watch = self._watch(list(self.session.timed), self.baseline, self.candidate)
        trouble = watch.warm_up(field)
        if trouble is not None:
            return trouble
        before = self._control(watch)
        if not isinstance(before, Record):
            return before
        record = watch.rounds(field, effort, self._look, self._after_run)
        if not isinstance(record, Record):
            return record
        if self._wrong is not None:
            return self._wrong
        trouble = self._last_run(watch, field)
        if trouble is not None:
            return trouble
        after = self._control(watch)
        if not isinstance(after, Record):
            return after
        return self._decide(before, record, after, evidence)

    def _choose(self, runs: range, count: int) -> None:
        """Which of these timed runs are checked."""
        self._chosen = frozenset(secrets.SystemRandom().sample(runs, min(count, len(runs))))

    def _look(self, record: Record) -> bool:
        """Between rounds: whether to stop. What was fetched is checked and given up; the next look is at twice as many
        rounds."""
        self._check_fetched()
        time.sleep(SETTLE_SECONDS)
        done = self._timed_runs
        self._choose(range(done, 2 * done), CHECKED_LATER)
        return self._wrong is not None or timing.settled(record.device)

    def _decide(
        self, before: Record, record: Record, after: Record, evidence: dict[str, Any]
    ) -> SpeedReport | Outcome:
        first, second = (_known(before, name) + _known(after, name) for name in ("A", "A'"))
        control = timing.control(first, second)
        evidence["samples"] = {"device": record.device, "wall": record.wall}
        evidence["control"] = {"A": first, "A'": second}
        evidence["timed_inputs"] = [
            {**inputs.source.to_dict(), "stirs": len(inputs.stirs)} for inputs in self.session.timed
        ]
        self._check_fetched()
        evidence["checked_runs"] = self._checked_runs
        if self._wrong is not None:
            return self._wrong
        if not control.quiet:
            return Noisy(control.reason)
        return self._report(record, control)

    def _report(self, record: Record, control: Control) -> SpeedReport:
        """On cuda, device time decides and wall time must not be worse."""
        from dataclasses import replace

        found = timing.report(record.device, aa=control)
        wall = timing.report(record.wall)
        return found if wall.speedup.median >= 1 else replace(found, wins=False)

    def _line_up(self, fresh: bool) -> list[Contestant] | Failure:
        sets = self._timed_sets(fresh)
        baselines = self.baselines()
        if not isinstance(baselines, Baselines):
            return baselines
        trouble = self._equip_baseline(sets) or self.session.share_outputs(self.candidate)
        for inputs in sets:
            trouble = trouble or self.session.share(self.candidate, inputs)
        if trouble is not None:
            return trouble
        best = baselines.best_seconds
        times = {"eager": baselines.eager_seconds, "inductor": baselines.inductor_seconds}
        slots = {"eager": EAGER, "inductor": INDUCTOR}
        field = [
            Contestant(
                name,
                self.baseline,
                slots[name],
                FIRST_ROUNDS if seconds > FAR_BEHIND * best else None,
            )
            for name, seconds in times.items()
        ]
        self._faster = min(field, key=lambda contestant: times[contestant.name])
        return [*field, Contestant("candidate", self.candidate, CANDIDATE)]

    def _equip_baseline(self, sets: list[InputSet]) -> Trouble | None:
        session = self.session
        trouble = session.prepare(self.baseline, INDUCTOR, session.task, "inductor")
        trouble = trouble or session.prepare(self.baseline, EAGER, self.eager_task, "eager")
        for inputs in sets:
            trouble = trouble or session.share(self.baseline, inputs)
        return trouble

    def _timed_sets(self, fresh: bool) -> list[InputSet]:
        session = self.session
        if fresh or not session.timed:
            session.timed = [
                session.input_set(number, Source(distribution, secrets.randbits(63)))
                for number, distribution in zip(range(TIMED_SETS), TIMED_DISTRIBUTIONS, strict=True)
            ]
        return session.timed

    def _watch(self, sets: list[InputSet], *workers: WorkerProcess) -> Stopwatch:
        def renew(inputs: InputSet) -> Trouble | None:
            return self._renew(inputs, workers)

        return Stopwatch(sets, self.session.timeouts.run, secrets.randbits(63), renew)

    def _renew(self, inputs: InputSet, workers: Sequence[WorkerProcess]) -> Trouble | None:
        """Other values for the next round: what a candidate kept of earlier calls is of no use to it."""
        inputs.restir(secrets.randbits(63))
        trouble: Trouble | None = None
        for worker in workers:
            trouble = trouble or self.session.share(worker, inputs)
        return trouble

    def _control(self, watch: Stopwatch) -> Record | Failure:
        slot = self._faster.slot
        pair = [Contestant(name, self.baseline, slot) for name in ("A", "A'")]
        return watch.rounds(pair, CONTROL)

    def _after_run(self, contestant: Contestant, inputs: InputSet) -> Trouble | None:
        """Keep the outputs of some timed runs; they are checked when the timing is over."""
        if contestant.slot != CANDIDATE:
            return None
        self._timed_runs += 1
        if self._timed_runs - 1 not in self._chosen:
            return None
        outputs = self.session.fetch(contestant.worker)
        if isinstance(outputs, str):
            return Failed("fetch", outputs)
        if not isinstance(outputs, list):
            return outputs
        self._fetched.append((inputs.snapshot(), outputs))
        time.sleep(SETTLE_SECONDS)
        return None

    def _last_run(self, watch: Stopwatch, field: list[Contestant]) -> Trouble | None:
        """One more run, always checked: what a candidate that counts its calls has come to by then."""
        mine = next(c for c in field if c.slot == CANDIDATE)
        inputs = self.session.timed[-1]
        trouble = self._renew(inputs, [mine.worker])
        if trouble is not None:
            return trouble
        result = watch.once(mine, inputs)
        if not isinstance(result, RunTime):
            return result
        outputs = self.session.fetch(mine.worker)
        if isinstance(outputs, str):
            return Failed("fetch", outputs)
        if not isinstance(outputs, list):
            return outputs
        self._fetched.append((inputs.snapshot(), outputs))
        return None

    def _check_fetched(self) -> None:
        """Check the outputs fetched so far, and give them up."""
        for inputs, outputs in self._fetched:
            self._checked_runs += 1
            self._wrong = self._wrong or self._compare(inputs, outputs)
        self._fetched.clear()

    def _compare(
        self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> Wrong | Failed | None:
        expected = self.session.expected_of(inputs)
        if isinstance(expected, Failed):
            return expected
        report = compare_draws([Draw(outputs, expected.eager, expected.oracle, expected.indices)])
        return None if report.passes else Wrong("a timed run", report.reason, report)


def _median(samples: list[float | None]) -> float:
    return statistics.median([sample for sample in samples if sample is not None])


def _known(record: Record, name: str) -> list[float]:
    return [sample for sample in record.device[name] if sample is not None]
