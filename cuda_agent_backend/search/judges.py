"""The judges of the search process, kept between tasks and shared among threads."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from itertools import islice
from threading import Timer
from typing import TYPE_CHECKING, Any, Protocol

from cuda_agent_backend.agent.policies.registry import DETERMINISTIC
from cuda_agent_backend.search.setup import Setup
from sandbox.task.task import Task

if TYPE_CHECKING:
    from sandbox.judge.pool import Pool


FIRST = 3
"""Candidates that a search compiles before it times any."""


IDLE_S = 60.0
"""After so long without a task workers end: each has a context of some 0.5 GB on the device, which others may want."""


class JudgeSource(Protocol):
    """What a search takes its judge from. unpaid_s: seconds so far that no budget pays for."""

    @property
    def unpaid_s(self) -> float: ...

    def start(self, target: str, setup: Setup) -> None:
        """Begin to start the judge that `get` will give, without waiting for it."""

    def get(self, task: Task, setup: Setup) -> Any:
        """The judge for a task's target under the setup's flags."""


class Judges:
    """The judges of this process, kept between tasks: their workers are slow to start.

    One for each target and whatever of a setup a judge is made with: what one compilation consents to, no other does.
    is_over: asked between the steps of a judgement, which is left where nobody waits for it any more.
    """

    def __init__(self, is_over: Callable[[], bool] = lambda: False) -> None:
        self.is_over = is_over
        self._stack = contextlib.ExitStack()
        self._judges: dict[tuple[str, str], Any] = {}
        self._used: set[int] = set()
        """Judges, by `id`, that had a task already."""
        self._closed = False
        self._starting = threading.RLock()
        self._idle: Timer | None = None
        """Ends workers that nobody asks anything for a while."""
        self._tasks = 0
        """How often a task came, so that a timer knows whether one did since it began."""

    @property
    def unpaid_s(self) -> float:
        """Seconds that no budget pays for: waiting for other processes' turns on the device."""
        return sum(float(judge.waited_s) for judge in list(self._judges.values()))

    def start(self, target: str, setup: Setup) -> None:
        """Begin to start a judge, whose workers import torch, while this process imports what it needs itself.

        What goes wrong comes up again in `get`.
        """

        def begin() -> None:
            with contextlib.suppress(Exception):
                self._judge(target, setup)

        if _key(target, setup) not in self._judges:
            threading.Thread(target=begin, daemon=True).start()

    def prepare(self, target: str, setup: Setup) -> None:
        """Have the judge that `get` will give, with workers that can be asked, before there is a task to pay for that.

        What goes wrong comes up again in `get`.
        """
        with contextlib.suppress(Exception), self._starting:
            self._wake()
            self._judge(target, setup).ready()

    def get(self, task: Task, setup: Setup) -> Any:
        """The judge for a task's target under the setup's flags; a new one has the task's baselines already."""
        with self._starting:
            self._wake()
            judge = self._judge(task.target, setup)
            if id(judge) not in self._used:
                self._used.add(id(judge))
                judge.open(task)
                self._compile_first(judge, task, setup)
                judge.baselines(task)
            return judge

    def _judge(self, target: str, setup: Setup) -> Any:
        from sandbox.scratch import folder

        key = _key(target, setup)
        with self._starting:
            if self._closed:
                raise RuntimeError("the judges of this process have ended")
            if key not in self._judges:
                scratch = self._stack.enter_context(folder("judge"))
                judge = self._stack.enter_context(make_judge(target, setup, scratch, self.is_over))
                self._judges[key] = judge
            return self._judges[key]

    def _compile_first(self, judge: Any, task: Task, setup: Setup) -> None:
        """Compile what a search asks for first, while on another core Inductor compiles the first baseline."""
        from cuda_agent_backend.agent.policies.search.prefetch import proposals

        if setup.policy.name in DETERMINISTIC:
            for candidate in islice(proposals(task), FIRST):
                if self.is_over():
                    return
                judge.compile(candidate)

    def take_notes(self) -> dict[str, Any]:
        """What leases on the device's memory came to since this was asked last (see `sandbox.memory.notes`)."""
        from sandbox.memory.notes import merged

        return merged(judge.take_notes() for judge in list(self._judges.values()))

    def interrupt(self) -> None:
        """End what the workers do, from any thread, as nobody waits for it any more."""
        for judge in list(self._judges.values()):
            judge.interrupt()

    def rest(self) -> None:
        """Give up what the last tasks took of the device's memory, which belongs to the user's model; and after
        `IDLE_S` without a task the workers' contexts on a GPU, too."""
        for judge in self._judges.values():
            judge.rest()
        with self._starting:
            self._wake()
            if any(target == "cuda" for target, _ in self._judges) and not self._closed:
                self._idle = Timer(IDLE_S, self._close_contexts, [self._tasks])
                self._idle.daemon = True
                self._idle.start()

    def _wake(self) -> None:
        """Let nobody end the workers: a task comes. Those that were ended start when they are asked something."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = None
        self._tasks += 1

    def _close_contexts(self, tasks: int) -> None:
        """In the timer's thread, unless a task came meanwhile. tasks: that had come before."""
        with self._starting:
            if self._tasks != tasks:
                return
            for (target, _), judge in self._judges.items():
                if target == "cuda":
                    judge.close_contexts()

    def close(self) -> None:
        """End all workers; none is started any more."""
        with self._starting:
            self._wake()
            self._closed = True
            self._judges.clear()
            self._stack.close()


def _key(target: str, setup: Setup) -> tuple[str, str]:
    """What a judge is known by: its target, and whatever of a setup it is made with."""
    own = {"flags": dict(setup.flags), "consent": setup.allow_policy_cpp}
    return target, json.dumps({**own, "lock": str(setup.device_lock)}, sort_keys=True)


class Seats:
    """The judges as threads share them: each gets a seat of its own, and all have one deadline."""

    def __init__(self, judges: Judges) -> None:
        self._judges = judges
        self._pools: dict[int, Pool] = {}
        self._making = threading.Lock()

    @property
    def unpaid_s(self) -> float:
        """See `JudgeSource`."""
        return self._judges.unpaid_s

    def start(self, target: str, setup: Setup) -> None:
        """See `Judges.start`."""
        self._judges.start(target, setup)

    def get(self, task: Task, setup: Setup) -> Pool:
        """See `Judges.get`."""
        from sandbox.judge.pool import Pool

        judge = self._judges.get(task, setup)
        with self._making:
            return self._pools.setdefault(id(judge), Pool(judge)).seat(paying=True)

    def close(self) -> None:
        """Let nobody begin anything more."""
        for pool in self._pools.values():
            pool.end()


def make_judge(
    target: str, setup: Setup, scratch: str, is_over: Callable[[], bool] = lambda: False
) -> Any:
    """The sandbox's judge for a target: a context manager that owns the worker processes."""
    from cuda_agent_backend.runtime.machine import arch_of
    from sandbox.judge import Judge
    from sandbox.judge.settings import JudgeSettings, Timeouts

    return Judge(
        JudgeSettings(
            target,
            scratch_dir=scratch,
            native_dir=setup.native_dir,
            arch=arch_of(target),
            threads=int(setup.flags["threads"]),
            flags=setup.flags["torch"],
            consent=setup.allow_policy_cpp,
            device_lock=setup.device_lock,
            timeouts=Timeouts(is_over=is_over),
        )
    )
