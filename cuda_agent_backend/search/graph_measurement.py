"""The search process's end of whole-graph acceptance: it starts what measures, asks it, and keeps the decision."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from cuda_agent_backend.acceptance.digests import kernel_set_digest
from cuda_agent_backend.acceptance.process import AHEAD
from cuda_agent_backend.acceptance.rule import decision_of
from cuda_agent_backend.acceptance.waits import Waits
from cuda_agent_backend.acceptance.whole_graph import keys_of
from cuda_agent_backend.runtime.child_process import WAITING_S, Child
from cuda_agent_backend.search.durations import ACCEPTANCE, Durations
from cuda_agent_backend.search.setup import Setup
from cuda_agent_backend.search.task_locks import TaskLocks
from kernel_cache.canonical import sha256
from sandbox.task.task import Task
from sandbox.workers import inductor_store

MEASURING = "cuda_agent_backend.acceptance.process"
START_S = 60.0
"""What starting the measuring process and compiling the graph plainly may take beyond the budget in the background."""
LOOK_S = 0.2
"""How long it may take until it is noticed that nobody waits any more."""


class GraphMeasurer:
    """Measures one graph at a time, each in a process of its own.

    emit: where its progress goes. is_over: whether nobody waits for it any more.
    """

    def __init__(
        self,
        emit: Callable[[Mapping[str, Any]], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._emit, self._is_over = emit, is_over
        self._ahead: Child | None = None
        """Measures the next graph, once there is one."""
        self._waits, self._waited_s = Waits(), 0.0
        """Of the process that measures, and of those before it."""

    @property
    def unpaid_s(self) -> float:
        """Seconds that no budget pays for: what measuring waited for other processes' turns and leases."""
        return self._waited_s + self._waits.seconds

    def start_ahead(self) -> None:
        """Start the process that measures the graph after a search: while kernels are searched it imports torch and
        Inductor, which takes it ten seconds. Where nothing is found it waits for the next search's graph."""
        if self._ahead is None or not self._ahead.alive:
            with contextlib.suppress(OSError):  # a search needs none
                self._ahead = Child(MEASURING, [AHEAD], own_group=False)

    def measure(self, request: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
        """Answer an "accept" request (see `WholeGraph.to_json`), and keep the decision if it is final."""
        budget_s = float(request["budget_s"])
        until = float(request.get("until") or time.monotonic() + budget_s + START_S)
        place = sha256(f"{request['name']}:{kernel_set_digest(keys_of(request))}".encode())

        def go_on() -> bool:
            return time.monotonic() < until and not self._is_over()

        with TaskLocks(setup.cache_dir).waited_for(place, go_on) as mine:
            if not mine:
                return _failed("another process was still measuring it when the time was up")
            return self._measure_alone(request, setup, until)

    def _measure_alone(
        self, request: Mapping[str, Any], setup: Setup, until: float
    ) -> dict[str, Any]:
        """Measure it, or take what another process has decided meanwhile."""
        kept = request["name"], kernel_set_digest(keys_of(request))
        known = setup.open_cache().get_acceptance(*kept)
        if isinstance(known, dict):
            return {"event": "result", **known}
        begun = time.monotonic() - self.unpaid_s
        child = self._child()
        try:
            self._make_header(request, setup, until)
            child.send(_measurement(request, setup, until))
            answer = self._await(child, request["id"], until)
        finally:
            child.kill()
            self._waited_s, self._waits = self.unpaid_s, Waits()
        if answer["event"] == "result" and answer.get("final"):
            setup.open_cache().put_acceptance(*kept, decision_of(answer))
            if request["kernels"]:
                took_s = time.monotonic() - self.unpaid_s - begun
                Durations(setup.cache_dir).note(ACCEPTANCE, took_s)
        return answer

    def close(self) -> None:
        """End the process that waits for a graph."""
        if self._ahead is not None:
            self._ahead.kill()
            self._ahead = None

    def _child(self) -> Child:
        """A process that measures one graph, in this process's group, so that whoever kills this one kills it too."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.alive:
            return ahead
        return Child(MEASURING, [AHEAD], own_group=False)

    def _make_header(self, request: Mapping[str, Any], setup: Setup, until: float) -> None:
        """Have what measures and then the user's Inductor find their header, while what measures imports torch on
        another core. Not beside other processes, whose turns to time something know nothing of it."""
        if setup.device_lock or Task.from_json(request["graph"]).target != "cpu":
            return
        making = threading.Thread(target=inductor_store.make_header, daemon=True)
        making.start()
        while making.is_alive() and time.monotonic() < until and not self._is_over():
            making.join(LOOK_S)

    def _await(self, child: Child, number: Any, until: float) -> dict[str, Any]:
        """The child's answer. until: to which is added what the child waits for others."""
        while True:
            left = until + min(self._waits.seconds, WAITING_S) - time.monotonic()
            try:
                message = child.receive(min(left, LOOK_S))
            except queue.Empty:
                if left > LOOK_S and not self._is_over():
                    continue
                return _failed("the time was up before the whole graph was measured")
            if message is None:
                code = child.process.wait()
                return _failed(f"the process measuring the whole graph died ({code})")
            if self._waits.hear(message):
                continue
            if message["event"] != "progress":
                return message
            self._emit({"id": number, "done": 0, "of": 1, **message})


def _measurement(request: Mapping[str, Any], setup: Setup, until: float) -> dict[str, Any]:
    """The request to the measuring process (see `acceptance.process.run`)."""
    return {
        "graph": request["graph"],
        "kernels": request["kernels"],
        "cache_dir": str(setup.cache_dir),
        "native_dir": str(setup.native_dir),
        "inductor": setup.inductor or {},
        "until": until,
        "flags": setup.flags,
        "seed": int.from_bytes(os.urandom(4)),
        "device_lock": setup.device_lock and str(setup.device_lock),
        "inputs": request["inputs"],
        "eager_layouts": request["eager_layouts"],
        "static_inputs": request["static_inputs"],
        "origins": request["origins"],
    }


def _failed(reason: str) -> dict[str, Any]:
    return {"event": "failed", "reason": reason}
