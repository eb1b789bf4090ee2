"""The search process: `python -m cuda_agent_backend.search.service`, one per user process, spoken to in JSON lines.

It owns the sandbox's judge, runs the agent on each task, promotes what wins into the kernel cache, and has whole graphs
measured. A promotion is durable before it is reported, so killing this process at any moment loses nothing promoted.
It ends when its standard input does.

Requests: {"id", "do": "prepare" | "search" | "drain" | "accept", ...}, each with "setup" (see `Setup`). Searches and
measurements that are waited for have moments of the system's monotonic clock: nothing new begins after "until", and
what is under way ends at the next step after "hard_until". {"id", "do": "leave"}: nobody waits for a request any more,
which ends at the next step.
Answers: {"id", "event": "progress" | "result" | "failed", ...}; the last one of a request has "waited_s", the seconds
that it waited for other processes' turns on the device and for their memory, which are nobody's to pay for.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from cuda_agent_backend.acceptance.whole_graph import keys_of
from cuda_agent_backend.runtime.child_process import own_stdout
from cuda_agent_backend.search.current import Current
from cuda_agent_backend.search.episode import Search, search_task
from cuda_agent_backend.search.graph_measurement import GraphMeasurer
from cuda_agent_backend.search.judges import Judges
from cuda_agent_backend.search.setup import Setup
from cuda_agent_backend.search.task_searches import Emit, TaskSearches, search_one
from kernel_cache import CacheUnavailable, KernelCache
from kernel_cache.owners import own_name
from kernel_cache.queue import QueuedTask
from sandbox import scratch
from sandbox.task.task import Task
from sandbox.timing.turns import TurnsOver

EXIT_GRACE_S = 5.0
QUEUED_S = 60.0
"""For a task in the background queue whose budget nobody wrote down."""


class Service:
    """Carries requests out, one at a time; the background queue is worked on when there is nothing else."""

    def __init__(self, emit: Emit, search: Search) -> None:
        self.emit, self.search = emit, search
        self.requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.current = Current()
        self.judges = Judges(self.current.is_over)
        self.measurer = GraphMeasurer(emit, self.current.is_over)
        self.background: Setup | None = None
        self.later: list[tuple[Mapping[str, Any], Setup]] = []
        """Graphs to be measured when the background queue is empty."""

    def run(self) -> None:
        """Serve until the input ends."""
        while True:
            try:
                request = self.requests.get(block=self.background is None)
            except queue.Empty:
                self._one_from_queue()
                continue
            if request is None:
                return
            self._serve(request)

    @property
    def unpaid_s(self) -> float:
        """Seconds so far that no budget pays for: waiting for other processes' turns and leases."""
        return self.judges.unpaid_s + self.measurer.unpaid_s

    def close(self) -> None:
        """End all processes of this one."""
        self.measurer.close()
        self.judges.close()

    def _serve(self, request: Mapping[str, Any]) -> None:
        number, before_s = request.get("id"), self.unpaid_s
        try:
            with self.current.of(request, lambda: self.unpaid_s):
                if self.current.is_over():
                    raise TurnsOver
                answer = self._carry_out(request)
        except (TurnsOver, Exception) as error:
            answer = _failed(error)
        self.emit({"id": number, **answer, "waited_s": self.unpaid_s - before_s})
        self._rest()

    def _rest(self) -> None:
        with contextlib.suppress(Exception):  # a device in trouble is the next request's to tell
            self.judges.rest()

    def _carry_out(self, request: Mapping[str, Any]) -> dict[str, Any]:
        from cuda_agent_backend.runtime.machine import apply_flags

        setup = Setup.from_json(request["setup"])
        apply_flags(setup.flags)
        match request["do"]:
            case "prepare":
                return self._prepare(request["target"], setup)
            case "search":
                return self._search(request, setup)
            case "accept":
                return self.measurer.measure(request, setup)
            case "drain":
                self.background = setup
                if request.get("later"):
                    self.later.append((request["later"], setup))
                return {"event": "result"}
        return {"event": "failed", "reason": f"unknown request {request['do']!r}"}

    def _prepare(self, target: str, setup: Setup) -> dict[str, Any]:
        """Have all up that the first search would wait for."""
        if target == "cuda":
            self.measurer.start_ahead()
        self.judges.prepare(target, setup)
        return {"event": "result"}

    def _search(self, request: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
        searches = TaskSearches(request, setup, self.search, self.judges, self.emit)
        if any(task.target == "cuda" for task in searches.tasks):
            self.measurer.start_ahead()  # on cpu it would disturb what is timed
        self.judges.take_notes()  # of whatever came before
        try:
            answer: dict[str, Any] = {"event": "result", "tasks": searches.run()}
        except (TurnsOver, Exception) as error:
            answer = _failed(error)
        # What was held until then is known, also where a search is left within a judgement.
        return {**answer, "memory": self.judges.take_notes()}

    def _one_from_queue(self) -> None:
        """Take one task from the background queue; without any, stop looking until asked again."""
        assert self.background
        setup = self.background
        cache = setup.open_cache()
        queued = cache.claim(own_name())
        if queued is None or isinstance(queued, CacheUnavailable):
            self._queue_ended()
            return
        try:
            self._queued(queued, cache, setup)
        except Exception as error:
            self.emit({"id": 0, "event": "failed", "reason": f"{type(error).__name__}: {error}"})
            cache.done(queued)

    def _queued(self, queued: QueuedTask, cache: KernelCache, setup: Setup) -> None:
        from cuda_agent_backend.runtime.machine import key_of

        task = Task.from_json(queued.task)
        mine = setup.policy.label
        if key_of(task) != queued.key or queued.meta.get("policy", mine) != mine:
            cache.release(queued)  # wanted under other flags or of another policy: not ours to do
            self.background = None
            self._rest()
            return
        budget_s = queued.meta.get("budget_s", QUEUED_S)
        assert isinstance(budget_s, int | float)
        search_one(cache, task, setup, float(budget_s), self.search, self.judges)
        self.emit({"id": 0, "event": "searched", "task": task.digest})
        cache.done(queued)

    def _queue_ended(self) -> None:
        self.background = None
        self._rest()
        for request, own in self.later:
            self._measure_later(request, own)
        self.later.clear()
        self.emit({"id": 0, "event": "idle"})

    def _measure_later(self, request: Mapping[str, Any], setup: Setup) -> None:
        """Measure a graph with the kernels that there are for it now."""
        from cuda_agent_backend.runtime.kernels import Hit, Kernels

        kernels, least = Kernels(setup.open_cache()), request["min_speedup"]
        there = [k for k in keys_of(request) if isinstance(kernels.find(k, least), Hit)]
        if there:
            named = [key.to_fields() for key in there]
            self.measurer.measure({**request, "id": 0, "kernels": named}, setup)


def _failed(error: BaseException) -> dict[str, Any]:
    """The answer where a request was left, or where something went wrong."""
    left = isinstance(error, TurnsOver)
    reason = "left before it was done" if left else f"{type(error).__name__}: {error}"
    return {"event": "failed", "reason": reason}


def main(search: Search = search_task) -> int:
    """Serve requests from standard input. `search` is what works on one task."""
    out = own_stdout()
    lock = threading.Lock()

    def emit(message: Mapping[str, Any]) -> None:
        with lock, contextlib.suppress(OSError):
            out.write(json.dumps(message) + "\n")
            out.flush()

    service = Service(emit, search)
    threading.Thread(target=_read, args=(service,), daemon=True).start()
    emit({"id": 0, "event": "ready"})
    try:
        service.run()
    except KeyboardInterrupt:
        pass
    finally:
        scratch.sweep()  # what the parent left, if it was killed
        with contextlib.suppress(Exception):
            service.close()
    return 0


def _read(service: Service) -> None:
    """Pass requests on. When the parent is gone, interrupt the work, and soon end by force."""
    for line in sys.stdin:
        with contextlib.suppress(ValueError):
            request = json.loads(line)
            if request.get("do") == "leave":
                if service.current.leave(request.get("id")):
                    service.judges.interrupt()
            else:
                service.requests.put(request)
    service.requests.put(None)
    _thread.interrupt_main()
    time.sleep(EXIT_GRACE_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
