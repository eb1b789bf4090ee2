"""The judge as the tools of an episode see it."""

from __future__ import annotations

from typing import Any, Protocol

from sandbox.compile.disassembly import Inspection
from sandbox.failures import Failure
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task
from sandbox.verdict import Baselines, Outcome, Verdict


class Bench(Protocol):
    """The part of the sandbox's judge that tools use."""

    def baselines(self, task: Task) -> Baselines | Failure: ...

    def compile(self, candidate: Candidate) -> Any: ...

    def inspect(self, candidate: Candidate) -> Inspection | Failure: ...

    def verify(self, task: Task, candidate: Candidate) -> Outcome: ...

    def profile(self, task: Task, candidate: Candidate, *, worth: float) -> Outcome: ...

    def judge(self, task: Task, candidate: Candidate) -> Verdict: ...
