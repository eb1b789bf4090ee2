"""The user process's end of the search: starts the search process when first needed, asks, waits, shows progress."""

from __future__ import annotations

import atexit
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from cuda_agent_backend import log
from cuda_agent_backend.acceptance.rule import decision_of
from cuda_agent_backend.acceptance.whole_graph import WholeGraph
from cuda_agent_backend.options import Options
from cuda_agent_backend.runtime.child_process import WAITING_S, Child
from cuda_agent_backend.search import interrupts
from cuda_agent_backend.search.budget import WHOLE_EPISODE_S, acceptance_reserve, overtime
from cuda_agent_backend.search.durations import ACCEPTANCE, Durations
from cuda_agent_backend.search.progress import SearchProgress
from cuda_agent_backend.search.protocol import Searcher
from cuda_agent_backend.search.setup import Setup
from kernel_cache import Json
from sandbox.failures import back_off_s
from sandbox.memory.notes import Notes, merged
from sandbox.task.task import Task
from sandbox.timing.machine import release_memory

SERVICE = "cuda_agent_backend.search.service"
MAX_DEATHS = 4
"""After so many deaths in a row the next search process is started only after a while."""
WIND_DOWN_S = 180.0
"""A search process that was told to leave a request, and has not done so for so long, hangs, and is killed."""
ANSWER_S = 0.5
"""What an answer may take to come after the time is up: the search process ends by itself then."""
PREPARING_S = 120.0
"""How long starting what searches is waited for where nobody waits for a search yet."""
OUTBOX_S = 5.0
"""How soon the thread that sends notices that its child is gone."""
LATE = "the time was up; the next process goes on"
INTERRUPTED = "interrupted, going on with what there is; Ctrl-C again soon stops the program"
DIED = "the search process died"

Show = Callable[[dict[str, Any]], None]


class SearchProcess:
    """One search process, started at the first request and again after it died. Safe among threads."""

    def __init__(self, module: str = SERVICE) -> None:
        self.module = module
        self._child: Child | None = None
        self._deaths = 0
        self._died_at = 0.0
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._over = False
        self._outbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._left: dict[int, threading.Timer] = {}
        """Requests that nobody waits for any more, until their answers come, and who looks whether they do."""
        self.notes: Notes = {}
        """What leases on the device's memory came to, by all answers since `take_notes`."""

    def ask(self, request: Mapping[str, Any], limit_s: float, show: Show) -> dict[str, Any]:
        """Send a request and wait for its answer: {"event": "result" | "failed", ...}.

        Never raises for the child's faults. After `limit_s` seconds, all included, or an interrupt (see `interrupts`),
        it is left: the child is told so, finishes no more than the step it is at, and serves the next request.
        """
        try:
            return self._asked(request, limit_s, show)
        except KeyboardInterrupt:
            if not interrupts.ends_the_search():
                raise
            log.logger("search").warning(INTERRUPTED)
            return _failed(INTERRUPTED)

    def _asked(self, request: Mapping[str, Any], limit_s: float, show: Show) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        if not self._lock.acquire(timeout=max(limit_s, 0.0)):
            return _failed(LATE)
        try:
            child = self._started()
            if child is None:
                return _failed(f"{DIED} {self._deaths} times in a row; it is started again later")
            number = next(self._numbers)
            try:
                self._send({"id": number, **request})
                return self._wait(child, number, deadline, show)
            except BaseException:
                self._leave(child, number)
                raise
        finally:
            self._lock.release()

    def tell(self, request: Mapping[str, Any]) -> bool:
        """Send a request without waiting for the answer."""
        with self._lock:
            child = self._started()
            if child is not None:
                self._send({"id": next(self._numbers), **request})
            return child is not None

    def take_notes(self) -> Notes:
        """`notes`, which begin anew."""
        taken, self.notes = self.notes, {}
        return taken

    def stop(self) -> None:
        """End the process; the next request starts another."""
        self._nothing_left()
        if self._child is not None:
            self._child.stop()
            self._child = None

    def kill(self) -> None:
        """End the process at once with all that it started, and start no other. For any thread, also while another one
        waits for an answer, which is then that the process died."""
        self._over = True
        child = self._child
        if child is not None:
            child.kill()

    @property
    def pid(self) -> int | None:
        """The running process's id."""
        return self._child.process.pid if self._child and self._child.alive else None

    def _started(self) -> Child | None:
        """The running process; None where it died too often, or where no process or thread can be made now."""
        try:
            return self._running()
        except (OSError, RuntimeError) as error:
            log.once("search", f"{DIED}: it cannot be started: {error}")
            if self._child is not None:
                self._child.kill()
            self._child, self._died_at = None, time.monotonic()
            self._deaths += 1
            return None

    def _running(self) -> Child | None:
        if self._over:
            return None
        if self._child is None or not self._child.alive:
            if self._child is not None and self._child.owner == os.getpid():
                self._child.stop()  # it is dead: this closes what was open to it
                self._child, self._died_at = None, time.monotonic()
                self._deaths += 1
            wait_s = back_off_s(self._deaths - MAX_DEATHS + 2) if self._deaths >= MAX_DEATHS else 0
            if time.monotonic() - self._died_at < wait_s:
                return None
            self._child = Child(self.module)
            self._nothing_left()
            self._outbox = queue.SimpleQueue()
            sending = threading.Thread(target=_send_all, args=(self._child, self._outbox))
            sending.daemon = True
            sending.start()
        return self._child

    def _send(self, message: Mapping[str, Any]) -> None:
        """Send without waiting until the child reads, which it does once it has imported torch."""
        self._outbox.put(dict(message))

    def _wait(self, child: Child, number: int, deadline: float, show: Show) -> dict[str, Any]:
        while True:
            try:
                message = child.receive(deadline - time.monotonic())
            except queue.Empty:
                self._leave(child, number)
                return _failed(LATE)
            if message is None:
                child.kill()
                return _failed(f"{DIED} ({child.process.returncode})")
            if message.get("id") != number:
                self._note_answer(message)
            elif message["event"] == "progress":
                show(message)
            else:
                self._deaths = 0
                self._keep_notes(message)
                return message

    def _leave(self, child: Child, number: int) -> None:
        """Tell the child that nobody waits for a request any more, and look after a while whether it has heard that."""
        self._send({"do": "leave", "id": number})
        if WIND_DOWN_S <= 0:
            child.kill()
            return
        watch = threading.Timer(WIND_DOWN_S, self._end_if_hanging, [child, number])
        watch.daemon = True
        self._left[number] = watch
        watch.start()

    def _end_if_hanging(self, child: Child, number: int) -> None:
        with self._lock:
            if child is not self._child or number not in self._left:
                return
            with suppress(queue.Empty):
                while (message := child.receive(0.0)) is not None:
                    self._note_answer(message)
            if number in self._left:
                child.kill()

    def _note_answer(self, message: Mapping[str, Any]) -> None:
        if message["event"] != "progress":
            watch = self._left.pop(message.get("id", 0), None)
            if watch is not None:
                watch.cancel()
            self._keep_notes(message)

    def _keep_notes(self, answer: Mapping[str, Any]) -> None:
        self.notes = merged([self.notes, answer.get("memory") or {}])

    def _nothing_left(self) -> None:
        """Look after no request any more: the process that had them is gone."""
        left, self._left = self._left, {}
        for watch in left.values():
            watch.cancel()


def _send_all(child: Child, outbox: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Send what is put into a child's outbox, for as long as there is a child."""
    while child.alive:
        with suppress(queue.Empty):
            child.send(outbox.get(timeout=OUTBOX_S))


def _failed(reason: str) -> dict[str, Any]:
    return {"event": "failed", "reason": reason}


_process: SearchProcess | None = None
_process_lock = threading.Lock()


def search_process() -> SearchProcess:
    """The one of this user process."""
    global _process
    with _process_lock:
        if _process is None:
            _process = SearchProcess()
            atexit.register(_process.stop)
        return _process


class SearchClient(Searcher):
    """What the pass asks (see `Searcher`), for one set of options."""

    def __init__(self, options: Options, process: SearchProcess | None = None) -> None:
        self.options = options
        self.process = process or search_process()
        self.waited_s = 0.0
        """Of what was asked, the seconds that the search process waited for other processes."""
        self.memory: Notes = {}
        """What leases on the device's memory came to, for all that was asked."""

    def prepare(self, target: str) -> None:
        """Have the search process up, with a judge that can be asked, so that no search pays for that. Never raises for
        what goes wrong there, which comes up again in a search."""
        request = {"do": "prepare", "target": target, "setup": Setup.of(self.options).to_json()}
        self.process.ask(request, PREPARING_S, lambda _: None)

    def search(
        self,
        tasks: Sequence[Task],
        budget_s: float,
        recorded: Mapping[str, str] | None = None,
        promises: Mapping[str, float] | None = None,
        rests: Mapping[str, Task] | None = None,
    ) -> dict[str, Any]:
        """Search kernels; what became of each task, by digest.

        recorded: folders with real inputs, promises: what a kernel may save, in any unit, rests: what is searched where
        nothing wins for a task; all by task digest.
        """
        request = {
            "do": "search",
            "setup": Setup.of(self.options).to_json(),
            "tasks": [task.to_json() for task in tasks],
            "recorded": dict(recorded or {}),
            "promises": dict(promises or {}),
            "rests": {digest: rest.to_json() for digest, rest in (rests or {}).items()},
            "graph_s": self.options.budget_s,
        }
        more = 0.0
        if self.options.acceptance != "trust":
            took = Durations(self.options.cache_dir).took(ACCEPTANCE)
            more = overtime(acceptance_reserve(self.options.budget_s, took))
        title = f"searching kernels for {len(tasks)} regions, at most {budget_s:.0f} s"
        answer = self._ask(request, budget_s, title, more)
        if answer["event"] != "result":
            log.once("search", f"regions are left to Inductor: {answer['reason']}")
            if not answer["reason"].startswith(DIED):
                return {}
            return {task.digest: {"reason": answer["reason"], "passing": True} for task in tasks}
        found: dict[str, Any] = answer["tasks"]
        return found

    def enqueue(self, tasks: Sequence[Task], later: WholeGraph | None = None) -> None:
        """Put tasks into the cache's queue, have the search process work on it, and then measure the whole graph."""
        from cuda_agent_backend.runtime.kernels import open_kernels
        from cuda_agent_backend.runtime.machine import key_of
        from kernel_cache import CacheUnavailable

        kernels = open_kernels(self.options.cache_dir)
        if isinstance(kernels, CacheUnavailable):
            return
        share = max(self.options.budget_s / max(len(tasks), 1), WHOLE_EPISODE_S)
        label = self.options.policy_spec.label
        for task in tasks:
            meta: dict[str, Json] = {"budget_s": share, "policy": label}
            kernels.cache.enqueue(key_of(task), task.to_json(), meta)
        request = {"do": "drain", "setup": Setup.of(self.options).to_json(), "later": None}
        if later is not None:
            request["later"] = {
                **later.to_json(),
                "budget_s": self.options.budget_s,
                "min_speedup": self.options.min_speedup,
            }
        if not self.process.tell(request):
            log.once("search", f"no background search: {DIED} too often just now")

    def accept(self, whole: WholeGraph, budget_s: float) -> dict[str, Any] | str:
        """Have a whole graph measured; the decision, which is kept if final, or why there is none."""
        request = {
            "do": "accept",
            "setup": Setup.of(self.options).to_json(),
            **whole.to_json(),
        }
        what = (
            f"{len(whole.keys)} kernels"
            if whole.keys
            else "eager's layouts"
            if whole.static_inputs is None
            else "a recording"
        )
        title = f"measuring the whole graph with {what}"
        answer = self._ask(request, budget_s, title)
        if answer["event"] == "result":
            return decision_of(answer)
        log.once("accept", f"{what} are not used: {answer['reason']}")
        return f"the whole graph was not measured: {answer['reason']}"

    def _ask(
        self, request: Mapping[str, Any], budget_s: float, title: str, more_s: float = 0.0
    ) -> dict[str, Any]:
        """Ask within a time, all included but waiting for other processes. more_s: after it, for what is under way
        then."""
        with suppress(
            RuntimeError
        ):  # what torch keeps here for later is of use to a search meanwhile
            release_memory("cuda")
        until = time.monotonic() + budget_s
        timed = {**request, "budget_s": budget_s, "asked": until - budget_s}
        timed |= {"until": until, "hard_until": until + more_s}
        waiting = WAITING_S if self.options.device_lock else 0.0
        with ExitStack() as stack:
            finds = request["do"] == "search"
            progress = SearchProgress(title, self.options.progress, budget_s, finds)
            show = stack.enter_context(progress)
            limit_s = budget_s + more_s + ANSWER_S + waiting
            answer = self.process.ask(timed, limit_s, show.update)
        self.waited_s += float(answer.get("waited_s", 0.0))
        self.memory = merged([self.memory, answer.get("memory") or {}])
        return answer
