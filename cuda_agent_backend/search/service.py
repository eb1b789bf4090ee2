"""The search process: `python -m cuda_agent_backend.search.service`, one per user process, spoken to in JSON lines.

It owns the sandbox's judge, runs the agent on each task, promotes what wins into the kernel cache, and has whole graphs
measured. A promotion is durable before it is reported, so killing this process at any moment loses nothing promoted.
It ends when its standard input does.

Requests: {"id", "do": "search" | "drain" | "accept", ...}, each with "setup" (see `Setup`).
Answers: {"id", "event": "progress" | "result" | "failed", ...}.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cuda_agent_backend import log
from cuda_agent_backend.acceptance.process import AHEAD, keys_of
from cuda_agent_backend.acceptance.rule import decision_of
from cuda_agent_backend.agent.policies.registry import asks_a_model
from cuda_agent_backend.agent.policies.spec import PolicySpec
from cuda_agent_backend.runtime.child_process import WAITING_S, Child, own_stdout
from cuda_agent_backend.search.budget import by_promise, share, together
from cuda_agent_backend.search.promotion import Searched, SearchResult, keep
from kernel_cache import CacheUnavailable, KernelCache, NegativeRecord
from sandbox.task.task import Task

if TYPE_CHECKING:
    from sandbox.judge.pool import Pool

MEASURING = "cuda_agent_backend.acceptance.process"
EXIT_GRACE_S = 5.0
LOOK_S = 0.5
"""How long an interrupt may wait until it is noticed."""
AT_ONCE = 16
"""Tasks whose episodes go on side by side where they wait for a model."""
ACCEPT_START_S = 60.0
"""What starting the measuring process and compiling the graph plainly may take beyond the budget."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Setup:
    """What the parent process is like. `flags`: see `machine.all_flags`; `inductor`: its options for Inductor."""

    cache_dir: Path
    native_dir: Path
    flags: Mapping[str, Any]
    policy: PolicySpec = field(default_factory=PolicySpec)
    allow_policy_cpp: bool = False
    inductor: Mapping[str, Any] | None = None
    device_lock: Path | None = None
    memory: bool = True

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Setup:
        """From the "setup" of a request."""
        names = ("cache_dir", "native_dir", "device_lock")
        paths = {name: Path(value[name]) for name in names if value.get(name)}
        policy = PolicySpec.from_json(value.get("policy", "search"))
        return Setup(**{**value, **paths, "policy": policy})


class Judges:
    """The judges of this process, kept between tasks: their workers are slow to start.

    One for each target and whatever of a setup a judge is made with: what one compilation consents to, no other does.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._judges: dict[tuple[str, str], Any] = {}
        self._starting_s = 0.0
        self._starting = threading.RLock()

    @property
    def unpaid_s(self) -> float:
        """Seconds that no task's budget pays for: judges started, and other processes' turns on the device."""
        waited = (float(judge.waited_s) for judge in list(self._judges.values()))
        return self._starting_s + sum(waited)

    def get(self, task: Task, setup: Setup) -> Any:
        """The judge for a task's target under the setup's flags; a new one has the task's baselines already."""
        from cuda_agent_backend.search.promotion import make_judge
        from sandbox.isolation.trees import temporary

        own = {"flags": dict(setup.flags), "consent": setup.allow_policy_cpp}
        key = (task.target, json.dumps({**own, "lock": str(setup.device_lock)}, sort_keys=True))
        with self._starting:
            if key not in self._judges:
                started = time.monotonic()
                scratch = self._stack.enter_context(temporary("cuda_agent-"))
                judge = self._stack.enter_context(make_judge(task.target, setup, scratch))
                judge.baselines(task)
                self._starting_s += time.monotonic() - started - judge.waited_s
                self._judges[key] = judge
            return self._judges[key]

    def rest(self) -> None:
        """Give up what the last tasks took of the device's memory, which belongs to the user's model."""
        for judge in self._judges.values():
            judge.rest()

    def close(self) -> None:
        """End all workers."""
        self._judges.clear()
        self._stack.close()


class Seats:
    """The judges as threads share them: each gets a seat of its own, and all have one deadline."""

    def __init__(self, judges: Judges) -> None:
        self._judges = judges
        self._pools: dict[int, Pool] = {}
        self._making = threading.Lock()

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


class GivesJudges(Protocol):
    """What a search takes its judge from."""

    def get(self, task: Task, setup: Setup) -> Any: ...


Search = Callable[[Task, GivesJudges, Setup, float, Sequence[Any] | None, Say], Searched]


def search_task(
    task: Task,
    judges: GivesJudges,
    setup: Setup,
    budget_s: float,
    recorded: Sequence[Any] | None,
    say: Say,
) -> Searched:
    """Run the agent on one task; recorded: real inputs, if there are any."""
    from cuda_agent_backend.search.promotion import run_agent, uncovered

    return uncovered(task, setup.policy) or run_agent(
        task, judges.get(task, setup), setup, budget_s, recorded, say
    )


class Service:
    """Carries requests out, one at a time; the background queue is worked on when there is nothing else."""

    def __init__(self, emit: Callable[[Mapping[str, Any]], None], search: Search) -> None:
        self.emit, self.search = emit, search
        self.requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.judges = Judges()
        self.background: Setup | None = None
        self.later: list[tuple[Mapping[str, Any], Setup]] = []
        self._ahead: Child | None = None
        """Measures the next graph, once there is one."""

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

    def _serve(self, request: Mapping[str, Any]) -> None:
        number = request.get("id")
        try:
            answer = self._carry_out(request)
        except Exception as error:
            answer = {"event": "failed", "reason": f"{type(error).__name__}: {error}"}
        self.emit({"id": number, **answer})
        self._rest()

    def _rest(self) -> None:
        with contextlib.suppress(Exception):  # a device in trouble is the next request's to tell
            self.judges.rest()

    def _carry_out(self, request: Mapping[str, Any]) -> dict[str, Any]:
        from cuda_agent_backend.runtime.machine import apply_flags

        setup = Setup.from_json(request["setup"])
        apply_flags(setup.flags)
        match request["do"]:
            case "search":
                return self._search(request, setup)
            case "accept":
                return self._accept(request, setup)
            case "drain":
                self.background = setup
                if request.get("later"):
                    self.later.append((request["later"], setup))
                return {"event": "result"}
        return {"event": "failed", "reason": f"unknown request {request['do']!r}"}

    def _search(self, request: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
        """Search all tasks, and then the rests of those for which nothing wins."""
        recorded = dict(request.get("recorded") or {})
        tasks = list(map(Task.from_json, request["tasks"]))
        if any(task.target == "cuda" for task in tasks):  # on cpu it would disturb what is timed
            self._start_ahead()
        rests = {n: Task.from_json(text) for n, text in (request.get("rests") or {}).items()}
        promises = {task.digest: float(_bytes(task)) for task in (*tasks, *rests.values())}
        promises |= request.get("promises") or {}
        deadline = time.monotonic() + float(request["budget_s"]) - self.judges.unpaid_s
        results: dict[str, dict[str, Any]] = {}
        of = len(tasks)
        cache = _opened(setup)

        def left() -> float:
            return deadline + self.judges.unpaid_s - time.monotonic()

        def say(text: str) -> None:
            numbers = {"done": len(results), "of": of, "text": text}
            self.emit({"id": request["id"], "event": "progress", **numbers})

        def one(task: Task, judges: GivesJudges, seconds: float | None) -> None:
            if seconds is None:
                results[task.digest] = {
                    "reason": "the budget ended before its turn",
                    "begun": False,
                }
                return
            inputs, graph_s = recorded.get(task.digest), request.get("graph_s")
            found = self._one(cache, task, setup, seconds, inputs, say, graph_s, judges)
            results[task.digest] = found

        self._in_order(tasks, promises, setup, left, one, begin=True)
        failed = [rests[task.digest] for task in tasks if _in_vain(cache, task, rests)]
        more = [task for task in failed if task.digest not in results]
        of += len(more)
        self._in_order(more, promises, setup, left, one)
        return {"event": "result", "tasks": results}

    def _in_order(
        self,
        given: Sequence[Task],
        promises: Mapping[str, float],
        setup: Setup,
        left: Callable[[], float],
        one: Callable[[Task, GivesJudges, float | None], None],
        begin: bool = False,
    ) -> None:
        """Search tasks, the most promising first, side by side where they wait for a model.

        left: seconds for all. one: searches a task with a judge and its seconds. begin: the first in any case.
        """
        by_digest = {task.digest: task for task in given}
        operators = {task.digest: len(task.nodes) for task in given}
        order = by_promise(list(by_digest), promises, operators)
        tasks = [by_digest[digest] for digest in order]
        if asks_a_model(setup.policy) and len(tasks) > 1:
            with contextlib.closing(Seats(self.judges)) as seats:
                many, first = min(len(tasks), AT_ONCE), tasks[0].digest if begin else ""
                side_by_side(
                    tasks, lambda t: one(t, seats, together(left(), many, t.digest == first))
                )
        else:
            for done, task in enumerate(tasks):
                others = [promises[t.digest] for t in tasks[done:]]
                one(task, self.judges, share(left(), others, first=begin and not done))

    def _one(
        self,
        cache: KernelCache,
        task: Task,
        setup: Setup,
        budget_s: float,
        recorded: str | None,
        say: Say,
        graph_s: float | None,
        judges: GivesJudges,
    ) -> dict[str, Any]:
        from cuda_agent_backend.runtime.machine import key_of
        from cuda_agent_backend.runtime.tensor_files import load
        from cuda_agent_backend.search.promotion import stands

        key = key_of(task)
        known = cache.get(key)
        if stands(known):
            return {"reason": "another process was faster"}
        say(f"{len(task.nodes)} operators, {_bytes(task) / 1e6:.1f} MB")
        inputs = load(Path(recorded)) if recorded else None
        try:
            found = self.search(task, judges, setup, budget_s, inputs, say)
        except Exception as error:  # ours, a policy's or a tool's: the other tasks have their turn
            log.logger("search").exception("a search failed")
            return {"reason": f"{type(error).__name__}: {error}"}
        kept = keep(cache, key, task, found, setup.policy.label, budget_s, graph_s)
        won = isinstance(found, SearchResult) and not kept
        say("promoted" if won else kept or found.reason)
        return {"reason": kept or found.reason, "promoted": won, "turns": found.turns}

    def _one_from_queue(self) -> None:
        """Take one task from the background queue; without any, stop looking until asked again."""
        from cuda_agent_backend.runtime.machine import key_of

        assert self.background
        setup = self.background
        cache = _opened(setup)
        queued = cache.claim(f"pid {os.getpid()}")
        if queued is None or isinstance(queued, CacheUnavailable):
            self.background = None
            self._rest()
            for request, own in self.later:
                self._measure_later(request, own)
            self.later.clear()
            self.emit({"id": 0, "event": "idle"})
            return
        try:
            task = Task.from_json(queued.task)
            mine = setup.policy.label
            if key_of(task) != queued.key or queued.meta.get("policy", mine) != mine:
                cache.release(
                    queued
                )  # wanted under other flags or of another policy: not ours to do
                self.background = None
                self._rest()
                return
            budget_s = queued.meta.get("budget_s", 60.0)
            assert isinstance(budget_s, int | float)
            self._one(
                cache, task, setup, float(budget_s), None, lambda text: None, None, self.judges
            )
            self.emit({"id": 0, "event": "searched", "task": task.digest})
        except Exception as error:
            self.emit({"id": 0, "event": "failed", "reason": f"{type(error).__name__}: {error}"})
        cache.done(queued)

    def _measure_later(self, request: Mapping[str, Any], setup: Setup) -> None:
        """Measure a graph with the kernels that there are for it now."""
        from cuda_agent_backend.runtime.kernels import Hit, Kernels

        kernels, least = Kernels(_opened(setup)), request["min_speedup"]
        there = [k for k in keys_of(request) if isinstance(kernels.find(k, least), Hit)]
        if there:
            named = [key.to_fields() for key in there]
            self._accept({**request, "id": 0, "kernels": named}, setup)

    def _accept(self, request: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
        from cuda_agent_backend.acceptance.digests import kernel_set_digest

        budget_s, keys = float(request["budget_s"]), keys_of(request)
        child = self._measuring()
        try:
            child.send(
                {
                    "graph": request["graph"],
                    "kernels": request["kernels"],
                    "cache_dir": str(setup.cache_dir),
                    "native_dir": str(setup.native_dir),
                    "inductor": setup.inductor or {},
                    "budget_s": budget_s,
                    "flags": setup.flags,
                    "seed": int.from_bytes(os.urandom(4)),
                    "device_lock": setup.device_lock and str(setup.device_lock),
                    "inputs": request["inputs"],
                    "eager_layouts": request["eager_layouts"],
                    "still": request["still"],
                    "origins": request["origins"],
                }
            )
            waiting = WAITING_S if setup.device_lock else 0.0
            answer = self._await(child, request["id"], budget_s + ACCEPT_START_S + waiting)
        finally:
            child.kill()
        if answer["event"] == "result" and answer.get("final"):
            name, chosen = request["name"], kernel_set_digest(keys)
            _opened(setup).put_acceptance(name, chosen, decision_of(answer))
        return answer

    def _start_ahead(self) -> None:
        """Start the process that measures the graph after a search: while kernels are searched it imports torch and
        Inductor, which takes it ten seconds. Where nothing is found it waits for the next search's graph."""
        if self._ahead is None or not self._ahead.alive:
            with contextlib.suppress(OSError):  # a search needs none
                self._ahead = Child(MEASURING, [AHEAD], own_group=False)

    def _measuring(self) -> Child:
        """A process that measures one graph, in this process's group, so that whoever kills this one kills it too."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.alive:
            return ahead
        return Child(MEASURING, own_group=False)

    def close(self) -> None:
        """End all processes of this one."""
        if self._ahead is not None:
            self._ahead.kill()
            self._ahead = None
        self.judges.close()

    def _await(self, child: Child, number: Any, limit_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        while True:
            try:
                message = child.receive(deadline - time.monotonic())
            except queue.Empty:
                return {
                    "event": "failed",
                    "reason": f"measuring the whole graph took over {limit_s:.0f} s",
                }
            if message is None:
                code = child.process.wait()
                return {
                    "event": "failed",
                    "reason": f"the process measuring the whole graph died ({code})",
                }
            if message["event"] != "progress":
                return message
            self.emit({"id": number, "done": 0, "of": 1, **message})


def side_by_side(tasks: Sequence[Task], work: Callable[[Task], None]) -> None:
    """Do all, some at a time, in the order in which they are given; an interrupt leaves them.

    The threads are daemons: those that wait for a model do not keep this process from ending. Raises what one of them
    failed with, when all have ended.
    """
    left, lock = iter(list(tasks)), threading.Lock()
    failures: list[BaseException] = []

    def run() -> None:
        while True:
            with lock:
                task = next(left, None)
            if task is None:
                return
            try:
                work(task)
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in tasks[:AT_ONCE]]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(LOOK_S)
    if failures:
        raise failures[0]


def _opened(setup: Setup) -> KernelCache:
    cache = KernelCache.open(setup.cache_dir)
    if isinstance(cache, CacheUnavailable):
        raise RuntimeError(str(cache))
    return cache


def _in_vain(cache: KernelCache, task: Task, rests: Mapping[str, Task]) -> bool:
    """Whether a task has a rest, and is known to have no kernel."""
    from cuda_agent_backend.runtime.machine import key_of

    return task.digest in rests and isinstance(cache.get(key_of(task)), NegativeRecord)


def _bytes(task: Task) -> int:
    return sum(spec.numel * spec.itemsize for spec in (*task.inputs, *task.output_specs))


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
        with contextlib.suppress(Exception):
            service.close()
    return 0


def _read(service: Service) -> None:
    """Pass requests on. When the parent is gone, interrupt the work, and soon end by force."""
    for line in sys.stdin:
        with contextlib.suppress(ValueError):
            service.requests.put(json.loads(line))
    service.requests.put(None)
    _thread.interrupt_main()
    time.sleep(EXIT_GRACE_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
