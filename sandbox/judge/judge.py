"""The judge: what a candidate is worth, told by contracts C3 (accuracy) and C4 (speed).

Four roles in four processes. This one holds seeds, expected values and the verdict; the others are three workers (see
`roles`). The parts, from low to high: `builds` compiles; `device` knows whose turn it is; `sessions` keeps the task at
hand and loads candidates; `checks` and `measurements` say whether one is right and how fast it is; `judgement` is the
whole of it with its evidence.

Not covered: another user's load on the machine (the A/A control notices it); a candidate for cpu
is native code in the candidate worker and limited only by what that process may do (see
`sandbox.workers.loop`). Not safe for use from several threads, but for compiling: see `pool`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sandbox.compile.candidate import Compiled
from sandbox.compile.disassembly import Inspection
from sandbox.failures import Failed, Failure, NoMemory, Refused
from sandbox.judge.builds import Builds
from sandbox.judge.checks import check_trial
from sandbox.judge.device import Device
from sandbox.judge.glance import MOST_GLANCES
from sandbox.judge.judgement import Judgement, provenance
from sandbox.judge.measurements import Measurements
from sandbox.judge.roles import Roles
from sandbox.judge.rounds import Effort, Record
from sandbox.judge.session import CANDIDATE, Session
from sandbox.judge.sessions import Sessions, Trial
from sandbox.judge.settings import JudgeSettings
from sandbox.judge.survey import Survey, Surveyed, SurveyEffort
from sandbox.judge.verify import QUICK, THOROUGH
from sandbox.memory.footprint import Phase, bytes_of
from sandbox.memory.notes import Notes, merged, noted
from sandbox.plan.candidate import Candidate
from sandbox.task.specs import TensorSpec
from sandbox.task.task import Task
from sandbox.timing import decision as timing
from sandbox.timing.decision import SpeedReport
from sandbox.timing.machine import Ceilings
from sandbox.verdict import Baselines, Correct, Outcome, Unchecked, Verdict, lacks_memory, reward

if TYPE_CHECKING:
    import torch

Found = TypeVar("Found")


class Judge:
    """Owns the worker processes; a context manager."""

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings = settings
        self.device = Device(settings)
        self.builds = Builds(settings)
        self.roles = Roles(settings)
        self.sessions = Sessions(settings, self.roles, self.device, self.builds)
        self.measurements = Measurements(self.sessions)
        self._notes: Notes = {}

    def __enter__(self) -> Judge:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def target(self) -> str:
        """What it judges for: "cpu" or "cuda"."""
        return self.settings.target

    def start(self) -> None:
        """Start the workers without waiting for them. The operator library is built first where it is missing."""
        self.roles.start()

    def ready(self) -> None:
        """Wait until all workers can be asked. What goes wrong comes up again when one is."""
        for worker in self.roles.all:
            worker.ready()

    def close(self) -> None:
        """End the workers and give up all memory."""
        self.sessions.close()

    def interrupt(self) -> None:
        """End what the workers do, from any thread. Outcomes that come of it say nothing of a candidate or a task."""
        for worker in self.roles.all:
            worker.interrupt()

    def interrupt_compilers(self) -> None:
        """End the compilers that run, from any thread. That their time was up says nothing of a candidate."""
        self.builds.interrupt()

    def rest(self) -> None:
        """Give up the task at hand, here and in the workers, which stay, with the memory that it took on the device."""
        self.sessions.rest()

    def close_contexts(self) -> None:
        """End the workers of a judge at rest, with their contexts on the device, until they are needed."""
        for worker in self.roles.all:
            worker.rest()

    @property
    def waited_s(self) -> float:
        """Seconds spent waiting for other processes' turns on the device."""
        return self.device.waited_s

    def ceilings(self) -> Ceilings:
        """What this machine can do at most; measured once."""
        return self.device.ceilings()

    def compile(self, candidate: Candidate) -> Compiled | Failure:
        """Compile the candidate in a child process; done once. Safe to call from several threads."""
        return self.builds.compile(candidate)

    def build_to_judge(self, candidate: Candidate) -> Compiled | Failure:
        """The binary that a judgement is about: of a policy's source always a new one. Safe for several threads."""
        return self.builds.build_to_judge(candidate)

    def inspect(self, candidate: Candidate) -> Inspection | Failure:
        """What the candidate's machine code consists of. Safe to call from several threads."""
        return self.builds.inspect(candidate)

    def open(self, task: Task) -> Failure | None:
        """Take up a task: Inductor begins to compile it, in the background. What goes wrong there comes up again."""
        session = self.sessions.open(task)
        return None if isinstance(session, Session) else session

    def no_room(self, task: Task) -> NoMemory | None:
        """Why the device has not the memory that a judgement needs beside what is used without a lease, if so, and
        stays so for a while: then nothing about the task has to be tried. For what has a lease, a phase waits."""
        session = self.sessions.open(task)
        if not isinstance(session, Session) or task.target != "cuda":
            return None
        needed, room = self._needed(session, "race"), self.device.leases.room()
        if needed <= room.total:
            return None
        timeouts = self.settings.timeouts
        with self.device.leases.lease(needed, "race", lambda: not timeouts.is_over()) as refused:
            return refused

    def baselines(self, task: Task, *, eager_task: Task | None = None) -> Baselines | Failure:
        """Times of eager mode and Inductor. The first call for a task compiles it with Inductor.

        eager_task: the same function before decompositions, where it is known, as what the user's
        eager mode really runs; it must have the same inputs and outputs.
        """
        session = self.sessions.open(task)
        if not isinstance(session, Session):
            return session
        race = self.measurements.race(session, eager_task, self.roles.scratch)
        if race.known is not None:
            return race.known
        return self._with_memory(session, "baselines", lambda: self.measurements.baselines(race))

    def _with_memory(
        self,
        session: Session,
        phase: Phase,
        work: Callable[[], Found],
        temporaries: Sequence[TensorSpec] = (),
    ) -> Found | NoMemory | Refused | Failed:
        """Do it with a lease on the device's memory, and give all of that back. Where memory runs out in spite of it,
        it is done once more while no other process has a lease. temporaries: a candidate's own."""
        found = self._leased(self._needed(session, phase, temporaries), phase, work)
        if isinstance(found, NoMemory) and not found.ever and temporaries:
            own = bytes_of(temporaries)
            if session.footprint().of(phase) <= found.total:
                return Refused(f"its temporaries take {own:,} bytes: {found.reason}")
        if isinstance(found, NoMemory) or not isinstance(found, Failure) or not lacks_memory(found):
            return found
        self.device.release_memory()
        again = self._leased(None, f"{phase}, again", work)
        return found if isinstance(again, NoMemory) else again

    def _needed(
        self, session: Session, phase: Phase, temporaries: Sequence[TensorSpec] = ()
    ) -> int:
        """Bytes of the device that a phase takes, the ceilings included where it has to measure them first."""
        needed = session.footprint(temporaries).of(phase)
        needed += session.kept_beyond(QUICK.distributions)
        return needed if phase == "check" else max(needed, self.device.ceilings_bytes)

    def _leased(
        self, size: int | None, phase: str, work: Callable[[], Found]
    ) -> Found | NoMemory | Failed:
        """size: None for all that there is. Memory that runs out in this process is a value, as in a worker."""
        import torch

        timeouts = self.settings.timeouts
        with self.device.leases.lease(size, phase, lambda: not timeouts.is_over()) as refused:
            timeouts.go_on()
            if refused is not None:
                return refused
            try:
                return work()
            except torch.OutOfMemoryError as error:
                return Failed(phase, f"OutOfMemoryError: {error}")
            finally:
                self.sessions.make_room()
                self._note(size, phase)

    def _note(self, size: int | None, phase: str) -> None:
        """What a lease of a session that is sparing of memory came to."""
        session = self.sessions.current
        if session is not None and session.frugal:
            peak = session.held.take() if self.target == "cuda" else None
            allowed = session.footprint().allowed
            self._notes = merged([self._notes, noted(phase, size, allowed, peak)])

    def take_notes(self) -> Notes:
        """What leases came to since this was asked last."""
        notes, self._notes = self._notes, {}
        return notes

    def verify(
        self,
        task: Task,
        candidate: Candidate,
        *,
        recorded_inputs: Sequence[Sequence[torch.Tensor]] | None = None,
        thorough: bool = False,
    ) -> Outcome:
        """Compile, run and compare: on a few kinds of inputs, or thoroughly on all with new seeds.

        recorded_inputs: real inputs of the region, each a list as long as the task's inputs.
        """
        trial, worker = Trial(task, candidate, recorded_inputs or ()), self.roles.scratch
        session = self.sessions.load(worker, trial)
        if not isinstance(session, Session):
            return session
        check = THOROUGH if thorough else QUICK

        def work() -> Outcome:
            session = self.sessions.load(worker, trial)
            if not isinstance(session, Session):
                return session
            return check_trial(self.sessions, session, worker, trial, check).outcome

        temporaries = candidate.plan.temporary_specs
        return self.roles.rid(worker, self._with_memory(session, "check", work, temporaries))

    def profile(
        self,
        task: Task,
        candidate: Candidate,
        *,
        pairs: int = MOST_GLANCES,
        eager_task: Task | None = None,
        worth: float = 0.0,
    ) -> Outcome:
        """A quick timing without controls and a quick check: for search, not for promotion.

        worth: a candidate whose speed-up is below that is not checked (`Unchecked`).
        """
        trial, worker = Trial(task, candidate), self.roles.scratch
        session = self.sessions.load(worker, trial)
        if not isinstance(session, Session):
            return session

        def work() -> Outcome:
            return self._profile(trial, pairs, eager_task, worth)

        return self._with_memory(session, "profile", work, candidate.plan.temporary_specs)

    def _profile(self, trial: Trial, pairs: int, eager_task: Task | None, worth: float) -> Outcome:
        worker = self.roles.scratch
        session = self.sessions.load(worker, trial)
        if not isinstance(session, Session):
            return session
        race = self.measurements.race(session, eager_task, worker)
        record = self.measurements.glance(race, pairs, worth)
        if not isinstance(record, Record):
            return record
        self.sessions.make_ready(session, trial.candidate)
        speed = timing.report(record.device)
        achieved = self.measurements.achieved(session, speed)
        if speed.speedup.median < worth:
            return Unchecked(speed, achieved)
        checked = check_trial(self.sessions, session, worker, trial, QUICK)
        if not isinstance(checked.outcome, Correct):
            return self.roles.rid(worker, checked.outcome)
        return Correct(checked.outcome.accuracy, speed, achieved)

    def survey(
        self,
        task: Task,
        candidates: Sequence[Candidate],
        effort: SurveyEffort | None = None,
        built: Sequence[Compiled | Failure] | None = None,
    ) -> Surveyed | Failure:
        """Check and time many candidates together, by the rules of `profile` (see `survey`).

        built: what `compile` gave for each, where it was called before.
        """
        session = self.sessions.open(task)
        if not isinstance(session, Session):
            return session
        known = built or [self.builds.compile(made) for made in candidates]
        pairs = list(zip(candidates, map(self._still_there, candidates, known), strict=True))
        survey = Survey(self.measurements, session, pairs, effort or SurveyEffort())
        most = max((made.plan.temporary_specs for made in candidates), key=bytes_of, default=())
        return self._with_memory(session, "profile", survey.run, most)

    def _still_there(self, candidate: Candidate, built: Compiled | Failure) -> Compiled | Failure:
        """A binary whose file is there: two tasks of one source share it, and one may have removed it."""
        gone = isinstance(built, Compiled) and not built.path.exists()
        return self.builds.compile(candidate) if gone else built

    def judge(
        self,
        task: Task,
        candidate: Candidate,
        *,
        recorded_inputs: Sequence[Sequence[torch.Tensor]] | None = None,
        eager_task: Task | None = None,
        effort: Effort | None = None,
        built: Compiled | Failure | None = None,
    ) -> Verdict:
        """The full judgement that promotion rests on, with its evidence.

        built: what `build_to_judge` gave for this judgement, where it was called before.
        """
        evidence = provenance(self.settings, task, candidate)
        compiled = built or self.build_to_judge(candidate)
        outcome: Outcome
        if isinstance(compiled, Compiled):
            trial = Trial(task, candidate, recorded_inputs or (), compiled)
            outcome = self._judged(trial, evidence, eager_task, effort)
        else:
            outcome = compiled
        accuracy = getattr(outcome, "accuracy", None)
        speed = getattr(outcome, "speed", None)
        status = outcome.status
        if isinstance(outcome, Correct) and speed is not None and speed.wins:
            status = "wins"
        evidence["speed"] = speed.to_dict() if speed else None
        self.roles.clear_candidate(outcome)
        return Verdict(status, outcome.reason, reward(outcome), accuracy, speed, evidence)

    def _judged(
        self,
        trial: Trial,
        evidence: dict[str, Any],
        eager_task: Task | None,
        effort: Effort | None,
    ) -> Outcome:
        """What is compiled and loaded for it takes no memory that counts, and so no lease."""
        self.sessions.await_candidate()
        session = self.sessions.load(self.roles.candidate, trial)
        if not isinstance(session, Session):
            return session

        def work() -> Outcome:
            return Judgement(self.measurements, trial, evidence, eager_task, effort).run()

        return self._with_memory(session, "race", work, trial.candidate.plan.temporary_specs)

    def judge_baseline(self, task: Task, *, effort: Effort | None = None) -> SpeedReport | Outcome:
        """Inductor's own code in the candidate's place: how often does nothing changed look faster?"""
        session = self.sessions.open(task)
        if not isinstance(session, Session):
            return session
        self.sessions.await_candidate()
        trouble = session.prepare(self.roles.candidate, CANDIDATE, task, "inductor")
        if trouble is not None:
            return trouble
        return self.measurements.race_until_sure(session, None, effort or Effort(), {})
