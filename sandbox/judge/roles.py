"""The judge's three worker processes.

All are the same program, called through the same wrapper (see `sandbox.workers.loop`) and confined in the same way, so
that confinement costs all the same. They differ in what they run:

* the baseline worker runs eager mode and Inductor's code;
* the scratch worker runs candidates that are tried out;
* the candidate worker runs those that are judged.

Nothing that a candidate left in the scratch worker reaches a verdict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sandbox.judge.settings import JudgeSettings
from sandbox.verdict import Outcome, Wrong
from sandbox.workers.settings import WorkerSettings
from sandbox.workers.starter import ForkServer
from sandbox.workers.supervisor import WorkerProcess


class Roles:
    """The workers by role."""

    def __init__(self, settings: JudgeSettings) -> None:
        self.target = settings.target
        self._native = settings.native
        server = ForkServer(settings.scratch / "forkserver")
        self.baseline, self.scratch, self.candidate = self.all = tuple(
            WorkerProcess(_worker_settings(settings, role), server)
            for role in ("baseline", "scratch", "candidate")
        )

    def start(self) -> None:
        """Start them without waiting, but for the operator library, which is built where it is missing.

        The server imports meanwhile, and then makes the worker that needs no library and the most time.
        """
        self.baseline.start_server()
        if self.target == "cpu":
            self.baseline.launch()
        self.build_native()
        for worker in self.all:
            worker.launch()

    def build_native(self) -> None:
        """Build the operator library here: workers may not write to its folder. Without it they serve in Python."""
        if self._native:
            from sandbox.launcher.native import find_or_build

            find_or_build(Path(self._native))
            self._native = ""

    def stop(self) -> None:
        """End them."""
        for worker in self.all:
            worker.stop()

    def forget(self, timeout_s: float) -> None:
        """Have them give up their task, with the memory that it took on the device."""
        for worker in self.all:
            if worker.holds:
                worker.renew()
            elif worker.running:
                worker.ask("forget", {"do": "forget"}, timeout_s)

    def rid(self, worker: WorkerProcess, outcome: Outcome) -> Outcome:
        """After a wrong candidate nothing of it may be left in a process, such as a thread that still works."""
        if self.target == "cpu" and isinstance(outcome, Wrong):
            worker.renew()
        return outcome

    def clear_candidate(self, outcome: Outcome) -> None:
        """After a judgement: a process that held untrusted host code ends, and the next one is ready when needed."""
        if self.candidate.holds:
            self.candidate.renew()
        else:
            self.rid(self.candidate, outcome)


def _worker_settings(settings: JudgeSettings, role: str) -> WorkerSettings:
    calls_operators = (
        settings.target == "cuda" or role != "baseline"
    )  # where baselines run beside candidates, too
    hello: dict[str, Any] = {
        "target": settings.target,
        "threads": settings.threads,
        "flags": dict(settings.flags),
        "inductor": dict(settings.inductor),
        "native": settings.native if calls_operators else "",
    }
    folder, start = settings.scratch / role, settings.timeouts.start
    return WorkerSettings(role, folder, settings.threads, hello, start, settings.memory_bytes)
