"""Many episodes side by side over one judge, each in a thread of its own.

Policies wait for their models most of the time, so many episodes keep one judge busy. A fault harms the episode in
which it happens. When the caller stops (an interrupt, or a loop left early) nothing new begins, what the judge is at is
finished, and the trajectories are left to be resumed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from cuda_agent_backend import log
from cuda_agent_backend.agent.environment import Environment, open_environment
from cuda_agent_backend.agent.loop import Budget, EpisodeResult, run_episode
from cuda_agent_backend.agent.protocol import Message, Policy, Schema, Stopped, Turn, closed
from cuda_agent_backend.agent.resume import Begun, begin
from cuda_agent_backend.agent.tools.judge_protocol import Bench
from cuda_agent_backend.agent.tools.toolbox import Toolbox
from cuda_agent_backend.agent.trajectories.events import Header
from sandbox.judge.pool import Pool
from sandbox.task.task import Task
from sandbox.timing.turns import TurnsOver

GRACE_S = 60.0
POLICY_GRACE_S = 5.0
"""How long is waited when everything is to stop: for what the judge is at, and for policies that are being asked."""
ASK_S = 0.2

HeaderOf = Callable[[Task, str, Sequence[Schema]], Header]
Opens = Callable[[Task, Any], Environment]


def without_files(task: Task, bench: Bench) -> Environment:
    """Kernel tools alone, for policies that need no files."""
    return open_environment(task, bench, None)


@dataclass(frozen=True)
class Finished:
    """An episode that came to its end. number: of its task among those given. path: of its trajectory, if any."""

    number: int
    task: Task
    result: EpisodeResult
    path: Path | None = None


@dataclass(frozen=True)
class Fleet:
    """How episodes are run.

    make_policy: a policy for one episode; environment: what it works in, on a seat of the pool. at_once: episodes side
    by side. policy_calls: policies that may be asked at the same time. folder, header_of: where trajectories are kept,
    and what their headers say; without both there are none. Waiting for others' turns at the judge costs no budget.
    """

    pool: Pool
    make_policy: Callable[[Task], Policy]
    budget: Budget
    at_once: int = 64
    policy_calls: int = 64
    folder: Path | None = None
    header_of: HeaderOf | None = None
    environment: Opens = without_files

    def run(self, tasks: Sequence[Task]) -> Iterator[Finished]:
        """An episode for each task; results as they come. Begins when first asked.

        Left early, or interrupted, it ends the pool too (see `Pool.end`); `contextlib.closing` leaves it at once.
        """
        crew = _Crew(self, tasks)
        crew.start()
        left = len(tasks)
        try:
            while left:
                yield crew.results.get()
                left -= 1
        finally:
            crew.stop(early=left > 0)


@dataclass
class _Crew:
    """The threads of one run."""

    fleet: Fleet
    tasks: Sequence[Task]
    results: SimpleQueue[Finished] = field(default_factory=SimpleQueue)
    cancelled: threading.Event = field(default_factory=threading.Event)
    running: dict[int, Begun] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.calls = threading.Semaphore(self.fleet.policy_calls)
        self.numbers = iter(range(len(self.tasks)))
        count = min(self.fleet.at_once, len(self.tasks))
        self.threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def stop(self, early: bool) -> None:
        """Wait for the threads; early: have them begin nothing more, and let go of those that do not come back."""
        if early:
            self.cancelled.set()
            self.fleet.pool.end()
        started = time.monotonic()
        for thread in self.threads:
            while thread.is_alive():
                waited = time.monotonic() - started
                if waited > GRACE_S or (waited > POLICY_GRACE_S and self._only_policies_are_left()):
                    break
                thread.join(ASK_S)
        with self.lock:
            for begun in self.running.values():
                if begun.record is not None:
                    begun.record.close()

    def _only_policies_are_left(self) -> bool:
        """Whether whoever still runs waits for a policy, which may take for ever and writes nothing."""
        with self.lock:
            return all(getattr(b.policy, "asked", False) for b in self.running.values())

    def _work(self) -> None:
        while not self.cancelled.is_set():
            with self.lock:
                number = next(self.numbers, None)
            if number is None:
                return
            try:
                finished = self._episode(number, self.tasks[number])
            except TurnsOver as told:
                stopped = EpisodeResult(None, str(told), stop="interrupted")
                finished = Finished(number, self.tasks[number], stopped)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                log.logger("search").exception("an episode failed")
                failed = EpisodeResult(None, reason, stop="bug")
                finished = Finished(number, self.tasks[number], failed)
            self.results.put(finished)

    def _episode(self, number: int, task: Task) -> Finished:
        fleet, seat = self.fleet, self.fleet.pool.seat()
        with fleet.environment(task, seat) as environment:
            return self._play(number, task, environment.tools, seat)

    def _play(self, number: int, task: Task, tools: Toolbox, seat: Pool) -> Finished:
        fleet = self.fleet

        def make() -> _Asked:
            return _Asked(fleet.make_policy(task), self.calls, self.cancelled)

        begun = self._begin(task, make, tools.schemas)
        with self.lock:
            self.running[number] = begun
        try:
            with closed(begun.policy):
                result = run_episode(
                    begun.policy,
                    tools,
                    fleet.budget,
                    clock=lambda: time.monotonic() - seat.waited_s,
                    record=begun.record,
                    past=begun.past,
                    cancelled=self.cancelled.is_set,
                )
        finally:
            with self.lock:
                del self.running[number]
                if begun.record is not None:
                    begun.record.close()
        return Finished(number, task, result, None if begun.record is None else begun.record.path)

    def _begin(self, task: Task, make: Callable[[], _Asked], schemas: Sequence[Schema]) -> Begun:
        fleet = self.fleet
        if fleet.folder is None or fleet.header_of is None:
            return Begun(make(), None)
        made = [make()]
        header = fleet.header_of(task, made[0].name, schemas)
        return begin(fleet.folder, header, lambda: made.pop() if made else make(), schemas)


class _Asked:
    """A policy that waits until it may be asked."""

    def __init__(
        self, policy: Policy, calls: threading.Semaphore, cancelled: threading.Event
    ) -> None:
        self.policy, self.calls, self.cancelled = policy, calls, cancelled
        self.name = policy.name
        self.asked = False
        """Whether it is being asked, or waits for that, just now."""

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        self.asked = True
        try:
            while not self.calls.acquire(timeout=ASK_S):
                self._go_on()
            try:
                self._go_on()
                return self.policy.act(messages, tools)
            finally:
                self.calls.release()
        finally:
            self.asked = False

    def _go_on(self) -> None:
        if self.cancelled.is_set():
            raise TurnsOver("told to stop")

    def __getattr__(self, name: str) -> Any:
        """Whatever else a policy may have: `close`, `resume`, `spent`."""
        return getattr(self.policy, name)
