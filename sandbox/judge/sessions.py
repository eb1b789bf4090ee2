"""The session of the task at hand, what is prepared for it in the background, and who is loaded into which worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.accuracy.metadata import check_metadata
from sandbox.compile.candidate import Compiled
from sandbox.failures import Failure, Refused
from sandbox.judge.builds import Builds
from sandbox.judge.device import Device
from sandbox.judge.roles import Roles
from sandbox.judge.session import INDUCTOR, Session
from sandbox.judge.settings import JudgeSettings
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import MAX_INPUTS, MAX_OUTPUTS
from sandbox.task.specs import TensorSpec
from sandbox.task.task import Task, TaskError
from sandbox.workers.supervisor import WorkerProcess

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Trial:
    """A candidate for a task, to be loaded into a worker and checked.

    recorded: real inputs of the region, each a list as long as the task's inputs. compiled: the binary, where it is
    another than the one that is compiled for everybody.
    """

    task: Task
    candidate: Candidate
    recorded: Sequence[Sequence[torch.Tensor]] = ()
    compiled: Compiled | None = None


class Sessions:
    """Keeps one session, and the threads that work for it beside others' work."""

    def __init__(
        self, settings: JudgeSettings, roles: Roles, device: Device, builds: Builds
    ) -> None:
        self.settings, self.target = settings, settings.target
        self.roles, self.device, self.builds = roles, device, builds
        self.current: Session | None = None
        self._preparing: threading.Thread | None = None
        self._readying: threading.Thread | None = None

    def open(self, task: Task) -> Session | Failure:
        """The session of a task; that of another task is given up. Its baseline is prepared in the background."""
        if self.current is not None and self.current.task.digest == task.digest:
            return self.current
        refusal = self._why_refused(task)
        if refusal is not None:
            return refusal
        self.roles.build_native()
        self.rest()
        try:
            settings = self.settings
            session = Session(
                task,
                settings.flags,
                settings.timeouts,
                settings.frugal_bytes,
                settings.kept_share,
            )
        except TaskError as error:
            return Refused(f"not a task: {error}")
        self.current = session
        self._preparing = threading.Thread(target=self._prepare, args=(session,), daemon=True)
        self._preparing.start()
        return session

    def _why_refused(self, task: Task) -> Refused | None:
        if task.target != self.target:
            return Refused(f"the task is for {task.target}, this judge for {self.target}")
        inputs, outputs = len(task.inputs), len(task.outputs)
        if not (1 <= inputs <= MAX_INPUTS and 1 <= outputs <= MAX_OUTPUTS):
            return Refused(
                f"{inputs} inputs and {outputs} outputs; up to {MAX_INPUTS} and {MAX_OUTPUTS}"
            )
        return None

    def _prepare(self, session: Session) -> None:
        """Compile the baseline in its worker, while candidates are compiled and checked.

        What goes wrong here comes up again where the baseline is needed.
        """
        session.prepare(self.roles.baseline, INDUCTOR, session.task, "inductor")

    def load(self, worker: WorkerProcess, trial: Trial) -> Session | Failure:
        """Compile the candidate, unless that is done, and load it into a worker."""
        refusal = _why_unfit(trial)
        if refusal is not None:
            return refusal
        session = self.open(trial.task)
        if not isinstance(session, Session):
            return session
        made = trial.compiled or self.builds.compile(trial.candidate)
        if not isinstance(made, Compiled):
            return made
        trouble = session.load(worker, made.launched(trial.candidate), made.path)
        if trouble is None and self.target == "cuda":
            # Once for each process, and here, as locking the pages of large outputs takes a while and needs no turn.
            trouble = session.share_outputs(worker)
        return session if trouble is None else trouble

    def make_ready(self, session: Session, candidate: Candidate) -> None:
        """Compile in the candidate worker what any judgement for the task needs there, while others are profiled.

        Once for each task, and on cuda only: what a profile times there is the device's, on cpu it would be disturbed.
        """
        if self.target != "cuda" or session.readied:
            return
        session.readied = True
        compiled = self.builds.compile(candidate)
        plan = compiled.launched(candidate) if isinstance(compiled, Compiled) else candidate
        work = (self.roles.candidate, plan)
        self._readying = threading.Thread(target=session.make_ready, args=work, daemon=True)
        self._readying.start()

    def await_candidate(self) -> None:
        """Wait until the candidate worker is ready. Until then nobody else may speak to it."""
        if self._readying is not None:
            self._readying.join()
            self._readying = None

    def settle(self) -> None:
        """Wait until the baseline worker does nothing in the background."""
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None

    def is_settled(self, patience_s: float) -> bool:
        """Whether the baseline worker does nothing in the background, once that was waited for so long at most."""
        if self._preparing is not None:
            self._preparing.join(patience_s)
        return self._preparing is None or not self._preparing.is_alive()

    @property
    def is_readying(self) -> bool:
        """Whether something is compiled in the candidate worker in the background."""
        return self._readying is not None and self._readying.is_alive()

    def make_room(self, *keep: WorkerProcess) -> None:
        """In a frugal session, have this process and all workers but these give up what they hold of the device."""
        session = self.current
        if session is None or not session.frugal:
            return
        for worker in self.roles.all:
            if worker not in keep and not (worker is self.roles.candidate and self.is_readying):
                session.shed(worker)  # what goes wrong comes up again when it is asked next
        session.release()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A turn on the device for a race, with nothing of this judge in the background."""
        self.settle()
        for worker in self.roles.all:
            if worker.running and not (worker is self.roles.candidate and self.is_readying):
                worker.ready()  # one that is still starting would disturb the timing; its trouble comes up when asked
        with self.device.turn():
            yield

    def rest(self) -> None:
        """Give up the task at hand, here and in the workers, which stay, with the memory that it took on the device."""
        self.settle()
        self.await_candidate()
        if self.current is None:
            return
        self.current = None
        self.roles.forget(self.settings.timeouts.run)
        self.device.release_memory()

    def close(self) -> None:
        """End the workers and give up all memory."""
        self.settle()
        self.await_candidate()
        self.roles.stop()
        self.current = None


def _why_unfit(trial: Trial) -> Refused | None:
    """Whether plan or recorded inputs are those of another task."""
    task, plan = trial.task, trial.candidate.plan
    for kind, mine, wanted in (
        ("input", plan.input_specs, task.inputs),
        ("output", plan.output_specs, task.output_specs),
    ):
        if not _same_specs(mine, wanted):
            return Refused(f"the plan's {kind}s are not the task's")
    wanted_inputs = [(spec.dtype, spec.shape) for spec in task.inputs]
    for tensors in trial.recorded:
        found = [(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in tensors]
        if found != wanted_inputs:
            return Refused("the recorded inputs are not the task's")
    return None


def _same_specs(mine: Sequence[TensorSpec], wanted: Sequence[TensorSpec]) -> bool:
    """Equal but for strides that are never used."""
    found = [(spec.dtype, spec.shape, spec.stride) for spec in mine]
    return check_metadata(found, wanted) == ""
