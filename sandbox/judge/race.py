"""Candidate against baselines: equips the workers, takes the samples, checks outputs of timed runs."""

from __future__ import annotations

import math
import secrets
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sandbox.failures import Crashed, Failed, Failure, Noisy, TimedOut
from sandbox.judge.glance import are_sure, first_look, is_enough
from sandbox.judge.input_sets import InputSet, Source
from sandbox.judge.rounds import Contestant, Effort, Record, RunTime, Stopwatch
from sandbox.judge.session import CANDIDATE, EAGER, INDUCTOR, TIMED_SETS, Session
from sandbox.judge.spot_check import Aside, SpotCheck
from sandbox.memory.footprint import bytes_of
from sandbox.task.task import Task
from sandbox.timing import decision as timing
from sandbox.timing import roofline
from sandbox.timing.decision import SpeedReport
from sandbox.timing.machine import Ceilings, cache_bytes
from sandbox.verdict import Baselines, Outcome
from sandbox.workers.protocol import NO_SLOT
from sandbox.workers.supervisor import Clock, Trouble, WorkerProcess

CONTROL = Effort(min_rounds=10, max_rounds=24, seconds=3.0)
LONG_CONTROL = Effort(min_rounds=10, max_rounds=192, seconds=6.0)
"""Where a baseline of a few microseconds, or one that only writes, scatters: its median is sure once it ran more."""
FAR_BEHIND = 1.5
"""A baseline slower than the other by this factor takes part in the first rounds only."""
FIRST_ROUNDS = 12
FAR_LARGER = 4
"""Times the last cache: inputs of which no part is left in it when all were read."""
MOST_CHANGES = 16
"""After so many changes in place an input set of a frugal session is drawn anew: a process that gave its values up has
to repeat all of them."""
BESIDE = "(candidate's process)"
TIMED_DISTRIBUTIONS = ("normal", "uniform", "normal")


@dataclass(frozen=True)
class Timed:
    """Samples of a race, and of the control before and after: the baseline against itself."""

    record: Record
    first: list[float]
    second: list[float]


@dataclass(frozen=True)
class Run:
    """What came of timing, and outputs of timed runs that are still to be compared."""

    found: Timed | Failure
    check: SpotCheck


class Race:
    """One race for a session's task. eager_task: what eager mode runs, if not the task itself."""

    def __init__(
        self,
        session: Session,
        baseline: WorkerProcess,
        candidate: WorkerProcess,
        eager_task: Task | None,
        ceilings: Callable[[bool], Ceilings],
    ) -> None:
        self.session, self.ceilings = session, ceilings
        self.baseline, self.candidate = baseline, candidate
        self.eager_task = eager_task or session.task
        self._drawn = False
        self._field: list[Contestant] = []
        self._lost: Trouble | None = None
        """How the candidate's process ended while it was given inputs: the next one holds no candidate."""

    def equip(self) -> Trouble | None:
        """Give the baseline worker what it runs, without running it, and both workers inputs; done once. Needs no
        device of its own. What goes wrong in the candidate's worker comes up again when that is needed."""
        sets = self._timed_sets(fresh=False)
        trouble = self._equip_baseline(sets)
        if trouble is None and self.session.task.target == "cuda":  # on cpu nothing is drawn
            shared = (self.session.share(self.candidate, inputs) for inputs in sets)
            found = next((trouble for trouble in shared if trouble is not None), None)
            self._lost = self._lost or (found if isinstance(found, Crashed | TimedOut) else None)
        return trouble

    @property
    def is_equipped(self) -> bool:
        """Whether a glance begins at once: on cuda, inputs that a judgement has drawn since are not in all workers."""
        workers, sets = (self.baseline, self.candidate), self.session.timed
        return self.session.task.target == "cpu" or all(
            self.session.has_drawn(worker, inputs) for worker in workers for inputs in sets
        )

    def line_up(self) -> list[Contestant] | Failure:
        """All contestants of a judgement and its fresh inputs, without running them; what is done already, for workers
        that are still the same, is not done again. Needs no device of its own once the baselines are known."""
        field = self._line_up(fresh=not self._drawn)
        if not isinstance(field, list):
            return field
        self._drawn = True
        if self.session.task.target != "cuda":
            return field
        beside = self._beside()
        return [*field, beside] if isinstance(beside, Contestant) else beside

    @property
    def known(self) -> Baselines | None:
        """Times of eager and Inductor alone, if they were measured."""
        return self.session.baselines.get(self.eager_task.digest)

    def baselines(self) -> Baselines | Failure:
        """Times of eager and Inductor alone; measured once per session and eager task."""
        if self.known is not None:
            return self.known
        trouble = self._equip_baseline(self._timed_sets(fresh=False))
        if trouble is not None:
            return trouble
        watch = self._watch(self.session.timed, self.baseline)
        contestants = [
            Contestant("eager", self.baseline, EAGER),
            Contestant("inductor", self.baseline, INDUCTOR),
            Contestant("harness", self.baseline, NO_SLOT),
        ]
        trouble = watch.warm_up(contestants[:2], repeats=1)
        if trouble is not None:
            return trouble
        record = watch.rounds(contestants, Effort(6, 20, 2.0), are_sure, wall=False)
        if not isinstance(record, Record):
            return record
        task = self.session.task
        found = Baselines(
            _median(record.device["eager"]),
            _median(record.device["inductor"]),
            _median(record.device["harness"]),
            roofline.reachable_seconds(task, self.ceilings(False)),
        )
        if found.room < roofline.NEAR:
            self._make_room()
            surer = roofline.reachable_seconds(task, self.ceilings(True))
            found = replace(found, floor_seconds=surer)
        self.session.baselines[self.eager_task.digest] = found
        return found

    def _make_room(self) -> None:
        """In a frugal session, have both workers give up their inputs: measuring the ceilings takes memory as well."""
        if self.session.frugal:
            for worker in (self.baseline, self.candidate):
                trouble = self.session.shed(worker)
                # The baseline's comes up again when it is asked next.
                if worker is self.candidate and isinstance(trouble, Crashed | TimedOut):
                    self._lost = self._lost or trouble
            self.session.release()

    def glance(self, pairs: int, worth: float) -> Record | Failure:
        """Samples of the candidate and the faster baseline, which was measured before; fewer where they agree, and of a
        candidate that is slower than `worth` times the baseline's speed without doubt."""
        pair = self.pair()
        if not isinstance(pair, list):
            return pair
        watch = self.stopwatch()

        def stop(record: Record) -> bool:
            own = timing.ratios(record.device[self._faster.name], record.device["candidate"])
            return is_enough(own, worth)

        # One call of each: a round gives its set other values first, which makes it as warm as it gets.
        for contestant in pair:
            result = watch.once(contestant, self.session.timed[0], wall=False)
            if not isinstance(result, RunTime):
                return result
        first = first_look(self.session.task.target)
        effort = Effort(min(first, pairs), pairs, seconds=math.inf)
        return watch.rounds(pair, effort, stop, wall=False)

    def pair(self) -> list[Contestant] | Failure:
        """The faster baseline and the candidate, on inputs that were drawn before."""
        field = self._line_up(fresh=False)
        if not isinstance(field, list):
            return field
        return [c for c in field if c is self._faster or c.slot == CANDIDATE]

    def stopwatch(self) -> Stopwatch:
        """For baselines and candidate on the inputs of this race; a round gives the set that it uses other values."""
        return self._watch(list(self.session.timed), self.baseline, self.candidate)

    def run(self, effort: Effort) -> Run:
        """Take the samples of a judgement: fresh inputs, controls, outputs fetched. Needs the device alone."""
        check = SpotCheck(self.session, effort.min_rounds, self._aside)
        return Run(self._timed(effort, check), check)

    @property
    def _aside(self) -> Aside | None:
        """In a frugal session the baseline's process makes room for what is too large to wait for its comparison."""
        return self._without_baseline if self.session.frugal else None

    def _without_baseline(self, inputs: InputSet, compare: Callable[[], None]) -> Trouble | None:
        """Compare, and have both workers ready again, with memory at hand for inputs and outputs. Then the inputs are
        changed: what is called to have that memory leaves results in it."""
        trouble = self.session.shed(self.baseline)
        if trouble is None:
            compare()
        for worker in (self.baseline, self.candidate):
            if trouble is None and not self._is_ready(worker, inputs):
                trouble = self.session.share(worker, inputs) or self._warm_up(worker, inputs)
        return trouble or self._renew(inputs, (self.baseline, self.candidate))

    def _is_ready(self, worker: WorkerProcess, inputs: InputSet) -> bool:
        return self.session.task.target == "cpu" or self.session.has_drawn(worker, inputs)

    def _warm_up(self, worker: WorkerProcess, inputs: InputSet) -> Trouble | None:
        """Call once, untimed, what the race calls in this worker."""
        own = [one for one in self._field if one.worker is worker]
        return self._watch([inputs], worker).warm_up(own, repeats=1)

    def decide(self, run: Run, evidence: dict[str, Any]) -> SpeedReport | Outcome:
        """What a run says, which is what promotion rests on, after its outputs were compared."""
        check, found = run.check, run.found
        check.compare()
        evidence["checked_runs"] = check.checked
        evidence["checked_calls"] = dict(check.checked_by)
        evidence["timed_inputs"] = [
            {**inputs.source.to_dict(), "stirs": len(inputs.perturbations)}
            for inputs in self.session.timed
        ]
        if isinstance(found, Timed):
            evidence["samples"] = {"device": found.record.device, "wall": found.record.wall}
            evidence["control"] = {"A": found.first, "A'": found.second}
        if check.wrong is not None:
            return check.wrong
        return self._decide(found) if isinstance(found, Timed) else found

    def _timed(self, effort: Effort, check: SpotCheck) -> Timed | Failure:
        """All samples; without those after the race where outputs were wrong in it."""
        field = self.line_up()
        if not isinstance(field, list):
            return field
        self._field = field
        watch = self.stopwatch()
        trouble = watch.warm_up(field)
        if trouble is not None:
            return trouble
        before = self._control(watch)
        if not isinstance(before, Record):
            return before

        def stop(record: Record) -> bool:
            check.look()
            return check.wrong is not None or timing.settled(record.device)

        def after_call(contestant: Contestant, inputs: InputSet, clock: Clock) -> Trouble | None:
            mine = contestant.slot == CANDIDATE
            return check.after_call(contestant.worker, inputs, clock) if mine else None

        record = watch.rounds(field, effort, stop, after_call)
        if not isinstance(record, Record):
            return record
        if check.wrong is not None:
            return Timed(record, *_both([before]))
        trouble = self._last_run(watch, field, check)
        if trouble is not None:
            return trouble
        controls = self._controls(watch, before)
        return Timed(record, *controls) if isinstance(controls, tuple) else controls

    def _controls(
        self, watch: Stopwatch, before: Record
    ) -> tuple[list[float], list[float]] | Failure:
        """The baseline against itself before and after the race, and longer where that says too little."""
        taken = [before]
        for effort in (CONTROL, LONG_CONTROL):
            more = self._control(watch, effort, taken)
            if not isinstance(more, Record):
                return more
            taken.append(more)
            first, second = _both(taken)
            if not timing.is_wide(timing.interval(timing.ratios(first, second))):
                break
        return first, second

    def _decide(self, timed: Timed) -> SpeedReport | Noisy:
        """A baseline that scatters is no reason to refuse what is faster than it ever was."""
        control, samples = timing.control(timed.first, timed.second), timed.record.device
        if control.quiet:
            return self._by_all_clocks(timing.report(samples, aa=control), timed.record)
        if control.scatters and timing.enough(samples):
            own = self._faster.name
            more = {own: [*samples[own], *timed.first, *timed.second]}
            found = timing.report_at_best({**samples, **more}, control)
            if found.wins:
                return self._by_all_clocks(found, timed.record)
        return Noisy(control.reason)

    def _by_all_clocks(self, found: SpeedReport, record: Record) -> SpeedReport:
        """On cuda, device time decides, and wall time must not say that the candidate is slower: neither than the best
        baseline nor than the one in its own process, if there is one. On a busy host one process can be slower than
        another, whatever runs in it, and that says nothing of the candidate."""
        report = timing.report(record.wall)
        rivals = [report.speedup, *(own for name, own in report.over.items() if BESIDE in name)]
        forbidden = found.wins and all(timing.loses(wall) for wall in rivals)
        return replace(found, wins=False, wall=report.speedup) if forbidden else found

    def _line_up(self, fresh: bool) -> list[Contestant] | Failure:
        if self._lost is not None:
            return self._lost
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

    def _beside(self) -> Contestant | Trouble:
        """The faster baseline once more, in the candidate's process.

        Where memory lies differs from process to process, and with it the time of a small kernel, by up to 7 % on an
        H200. A candidate wins over its neighbour too, or has won by its place only. It does not run in random order
        with the others but before them, on the values that the set had before.
        """
        name, slot = self._faster.name, self._faster.slot
        task = self.eager_task if slot == EAGER else self.session.task
        trouble = self.session.prepare(self.candidate, slot, task, name)
        if trouble is not None:
            return (
                replace(trouble, stage="baseline in the candidate's process")
                if isinstance(trouble, Failed)
                else trouble
            )
        return Contestant(f"{name} {BESIDE}", self.candidate, slot, former=True)

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
                for number, distribution in zip(
                    range(self._count), TIMED_DISTRIBUTIONS, strict=False
                )
            ]
        return session.timed

    @property
    def _count(self) -> int:
        """Input sets to go round."""
        task = self.session.task
        if not self.session.frugal:
            return TIMED_SETS
        return count_of_sets(bytes_of(task.inputs), cache_bytes(task.target))

    def _watch(self, sets: list[InputSet], *workers: WorkerProcess) -> Stopwatch:
        def renew(inputs: InputSet) -> Trouble | None:
            return self._renew(inputs, workers)

        return Stopwatch(sets, self.session.timeouts.run, secrets.randbits(63), renew)

    def _renew(self, inputs: InputSet, workers: Sequence[WorkerProcess]) -> Trouble | None:
        """Other values for the next round: what a candidate kept of earlier calls is of no use to it."""
        self.session.timeouts.go_on()
        if self.session.frugal and len(inputs.perturbations) >= MOST_CHANGES:
            distribution = inputs.source.distribution
            self.session.input_set(inputs.number, Source(distribution, secrets.randbits(63)))
        else:
            inputs.perturb(secrets.randbits(63))
        return self.session.share_with_all(workers, inputs)

    def _control(
        self, watch: Stopwatch, effort: Effort = CONTROL, before: Sequence[Record] = ()
    ) -> Record | Failure:
        """The baseline against itself, until that is known to be quiet, or, where it scatters, not to scatter too much.
        before: what was taken already."""
        slot = self._faster.slot
        pair = [Contestant(name, self.baseline, slot) for name in ("A", "A'")]

        def is_sure(record: Record) -> bool:
            samples = _both([*before, record])
            return timing.is_quiet(*samples) or (
                effort is LONG_CONTROL and timing.is_steady(*samples)
            )

        return watch.rounds(pair, effort, is_sure, wall=False)  # `_both` takes the device's

    def _last_run(
        self, watch: Stopwatch, field: list[Contestant], check: SpotCheck
    ) -> Trouble | None:
        """One more run, each call of it looked at: what a candidate that counts its calls has come to by then."""
        mine = next(c for c in field if c.slot == CANDIDATE)
        inputs = self.session.timed[-1]
        trouble = self._renew(inputs, [mine.worker])
        if trouble is not None:
            return trouble

        def take(contestant: Contestant, inputs: InputSet, clock: Clock) -> Trouble | None:
            return check.take(contestant.worker, inputs, clock)

        result = watch.once(mine, inputs, after=take)
        return None if isinstance(result, RunTime) else result


def count_of_sets(inputs: int, cache: int) -> int:
    """Input sets to go round in a frugal session, by bytes. One that no cache holds needs no other for being cold: it
    is changed in place before each round, and takes the memory of one."""
    return 1 if inputs >= FAR_LARGER * cache else TIMED_SETS


def _median(samples: list[float | None]) -> float:
    return statistics.median([sample for sample in samples if sample is not None])


def _both(controls: Sequence[Record]) -> tuple[list[float], list[float]]:
    """The samples of A and of A' in all of them."""
    first, second = (
        [sample for record in controls for sample in record.device[name] if sample is not None]
        for name in ("A", "A'")
    )
    return first, second
