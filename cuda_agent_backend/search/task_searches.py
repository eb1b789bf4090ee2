"""Answers one "search" request: all its tasks within one budget, then the rests of those for which nothing wins."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda_agent_backend import log
from cuda_agent_backend.agent.policies.registry import asks_a_model
from cuda_agent_backend.search.budget import order_by_promise, share, share_of_deadline
from cuda_agent_backend.search.durations import Durations
from cuda_agent_backend.search.episode import Say, Search
from cuda_agent_backend.search.judges import Judges, JudgeSource, Seats
from cuda_agent_backend.search.outcome import NothingFound, SearchResult
from cuda_agent_backend.search.promotion import is_usable, keep
from cuda_agent_backend.search.setup import Setup
from cuda_agent_backend.search.side_by_side import AT_ONCE, side_by_side
from cuda_agent_backend.search.task_locks import TaskLocks
from cuda_agent_backend.search.timed_judge import Notes, TimedJudges
from kernel_cache import KernelCache, NegativeRecord
from sandbox.task.task import Task

ELSEWHERE = "another process was still searching it when the time was up"
Emit = Callable[[Mapping[str, Any]], None]


class TaskSearches:
    """The searches of one request. results: what became of each task, by digest, as far as it is known."""

    def __init__(
        self,
        request: Mapping[str, Any],
        setup: Setup,
        search: Search,
        judges: Judges,
        emit: Emit,
    ) -> None:
        self.tasks = [Task.from_json(text) for text in request["tasks"]]
        self.results: dict[str, dict[str, Any]] = {}
        self._of = len(self.tasks)
        self._id, self._graph_s = request["id"], request.get("graph_s")
        self._recorded = dict(request.get("recorded") or {})
        rests = request.get("rests") or {}
        self._rests = {digest: Task.from_json(text) for digest, text in rests.items()}
        sizes = {task.digest: float(moved(task)) for task in (*self.tasks, *self._rests.values())}
        self._promises = sizes | (request.get("promises") or {})
        self._setup, self._search, self._judges, self._emit = setup, search, judges, emit
        self._cache = setup.open_cache()
        asked = float(request.get("asked") or time.monotonic())
        self._asked_at = time.time() - (time.monotonic() - asked)
        self._notes = Notes(asked, Durations(setup.cache_dir).note)
        until = request.get("until") or time.monotonic() + float(request["budget_s"])
        self._deadline = float(until) - judges.unpaid_s

    def run(self) -> dict[str, dict[str, Any]]:
        """Search all tasks, and then the rests of those for which nothing wins; what became of each."""
        self._in_order(self.tasks, begin=True)
        failed = [self._rests[task.digest] for task in self.tasks if self._in_vain(task)]
        more = [task for task in failed if task.digest not in self.results]
        self._of += len(more)
        self._in_order(more)
        return self.results

    def _in_vain(self, task: Task) -> bool:
        """Whether a task has a rest, and is known to have no kernel."""
        from cuda_agent_backend.runtime.machine import key_of

        if task.digest not in self._rests:
            return False
        return isinstance(self._cache.get(key_of(task)), NegativeRecord)

    def _in_order(self, given: Sequence[Task], begin: bool = False) -> None:
        """Search tasks, the most promising first, side by side where they wait for a model.

        begin: the first in any case, however little time is left.
        """
        by_digest = {task.digest: task for task in given}
        operators = {task.digest: len(task.nodes) for task in given}
        tasks = [by_digest[d] for d in order_by_promise(list(by_digest), self._promises, operators)]
        if asks_a_model(self._setup.policy) and len(tasks) > 1:
            self._side_by_side(tasks, begin)
            return
        busy = []
        for done, task in enumerate(tasks):
            promises = [self._promises[t.digest] for t in tasks[done:]]
            left = self._left_s
            seconds = share(left, promises, first=begin and not done and left > 0)
            if not self._one(task, self._judges, seconds):
                busy.append(task)
        for task in busy:
            self._one(task, self._judges, self._left_s, wait=True)

    def _side_by_side(self, tasks: Sequence[Task], begin: bool) -> None:
        many, first = min(len(tasks), AT_ONCE), tasks[0].digest if begin else ""
        with contextlib.closing(Seats(self._judges)) as seats:

            def one(task: Task) -> None:
                seconds = share_of_deadline(self._left_s, many, task.digest == first)
                self._one(task, seats, seconds, wait=True)

            side_by_side(tasks, one)

    @property
    def _left_s(self) -> float:
        """Seconds for all that is not begun yet."""
        return self._deadline + self._judges.unpaid_s - time.monotonic()

    def _one(
        self, task: Task, judges: JudgeSource, seconds: float | None, wait: bool = False
    ) -> bool:
        """Search a task, unless another process does; False where that is so.

        wait: until the other one is done or the time is up, to use what it finds.
        """

        def go_on() -> bool:
            return wait and self._left_s > 0 and not self._judges.is_over()

        with TaskLocks(self._setup.cache_dir).waited_for(task.digest, go_on) as mine:
            if mine:
                self._alone(task, judges, seconds)
            elif wait:
                self.results[task.digest] = {"reason": ELSEWHERE, "begun": False}
            return mine

    def _alone(self, task: Task, judges: JudgeSource, seconds: float | None) -> None:
        if seconds is None or self._judges.is_over():
            reason = "the budget ended before its turn"
            self.results[task.digest] = {"reason": reason, "begun": False}
            return
        inputs = self._recorded.get(task.digest)
        self.results[task.digest] = search_one(
            self._cache,
            task,
            self._setup,
            seconds,
            self._search,
            TimedJudges(judges, self._notes, self._judges.is_over),
            recorded=inputs,
            say=self._say,
            graph_s=self._graph_s,
            since=self._asked_at,
        )

    def _say(self, text: str) -> None:
        numbers = {"done": len(self.results), "of": self._of, "best": self._notes.best}
        self._emit({"id": self._id, "event": "progress", **numbers, "text": text})


def search_one(
    cache: KernelCache,
    task: Task,
    setup: Setup,
    budget_s: float,
    search: Search,
    judges: JudgeSource,
    *,
    recorded: str | None = None,
    say: Say = lambda _: None,
    graph_s: float | None = None,
    since: float = math.inf,
) -> dict[str, Any]:
    """Search one task and keep what is found; what became of it.

    recorded: a folder with its real inputs. graph_s: the budget of its whole graph, None where nobody knows of one.
    since: when its search was asked for (seconds since 1970); what another process found in vain after it is not
    searched again.
    """
    from cuda_agent_backend.runtime.machine import key_of
    from cuda_agent_backend.runtime.tensor_files import load

    key = key_of(task)
    known = cache.get(key)
    if is_usable(known):
        return {"reason": "another process was faster"}
    if isinstance(known, NegativeRecord) and known.created >= since:
        return {"reason": f"another process: {known.reason}"}
    say(f"{len(task.nodes)} operators, {moved(task) / 1e6:.1f} MB")
    inputs = load(Path(recorded)) if recorded else None
    try:
        found = search(task, judges, setup, budget_s, inputs, say)
    except Exception as error:  # ours, a policy's or a tool's: the other tasks have their turn
        log.logger("search").exception("a search failed")
        return {"reason": f"{type(error).__name__}: {error}", "passing": True}
    kept = keep(cache, key, task, found, setup.policy.label, budget_s, graph_s)
    won = isinstance(found, SearchResult) and not kept
    say("promoted" if won else kept or found.reason)
    if isinstance(found, NothingFound) and found.late:
        return {"reason": found.reason, "begun": False}
    passing = bool(kept) or (isinstance(found, NothingFound) and not found.keep)
    if passing:
        log.logger("search").warning("it may pass, and is tried again: %s", kept or found.reason)
    told = {"promoted": won, "turns": found.turns, "passing": passing}
    return {"reason": kept or found.reason, **told}


def moved(task: Task) -> int:
    """Bytes of a task's inputs and outputs."""
    return sum(spec.numel * spec.itemsize for spec in (*task.inputs, *task.output_specs))
