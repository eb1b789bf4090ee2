"""The judge: what a candidate is worth, told by contracts C3 (accuracy) and C4 (speed).

Four roles in four processes. This one holds seeds, expected values and the verdict. The baseline
worker runs eager mode and Inductor's code. The scratch worker runs candidates that are tried out (`verify`,
`profile`), the candidate worker those that are judged; nothing that a candidate left in the former reaches a
verdict. All workers are the same program, called through the same wrapper (see `workerloop`) and confined in
the same way, so that confinement costs all the same.

A binary that is judged was built from the candidate's source by this judge: source of a policy is compiled anew
for the judgement, and binaries lie where no worker can see, let alone write them (each is handed a copy).

Not covered: another user's load on the machine (the A/A control notices it); a candidate for cpu
is native code in the candidate worker and limited only by what that process may do (see
`workerloop`). Not safe for use from several threads, but for compiling: see `pool`.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from sandbox.accuracy.compare import AccuracyReport, check_metadata
from sandbox.accuracy.inputs import make_inputs
from sandbox.compile.candidate import Compiled, CompileTimedOut, compile_candidate
from sandbox.compile.candidate import Refused as CompileRefused
from sandbox.compile.disassembly import Inspection, count_instructions
from sandbox.compile.toolchain import Missing
from sandbox.failures import CompileFailed, Failure, Noisy, Refused, TimedOut
from sandbox.isolation.confine import offered
from sandbox.judge.race import Race
from sandbox.judge.rounds import Effort, Record
from sandbox.judge.session import CANDIDATE, INDUCTOR, Session
from sandbox.judge.settings import Timeouts
from sandbox.judge.verify import QUICK, THOROUGH, Check, Checked, check_candidate
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import MAX_INPUTS, MAX_OUTPUTS
from sandbox.sanitizer import tool as sanitizer
from sandbox.task import flags as torch_flags
from sandbox.task.specs import TensorSpec
from sandbox.task.task import Task, TaskError
from sandbox.timing import decision as timing
from sandbox.timing import machine, roofline
from sandbox.timing.decision import SpeedReport
from sandbox.timing.device_lock import DeviceLock
from sandbox.timing.machine import Ceilings
from sandbox.timing.roofline import Achieved
from sandbox.verdict import (
    VERIFIER_VERSION,
    Baselines,
    Correct,
    Outcome,
    TooSlow,
    Unchecked,
    Verdict,
    Wrong,
    lacks_memory,
    reward,
)
from sandbox.workers.starter import ForkServer
from sandbox.workers.supervisor import WorkerProcess, WorkerSettings

if TYPE_CHECKING:
    import torch

NOISY_TRIES, NOISY_S = 3, 60.0
"""How many races there are where they come out noisy, and the seconds after which none is begun: on a machine busy with
other work one takes minutes, and a search has a budget."""
CLEAR_LEAD = 1.3
"""Lower bound of a speed-up that nothing changed has never had on a busy machine."""
Prepared = TypeVar("Prepared")


class Judge:
    """Owns the worker processes; a context manager. All folders are the caller's.

    target: "cpu" or "cuda". arch: for cuda "sm_90a" and the like. threads: of each worker, by
    default the cores this process may use. flags: see `flags`; by default those of this process.
    inductor: a patch of Inductor's configuration for baseline and wrapper. consent: whether C++
    written by a policy may run. ceilings: of this machine, measured when first needed otherwise.
    memory_bytes: what a worker for cpu may call its own, by default a share of the machine's.
    device_lock: a file by which processes take turns on the device (see `devicelock`); None where this one is alone.
    """

    def __init__(
        self,
        target: str,
        *,
        scratch_dir: Path | str,
        native_dir: Path | str | None = None,
        arch: str = "native",
        threads: int | None = None,
        flags: Mapping[str, Any] | None = None,
        inductor: Mapping[str, Any] | None = None,
        consent: bool = False,
        cxx_flags: Sequence[str] = (),
        timeouts: Timeouts | None = None,
        ceilings: Ceilings | None = None,
        memory_bytes: int | None = None,
        device_lock: Path | None = None,
    ) -> None:
        self.target, self.arch, self.consent = target, arch, consent
        self.scratch = Path(scratch_dir).resolve()
        self.cxx_flags, self.timeouts = tuple(cxx_flags), timeouts or Timeouts()
        self.threads = threads or len(os.sched_getaffinity(0))
        self.flags = dict(torch_flags.current() if flags is None else flags)
        self.inductor = dict(inductor or {})
        hello = {
            "target": target,
            "threads": self.threads,
            "flags": self.flags,
            "inductor": self.inductor,
            "native": str(Path(native_dir).resolve()) if native_dir else "",
        }
        server = ForkServer(self.scratch / "forkserver")
        self._baseline, self._scratch, self._candidate = self._workers = tuple(
            WorkerProcess(
                WorkerSettings(
                    role,
                    self.scratch / role,
                    self.threads,
                    hello,
                    self.timeouts.start,
                    memory_bytes,
                ),
                server,
            )
            for role in ("baseline", "scratch", "candidate")
        )
        self._native = str(hello["native"])
        self._ceilings = ceilings
        self._sure_of_ceilings = False
        self._device = DeviceLock(device_lock)
        self._session: Session | None = None
        self._preparing: threading.Thread | None = None
        self._readying: threading.Thread | None = None
        self._compiled: dict[tuple[str, str], Compiled] = {}

    def __enter__(self) -> Judge:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the workers without waiting for them. The operator library is built first where it is missing."""
        self._build_native()
        for worker in self._workers:
            worker.launch()

    def _build_native(self) -> None:
        """Workers may not write to its folder. Without it they serve in Python."""
        if self._native:
            from sandbox.launcher.native import find_or_build

            find_or_build(Path(self._native))
            self._native = ""

    def close(self) -> None:
        """End the workers and give up all memory."""
        self._settle()
        self._await_candidate()
        for worker in self._workers:
            worker.stop()
        self._session = None

    def rest(self) -> None:
        """Give up the task at hand, here and in the workers, which stay, with the memory that it took on the device."""
        self._settle()
        self._await_candidate()
        if self._session is None:
            return
        self._session = None
        for worker in self._workers:
            if worker.holds:
                worker.renew()
            elif worker.running:
                worker.ask("forget", {"do": "forget"}, self.timeouts.run)
        machine.release_memory(self.target)

    @property
    def waited_s(self) -> float:
        """Seconds spent waiting for other processes' turns on the device."""
        return self._device.waited_s

    def ceilings(self, again: bool = False) -> Ceilings:
        """What this machine can do at most; measured once. again: once more, to be sure, as other work on the machine
        only lowers what is found, until that finds nothing higher; without memory for it, what is known stands."""
        import torch

        if self._ceilings is None:
            self._ceilings = machine.ceilings(self.target)
        elif again and not self._sure_of_ceilings:
            no_memory = RuntimeError if self.target == "cpu" else torch.OutOfMemoryError
            with suppress(no_memory):
                before = self._ceilings
                self._ceilings = before.best_of(machine.ceilings(self.target))
                self._sure_of_ceilings = not self._ceilings.exceeds(before)
        return self._ceilings

    def compile(self, candidate: Candidate) -> Compiled | Failure:
        """Compile the candidate in a child process; done once. Safe to call from several threads."""
        known = self._compiled.get(_who_and_what(candidate))
        if known is not None and known.path.exists():
            return known
        return self._build(candidate, "candidates")

    def build_to_judge(self, candidate: Candidate) -> Compiled | Failure:
        """The binary that a judgement is about: of a policy's source always a new one. Safe for several threads."""
        if candidate.origin == "sketch":
            return self.compile(candidate)
        return self._build(candidate, "judged")

    def _build(self, candidate: Candidate, place: str) -> Compiled | Failure:
        result = compile_candidate(
            candidate,
            self.scratch / place,
            self.arch,
            self.timeouts.compile,
            cxx_flags=self.cxx_flags,
            consent=self.consent,
        )
        match result:
            case Compiled():
                self._compiled[_who_and_what(candidate)] = result
                return result
            case CompileTimedOut(seconds=seconds):
                return TimedOut("compilation", seconds)
            case CompileRefused(reason):
                return Refused(reason)
            case _:
                return CompileFailed(result.log)

    def inspect(self, candidate: Candidate) -> Inspection | Failure:
        """What the candidate's machine code consists of. Safe to call from several threads."""
        compiled = self.compile(candidate)
        if not isinstance(compiled, Compiled):
            return compiled
        counts = count_instructions(compiled.path, self.target)
        if isinstance(counts, Missing):
            return Inspection(dict(compiled.facts), {}, f"{counts.reason}; {counts.remedy}")
        return Inspection(dict(compiled.facts), counts)

    def baselines(self, task: Task, *, eager_task: Task | None = None) -> Baselines | Failure:
        """Times of eager mode and Inductor. The first call for a task compiles it with Inductor.

        eager_task: the same function before decompositions, where it is known, as what the user's
        eager mode really runs; it must have the same inputs and outputs.
        """
        session = self._open(task)
        if not isinstance(session, Session):
            return session
        return self._baselines(self._race(session, eager_task, self._scratch))

    def _baselines(self, race: Race) -> Baselines | Failure:
        """They are equipped beside others' checks; what goes wrong there, as without memory, is tried again alone."""
        if race.known is not None:
            return race.known
        self._settle()
        if self._ceilings is None:
            machine.load_for_ceilings(self.target)
        self._beside_others(race.equip)
        with self._alone():
            return race.baselines()

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
        session = self._load(self._scratch, task, candidate, recorded_inputs or ())
        if not isinstance(session, Session):
            return session
        check = THOROUGH if thorough else QUICK
        outcome = self._check(
            session, self._scratch, candidate, check, recorded_inputs or ()
        ).outcome
        return self._rid(self._scratch, outcome)

    def profile(
        self,
        task: Task,
        candidate: Candidate,
        *,
        pairs: int = 12,
        eager_task: Task | None = None,
        worth: float = 0.0,
    ) -> Outcome:
        """A quick timing without controls and a quick check: for search, not for promotion.

        worth: a candidate whose speed-up is below that is not checked (`Unchecked`).
        """
        session = self._load(self._scratch, task, candidate)
        if not isinstance(session, Session):
            return session
        race = self._race(session, eager_task, self._scratch)
        baselines = self._baselines(race)
        if not isinstance(baselines, Baselines):
            return baselines
        if not race.is_equipped:
            self._beside_others(race.equip)
        with self._alone():
            record = race.glance(pairs, worth)
        if not isinstance(record, Record):
            return record
        self._make_ready(session, candidate)
        speed = timing.report(record.device)
        achieved = self._achieved(session, speed)
        if speed.speedup.median < worth:
            return Unchecked(speed, achieved)
        checked = self._check(session, self._scratch, candidate, QUICK, ())
        if not isinstance(checked.outcome, Correct):
            return self._rid(self._scratch, checked.outcome)
        return Correct(checked.outcome.accuracy, speed, achieved)

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
        evidence = self._provenance(task, candidate)
        compiled = built or self.build_to_judge(candidate)
        outcome: Outcome
        if isinstance(compiled, Compiled):
            recorded = recorded_inputs or ()
            outcome = self._judge(
                task, candidate, compiled, recorded, eager_task, effort or Effort(), evidence
            )
        else:
            outcome = compiled
        accuracy = getattr(outcome, "accuracy", None)
        speed = getattr(outcome, "speed", None)
        status = outcome.status
        if isinstance(outcome, Correct) and speed is not None and speed.wins:
            status = "wins"
        evidence["speed"] = speed.to_dict() if speed else None
        if self._candidate.holds:
            self._candidate.renew()  # the next one is ready when it is needed
        else:
            self._rid(self._candidate, outcome)
        return Verdict(status, outcome.reason, reward(outcome), accuracy, speed, evidence)

    def _rid(self, worker: WorkerProcess, outcome: Outcome) -> Outcome:
        """After a wrong candidate nothing of it may be left in a process, such as a thread that still works."""
        if self.target == "cpu" and isinstance(outcome, Wrong):
            worker.renew()
        return outcome

    def judge_baseline(self, task: Task, *, effort: Effort | None = None) -> SpeedReport | Outcome:
        """Inductor's own code in the candidate's place: how often does nothing changed look faster?"""
        session = self._open(task)
        if not isinstance(session, Session):
            return session
        self._await_candidate()
        trouble = session.prepare(self._candidate, CANDIDATE, task, "inductor")
        if trouble is not None:
            return trouble
        return self._raced(session, None, effort or Effort(), {})

    def _judge(
        self,
        task: Task,
        candidate: Candidate,
        compiled: Compiled,
        recorded: Sequence[Sequence[torch.Tensor]],
        eager_task: Task | None,
        effort: Effort,
        evidence: dict[str, Any],
    ) -> Outcome:
        self._await_candidate()
        session = self._load(self._candidate, task, candidate, recorded, compiled)
        if not isinstance(session, Session):
            return session
        evidence["isolation"] = {
            "compiler": offered().to_dict(),
            "worker": self._candidate.isolation.to_dict(),
            "sealed": bool(self._candidate.holds),
        }
        evidence["toolchain"] = compiled.toolchain.version
        evidence["kernel_facts"] = dict(compiled.facts)
        if compiled.plan is not None:
            evidence["written_plan"] = json.loads(candidate.plan.to_json())
        clock = _Laps(self._device)
        checked = self._check(session, self._candidate, candidate, THOROUGH, recorded, compiled)
        evidence["seconds"] = {"check": clock.lap()}
        evidence["draws"] = checked.draws
        if not isinstance(checked.outcome, Correct):
            return checked.outcome
        if (
            self.target == "cuda"
        ):  # what the race runs beside the candidate: compiling takes no turn
            session.prepare(self._candidate, INDUCTOR, task, "inductor")
        outcome = self._time(session, eager_task, effort, evidence, checked.outcome.accuracy)
        evidence["seconds"]["race"] = clock.lap()
        if isinstance(outcome, Correct) and self.target == "cuda":
            outcome = self._sanitize(session, candidate, compiled, evidence) or outcome
            evidence["seconds"]["sanitizer"] = clock.lap()
        return outcome

    def _check(
        self,
        session: Session,
        worker: WorkerProcess,
        candidate: Candidate,
        check: Check,
        recorded: Sequence[Sequence[torch.Tensor]],
        compiled: Compiled | None = None,
    ) -> Checked:
        """Whether the loaded candidate is right. Without memory beside others' checks it is made again after them."""
        with self._device.shared():
            found = check_candidate(session, worker, check, recorded)
        if not lacks_memory(found.outcome):
            return found
        machine.release_memory(self.target)
        # a process in which a run failed is gone, and the next one has loaded nothing
        with self._device.turn():
            again = self._load(worker, session.task, candidate, recorded, compiled)
            if not isinstance(again, Session):
                return Checked(again, found.draws)
            return check_candidate(again, worker, check, recorded)

    def _time(
        self,
        session: Session,
        eager_task: Task | None,
        effort: Effort,
        evidence: dict[str, Any],
        accuracy: AccuracyReport,
    ) -> Outcome:
        """What follows when the outputs are right."""
        speed = self._raced(session, eager_task, effort, evidence)
        if not isinstance(speed, SpeedReport):
            return speed
        impossible = self._impossible(session.task, speed, evidence)
        if impossible is not None:
            return impossible
        evidence["achieved"] = self._achieved(session, speed).to_dict()
        return Correct(accuracy, speed) if speed.wins else TooSlow(accuracy, speed)

    def _raced(
        self,
        session: Session,
        eager_task: Task | None,
        effort: Effort,
        evidence: dict[str, Any],
    ) -> SpeedReport | Outcome:
        """Races until one is not noisy; on cpu a small lead has to be won twice. What the last one says, of which the
        evidence is: other work on the machine favours now this process and now that one, for as long as a race."""
        begun, wins = time.monotonic(), 0
        for _ in range(NOISY_TRIES):
            race = self._race(session, eager_task, self._candidate)
            speed = self._timed(race, effort, evidence)
            if isinstance(speed, SpeedReport):
                wins += speed.wins
                if self.target != "cpu" or is_decided(speed, wins):
                    return speed
            elif not isinstance(speed, Noisy) or time.monotonic() - begun > NOISY_S:
                return speed
        return speed if isinstance(speed, Noisy) else Noisy("a small lead was won only once")

    def _timed(self, race: Race, effort: Effort, evidence: dict[str, Any]) -> SpeedReport | Outcome:
        """A race: alone on the device while it is run, beside others' checks before and after."""
        baselines = self._baselines(race)
        if not isinstance(baselines, Baselines):
            return baselines
        found = self._beside_others(race.line_up)
        if not (found is None or isinstance(found, list) or lacks_memory(found)):
            return found
        with self._alone():
            run = race.run(effort)
        with self._device.shared():
            decided = race.decide(run, evidence)
        if isinstance(decided, SpeedReport) or not lacks_memory(decided):
            return decided
        machine.release_memory(self.target)
        with self._device.turn():
            return race.decide(run, evidence)

    def _beside_others(self, prepare: Callable[[], Prepared]) -> Prepared | None:
        """Prepare a race beside others' checks; None where there is no memory for it, which there may be alone."""
        import torch

        try:
            with self._device.shared():
                return prepare()
        except torch.OutOfMemoryError:
            machine.release_memory(self.target)
            return None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A turn on the device for a race, with nothing of this judge in the background."""
        self._settle()
        for worker in self._workers:
            if worker.running and not (worker is self._candidate and self._is_readying):
                worker.ready()  # one that is still starting would disturb the timing; its trouble comes up when asked
        with self._device.turn():
            yield

    def _race(self, session: Session, eager_task: Task | None, runner: WorkerProcess) -> Race:
        return Race(session, self._baseline, runner, eager_task, self.ceilings)

    def _impossible(
        self, task: Task, speed: SpeedReport, evidence: dict[str, Any]
    ) -> Refused | None:
        """A time below the roofline floor cannot be; the ceilings are measured again to be sure."""
        limit, seconds = roofline.IMPOSSIBLE, speed.seconds["candidate"]
        if seconds < limit * roofline.floor_seconds(task, self.ceilings()):
            self._sure_of_ceilings = False  # a verdict rests on them
            with self._alone():
                self.ceilings(again=True)
        floor = roofline.floor_seconds(task, self.ceilings())
        evidence["ceilings"], evidence["floor_seconds"] = self.ceilings().to_dict(), floor
        if seconds >= limit * floor:
            return None
        return Refused(f"impossible: {seconds:.3g} s, where memory alone needs {floor:.3g} s")

    def _sanitize(
        self, session: Session, candidate: Candidate, compiled: Compiled, evidence: dict[str, Any]
    ) -> Refused | None:
        """The last step before promotion on cuda: what compute-sanitizer says goes into the evidence.

        It is for source that somebody wrote for this task. What sketches print is held to the tools by the tests, for
        every sketch; there the tools' minute on a large region would be a search's largest part.
        """
        if candidate.origin == "sketch":
            reports = sanitizer.not_run("a sketch's code: its tests run under the tools")
            evidence["sanitizer"] = [report.to_dict() for report in reports]
            return None

        def draw() -> list[torch.Tensor]:
            task, seed = session.task, secrets.randbits(63)
            return make_inputs(task.inputs, seed, "normal", session.bounds, "cpu")

        with self._device.shared():  # under its tools kernels take as long as a hundred runs
            reports = sanitizer.sanitize(compiled.path, compiled.launched(candidate).plan, draw)
        evidence["sanitizer"] = [report.to_dict() for report in reports]
        for report in reports:
            if report.status == "errors":
                return Refused(f"compute-sanitizer, {report.tool}: {report.detail}")
        return None

    def _achieved(self, session: Session, speed: SpeedReport) -> Achieved:
        seconds = speed.seconds["candidate"]
        return roofline.achieved(session.task, session.operations, seconds, self.ceilings())

    def _open(self, task: Task) -> Session | Failure:
        """The session of a task; that of another task is given up."""
        if self._session is not None and self._session.task.digest == task.digest:
            return self._session
        if task.target != self.target:
            return Refused(f"the task is for {task.target}, this judge for {self.target}")
        inputs, outputs = len(task.inputs), len(task.outputs)
        if not (1 <= inputs <= MAX_INPUTS and 1 <= outputs <= MAX_OUTPUTS):
            return Refused(
                f"{inputs} inputs and {outputs} outputs; up to {MAX_INPUTS} and {MAX_OUTPUTS}"
            )
        self._build_native()
        self.rest()
        try:
            session = Session(task, self.flags, self.timeouts)
        except TaskError as error:
            return Refused(f"not a task: {error}")
        self._session = session
        self._preparing = threading.Thread(target=self._prepare, args=(session,), daemon=True)
        self._preparing.start()
        return session

    def _prepare(self, session: Session) -> None:
        """Compile the baseline in its worker, while candidates are compiled and checked.

        What goes wrong here comes up again where the baseline is needed.
        """
        session.prepare(self._baseline, INDUCTOR, session.task, "inductor")

    def _make_ready(self, session: Session, candidate: Candidate) -> None:
        """Compile in the candidate worker what any judgement for the task needs there, while others are profiled.

        Once for each task, and on cuda only: what a profile times there is the device's, on cpu it would be disturbed.
        """
        if self.target != "cuda" or session.readied:
            return
        session.readied = True
        compiled = self.compile(candidate)
        plan = compiled.launched(candidate) if isinstance(compiled, Compiled) else candidate
        work = (self._candidate, plan)
        self._readying = threading.Thread(target=session.make_ready, args=work, daemon=True)
        self._readying.start()

    @property
    def _is_readying(self) -> bool:
        return self._readying is not None and self._readying.is_alive()

    def _await_candidate(self) -> None:
        """Until then nobody else may speak to the candidate worker."""
        if self._readying is not None:
            self._readying.join()
            self._readying = None

    def _settle(self) -> None:
        """Wait until nothing is done in the background."""
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None

    def _load(
        self,
        worker: WorkerProcess,
        task: Task,
        candidate: Candidate,
        recorded: Sequence[Sequence[torch.Tensor]] = (),
        compiled: Compiled | None = None,
    ) -> Session | Failure:
        """Compile the candidate, unless that is done, and load it into a worker."""
        plan = candidate.plan
        for kind, mine, wanted in (
            ("input", plan.input_specs, task.inputs),
            ("output", plan.output_specs, task.output_specs),
        ):
            if not _same_specs(mine, wanted):
                return Refused(f"the plan's {kind}s are not the task's")
        wanted_inputs = [(spec.dtype, spec.shape) for spec in task.inputs]
        for tensors in recorded:
            found = [(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in tensors]
            if found != wanted_inputs:
                return Refused("the recorded inputs are not the task's")
        session = self._open(task)
        if not isinstance(session, Session):
            return session
        made = compiled or self.compile(candidate)
        if not isinstance(made, Compiled):
            return made
        trouble = session.load(worker, made.launched(candidate), made.path)
        if trouble is None and self.target == "cuda":
            # Once for each process, and here, as locking the pages of large outputs takes a while and needs no turn.
            trouble = session.share_outputs(worker)
        return session if trouble is None else trouble

    def _provenance(self, task: Task, candidate: Candidate) -> dict[str, Any]:
        facts = machine.facts()
        return {
            "verifier": VERIFIER_VERSION,
            "task": task.digest,
            "candidate": candidate.digest,
            "label": candidate.label,
            "origin": candidate.origin,
            "arch": self.arch,
            "threads": self.threads,
            "flags": self.flags,
            "inductor": self.inductor,
            "driver": facts.get("driver"),
            "machine": facts,
        }


def is_decided(speed: SpeedReport, wins: int) -> bool:
    """Whether a race needs no other to confirm it. wins: of the races so far, with this one."""
    return not speed.wins or wins > 1 or speed.speedup.low > CLEAR_LEAD


class _Laps:
    """Seconds from one call to the next, without those spent waiting for turns on the device."""

    def __init__(self, device: DeviceLock) -> None:
        self._device = device
        self._last = self._now()

    def _now(self) -> float:
        return time.monotonic() - self._device.waited_s

    def lap(self) -> float:
        before, self._last = self._last, self._now()
        return round(self._last - before, 3)


def _who_and_what(candidate: Candidate) -> tuple[str, str]:
    """What a compilation is remembered by: what may be compiled depends on who wrote it."""
    return candidate.origin, candidate.digest


def _same_specs(mine: Sequence[TensorSpec], wanted: Sequence[TensorSpec]) -> bool:
    """Equal but for strides that are never used."""
    found = [(spec.dtype, spec.shape, spec.stride) for spec in mine]
    return check_metadata(found, wanted) == ""
