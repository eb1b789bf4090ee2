"""A judge that notes what its steps take, and the best that it has timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cuda_agent_backend.search.durations import FIRST_CANDIDATE, JUDGEMENT
from cuda_agent_backend.search.judges import JudgeSource
from cuda_agent_backend.search.setup import Setup
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task
from sandbox.timing.turns import TurnsOver

WHOLE = ("wins", "too_slow")
"""Verdicts of judgements that went through all their steps."""


class Notes:
    """What is noted in one request.

    asked: when it was asked, on the monotonic clock. note: takes a kind of step and its seconds.
    """

    def __init__(self, asked: float, note: Callable[[str, float], None]) -> None:
        self._asked, self._note = asked, note
        self._timed_any = False
        self.best = 0.0
        """The best speed-up over the faster baseline that was timed."""

    def profiled(self, outcome: Any) -> None:
        """A candidate was tried; the outcome of one that was timed has a speed."""
        speed = getattr(outcome, "speed", None)
        if speed is None:
            return
        self.best = max(self.best, float(speed.speedup.median))
        if not self._timed_any:
            self._timed_any = True
            self._note(FIRST_CANDIDATE, time.monotonic() - self._asked)

    def judged(self, verdict: Any, seconds: float) -> None:
        """A candidate was judged."""
        if verdict.status in WHOLE:
            self._note(JUDGEMENT, seconds)


class TimedJudge:
    """A judge, or a seat at one, with notes of what it does.

    is_over: whether nobody waits for that any more. Then every step but a judgement that was won raises `TurnsOver`, so
    that nothing is recorded of workers that were interrupted.
    """

    def __init__(self, judge: Any, notes: Notes, is_over: Callable[[], bool]) -> None:
        self._judge, self._notes, self.is_over = judge, notes, is_over

    def no_room(self, task: Task) -> Any:
        """See `Judge.no_room`; None of a judge that does not count memory."""
        asked = getattr(self._judge, "no_room", None)
        return self._waited_for(asked(task)) if asked else None

    def baselines(self, task: Task, **options: Any) -> Any:
        """See `Judge.baselines`."""
        return self._waited_for(self._judge.baselines(task, **options))

    def verify(self, task: Task, candidate: Candidate, **options: Any) -> Any:
        """See `Judge.verify`."""
        return self._waited_for(self._judge.verify(task, candidate, **options))

    def profile(self, task: Task, candidate: Candidate, **options: Any) -> Any:
        """See `Judge.profile`."""
        outcome = self._waited_for(self._judge.profile(task, candidate, **options))
        self._notes.profiled(outcome)
        return outcome

    def judge(self, task: Task, candidate: Candidate, **options: Any) -> Any:
        """See `Judge.judge`."""
        begun = time.monotonic() - self._judge.waited_s
        verdict = self._judge.judge(task, candidate, **options)
        if not verdict.wins:
            self._waited_for(verdict)
        self._notes.judged(verdict, time.monotonic() - self._judge.waited_s - begun)
        return verdict

    def _waited_for(self, outcome: Any) -> Any:
        """The outcome, which may come of an interrupt where nobody waits any more: then it raises `TurnsOver`."""
        if self.is_over():
            raise TurnsOver("nobody waits for it any more")
        return outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self._judge, name)


class TimedJudges:
    """A source of judges, each with notes of what it does."""

    def __init__(self, judges: JudgeSource, notes: Notes, is_over: Callable[[], bool]) -> None:
        self._judges, self._notes, self.is_over = judges, notes, is_over

    @property
    def unpaid_s(self) -> float:
        """See `JudgeSource`."""
        return self._judges.unpaid_s

    def start(self, target: str, setup: Setup) -> None:
        """See `JudgeSource.start`."""
        self._judges.start(target, setup)

    def get(self, task: Task, setup: Setup) -> TimedJudge:
        """See `JudgeSource.get`."""
        return TimedJudge(self._judges.get(task, setup), self._notes, self.is_over)
