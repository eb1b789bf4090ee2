"""One full judgement, on which promotion rests: check, race, sanitizer, and the evidence of each."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sandbox.accuracy.inputs import make_inputs
from sandbox.accuracy.report import AccuracyReport
from sandbox.compile.candidate import Compiled
from sandbox.failures import Refused
from sandbox.isolation.confine import offered
from sandbox.judge.checks import check_trial
from sandbox.judge.device import Device
from sandbox.judge.measurements import Measurements
from sandbox.judge.rounds import Effort
from sandbox.judge.session import INDUCTOR, Session
from sandbox.judge.sessions import Trial
from sandbox.judge.settings import JudgeSettings
from sandbox.judge.verify import THOROUGH
from sandbox.sanitizer import tool as sanitizer
from sandbox.timing import machine
from sandbox.timing.decision import SpeedReport
from sandbox.verdict import VERIFIER_VERSION, Correct, Outcome, TooSlow

if TYPE_CHECKING:
    import torch

    from sandbox.plan.candidate import Candidate
    from sandbox.task.task import Task


class Judgement:
    """Of a trial whose candidate was compiled for it. eager_task: what eager mode runs, if not the task itself.

    evidence: what is known before; each step adds to it, and it is whole however the judgement ends.
    """

    def __init__(
        self,
        measurements: Measurements,
        trial: Trial,
        evidence: dict[str, Any],
        eager_task: Task | None = None,
        effort: Effort | None = None,
    ) -> None:
        assert trial.compiled is not None
        self.measurements, self.sessions = measurements, measurements.sessions
        self.trial, self.compiled, self.eager_task = trial, trial.compiled, eager_task
        self.effort, self.evidence = effort or Effort(), evidence

    def run(self) -> Outcome:
        """Check, then race, then, on cuda, run the sanitizer's tools; the first that fails decides."""
        sessions, worker = self.sessions, self.sessions.roles.candidate
        sessions.await_candidate()
        session = sessions.load(worker, self.trial)
        if not isinstance(session, Session):
            return session
        self._tell_surroundings()
        laps, seconds = _Laps(sessions.device), dict[str, float]()
        checked = check_trial(sessions, session, worker, self.trial, THOROUGH)
        seconds["check"] = laps.lap()
        self.evidence |= {"seconds": seconds, "draws": checked.draws}
        if not isinstance(checked.outcome, Correct):
            return checked.outcome
        on_cuda = sessions.target == "cuda"
        if on_cuda:  # what the race runs beside the candidate: compiling takes no turn
            session.prepare(worker, INDUCTOR, self.trial.task, "inductor")
        outcome = self._time(session, checked.outcome.accuracy)
        seconds["race"] = laps.lap()
        if isinstance(outcome, Correct) and on_cuda:
            outcome = self._sanitize(session) or outcome
            seconds["sanitizer"] = laps.lap()
        return outcome

    def _tell_surroundings(self) -> None:
        worker, compiled = self.sessions.roles.candidate, self.compiled
        self.evidence["isolation"] = {
            "compiler": offered().to_dict(),
            "worker": worker.isolation.to_dict(),
            "sealed": bool(worker.holds),
        }
        self.evidence["toolchain"] = compiled.toolchain.version
        self.evidence["kernel_facts"] = dict(compiled.facts)
        if compiled.plan is not None:
            self.evidence["written_plan"] = json.loads(self.trial.candidate.plan.to_json())

    def _time(self, session: Session, accuracy: AccuracyReport) -> Outcome:
        """What follows when the outputs are right."""
        measurements, evidence = self.measurements, self.evidence
        speed = measurements.race_until_sure(session, self.eager_task, self.effort, evidence)
        if not isinstance(speed, SpeedReport):
            return speed
        impossible = measurements.why_impossible(self.trial.task, speed, evidence)
        if impossible is not None:
            return impossible
        evidence["achieved"] = measurements.achieved(session, speed).to_dict()
        return Correct(accuracy, speed) if speed.wins else TooSlow(accuracy, speed)

    def _sanitize(self, session: Session) -> Refused | None:
        device = self.sessions.device
        return sanitize(device, session, self.trial.candidate, self.compiled, self.evidence)


def sanitize(
    device: Device,
    session: Session,
    candidate: Candidate,
    compiled: Compiled,
    evidence: dict[str, Any],
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

    with device.shared():  # under its tools kernels take as long as a hundred runs
        reports = sanitizer.sanitize(compiled.path, compiled.launched(candidate).plan, draw)
    evidence["sanitizer"] = [report.to_dict() for report in reports]
    for report in reports:
        if report.status == "errors":
            return Refused(f"compute-sanitizer, {report.tool}: {report.detail}")
    return None


def provenance(settings: JudgeSettings, task: Task, candidate: Candidate) -> dict[str, Any]:
    """What is judged, by whom and where: the evidence that is there before anything was run."""
    facts: Mapping[str, Any] = machine.facts()
    return {
        "verifier": VERIFIER_VERSION,
        "task": task.digest,
        "candidate": candidate.digest,
        "label": candidate.label,
        "origin": candidate.origin,
        "arch": settings.arch,
        "threads": settings.threads,
        "flags": dict(settings.flags),
        "inductor": dict(settings.inductor),
        "driver": facts.get("driver"),
        "machine": facts,
    }


class _Laps:
    """Seconds from one call to the next, without those spent waiting for turns on the device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._last = self._now()

    def _now(self) -> float:
        return time.monotonic() - self._device.waited_s

    def lap(self) -> float:
        before, self._last = self._last, self._now()
        return round(self._last - before, 3)
