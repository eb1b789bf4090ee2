"""Start, ask and stop a worker process. Its death, its silence and its errors are values."""

from __future__ import annotations

import os
import secrets
import select
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sandbox.failures import NOT_STARTED, Crashed, Failed, TimedOut
from sandbox.isolation import trees
from sandbox.isolation.mechanisms import Isolation
from sandbox.isolation.privileges import next_uid
from sandbox.workers import inductor_store, protocol
from sandbox.workers.settings import WorkerSettings, compilers, environment, isolation_policy
from sandbox.workers.starter import ForkServer, Started
from sandbox.workers.worker import SIGNAL_BASE

STOP_SECONDS = 10.0
START = "start"
"""The stage before anything of a candidate is there, so that nothing in it is a candidate's fault."""
LOG_TAIL = 4000

Trouble = Crashed | TimedOut | Failed


Clock = Literal["device", "wall"]
"""What a call on cuda is timed by. On cpu both are the same."""


@dataclass(frozen=True)
class CallTime:
    """Seconds of one call: on cpu from request to reply, on cuda by the clock asked for, as the worker measured them.

    late: the host took so long that device seconds hold its gaps; the next call sleeps longer.
    """

    seconds: float
    late: bool = False


class WorkerProcess:
    """A worker, started by `launch`, and started anew after it died.

    server: what it is forked from, shared with other workers of as many threads; they end together.
    """

    def __init__(self, settings: WorkerSettings, server: ForkServer | None = None) -> None:
        self.settings = settings
        self.generation = 0
        """Counts starts: state given to an earlier process is gone."""
        self.facts: dict[str, Any] = {}
        self.holds = ""
        """Digest of the untrusted host code that the process has loaded; it runs no other candidate."""
        self._uid: int | None = None
        self._server = server or ForkServer(settings.folder)
        self._process: Started | None = None
        self._control: socket.socket | None = None
        self._life = -1
        self._ending = threading.Lock()
        self._ticket = b""
        """Of the last request: what its answer begins with."""
        self._greeted = False
        self._came_to_be = False
        """Whether the last process was there at all."""
        self._log = settings.folder / "worker.log"

    @property
    def running(self) -> bool:
        """Whether there is a process to ask. It may have died since."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """Process id of the watching half, waited for; None where there is none."""
        return self._process.pid(self.settings.start_seconds) if self._process else None

    def launch(self) -> None:
        """Start the process without waiting for it. Nothing happens while one is running."""
        if self.running:
            return
        for folder in (self.settings.scratch, self.settings.inbox):
            folder.mkdir(parents=True, exist_ok=True)
        cache, extra = "", []
        if self._compiles:
            cache, extra = str(inductor_store.own_cache()), [inductor_store.own_headers()]
            inductor_store.give(self.settings.scratch)
        if self._uid is None:
            self._uid = next_uid(map(str, compilers()))
        policy = isolation_policy(self.settings, self._uid, extra)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # A worker that stops in the middle of an answer must not stop the judge.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 30, 0))
        life_read, life_write = os.pipe()
        with self._log.open("wb") as log:
            fds = (theirs.fileno(), life_read, log.fileno())
            folder, variables = self.settings.scratch, environment(self.settings)
            self._process = self._server.start(policy.to_json(), folder, variables, fds, cache)
        theirs.close()
        os.close(life_read)
        self._control, self._life = ours, life_write
        self.generation += 1
        self._greeted = False
        self.holds = ""
        with suppress(OSError):
            protocol.send_command(ours, {"do": "hello", **self.settings.hello}, self._draw_ticket())

    def start_server(self) -> None:
        """Start what the worker will be forked from, without waiting: it imports torch."""
        self.settings.scratch.mkdir(parents=True, exist_ok=True)
        self._server.begin(environment(self.settings))

    def ready(self) -> Trouble | None:
        """Wait until the worker has imported what it needs."""
        self.launch()
        if self._greeted:
            return None
        answer = self.receive(START, self.settings.start_seconds)
        if not isinstance(answer, dict):
            if self.running and isinstance(answer, Failed):
                self._end()  # it said why it cannot serve; who asks again gets another one
            return answer
        self.facts, self._greeted = answer, True
        return None

    @property
    def isolation(self) -> Isolation:
        """What is in force for the process; nothing before it is `ready`."""
        return Isolation.from_dict(self.facts.get("isolation", {}))

    def renew(self) -> None:
        """Start anew with an empty folder, without waiting: nothing that was loaded or written is left."""
        self._end()
        for folder in (self.settings.scratch, self.settings.inbox):
            trees.remove(folder)
        self.launch()

    def rest(self) -> None:
        """End the process until somebody asks it something: another one starts then."""
        self._end()

    def interrupt(self) -> None:
        """End what the process does, from any thread. Whoever waits for its answer is told that it died."""
        with self._ending:
            life, self._life = self._life, -1
        if life >= 0:
            os.close(life)  # the watching half kills the group on this

    def deliver(self, binary: Path) -> Path:
        """Put a copy of a candidate's binary, and no other, where the worker can read it."""
        inbox = self.settings.inbox
        for other in inbox.iterdir():
            other.unlink()
        copy = inbox / binary.name
        shutil.copyfile(binary, copy)
        copy.chmod(0o644)
        return copy

    def ask_to_run(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any] | Trouble:
        """A command that runs what is judged: an error in it is the candidate's."""
        answer = self.ask("run", message, timeout_s)
        return self._raised(answer) if isinstance(answer, Failed) else answer

    def ask(
        self, stage: str, message: dict[str, Any], timeout_s: float, fds: Sequence[int] = ()
    ) -> dict[str, Any] | Trouble:
        """A command and its answer. After `Crashed` or `TimedOut` the process is gone."""
        trouble = self.post(stage, message, fds)
        return self.receive(stage, timeout_s) if trouble is None else trouble

    def post(self, stage: str, message: dict[str, Any], fds: Sequence[int] = ()) -> Trouble | None:
        """Send a command, whose answer is to be received before anything else is asked."""
        trouble = self.ready()
        if trouble is not None:
            return trouble
        assert self._control is not None
        trouble = self._spoke_unasked(stage)
        if trouble is not None:
            return trouble
        try:
            protocol.send_command(self._control, message, self._draw_ticket(), fds)
        except OSError:
            return self._died(stage)
        return None

    def run(
        self, slot: int, number: int, timeout_s: float, clock: Clock = "device"
    ) -> CallTime | Trouble:
        """One timed call of a slot on an input set, with its outputs left to be fetched. The worker must be `ready`."""
        if self._control is None:
            return Crashed("run", "the worker is not running")
        trouble = self._spoke_unasked("run")
        if trouble is not None:
            return trouble
        fd = self._control.fileno()
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        ticket = self._draw_ticket()
        kind = protocol.RUN_BY_WALL if clock == "wall" else protocol.RUN_BY_DEVICE
        request = protocol.HEAD.pack(kind, slot, number, ticket)
        try:
            os.write(fd, request)
            if not poller.poll(timeout_s * 1000):
                return self._hung("run", timeout_s)
            ready = os.read(fd, protocol.TICKET)
            if ready != ticket:
                return self._forged("run") if ready else self._died("run")
            before = time.perf_counter_ns()
            os.write(fd, protocol.GO)
            if not poller.poll(timeout_s * 1000):
                return self._hung("run", timeout_s)
            reply = os.read(fd, protocol.RUN_REPLY.size)
            taken = (time.perf_counter_ns() - before) * 1e-9
        except OSError:
            return self._died("run")
        if not reply:
            return self._died("run")
        if len(reply) != protocol.RUN_REPLY.size or not reply.startswith(ticket):
            return self._forged("run")
        _, how, seconds = protocol.RUN_REPLY.unpack(reply)
        if how == protocol.FAILED:
            answer = self.receive("run", timeout_s)
            return self._raised(answer)
        return CallTime(seconds or taken, how == protocol.LATE)

    def drop(self) -> None:
        """Let the worker give up the last outputs, outside of any timing."""
        if self._control is not None:
            with suppress(OSError):
                os.write(self._control.fileno(), protocol.HEAD.pack(protocol.DROP, 0, 0, b""))

    def stop(self) -> int | None:
        """End the process and all it started, for good. Returns its exit status."""
        if self._process is not None and not self._process.began:
            self._server.stop()  # it may still be importing
        status = self._end()
        self._server.stop()
        return status

    def _end(self, died: bool = False) -> int | None:
        """End the process and all it started; another one starts soon after. Returns its exit status.

        died: it closed the socket. It gets a moment to be dead, so that the status is its own.
        """
        process, control = self._process, self._control
        self._process = self._control = None
        if process is None or control is None:
            return None
        status = None
        if died:
            with suppress(TimeoutError):
                status = process.wait(STOP_SECONDS)
        self._came_to_be = process.began
        self.interrupt()
        control.close()
        try:
            return process.wait(STOP_SECONDS) if status is None else status
        except TimeoutError:
            process.kill()
            return -signal.SIGKILL
        finally:
            process.close()

    def log_tail(self) -> str:
        """The end of what the worker printed; of what its server did, where the worker never came to be."""
        log = self._log if self._came_to_be else self._server.log
        with suppress(OSError), log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL))
            return file.read().decode(errors="replace")
        return ""

    def _spoke_unasked(self, stage: str) -> Trouble | None:
        """Whether an answer waits before there is a request."""
        assert self._control is not None
        try:
            waiting = self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return self._died(stage)
        return self._forged(stage) if waiting else self._died(stage)

    def _forged(self, stage: str) -> Trouble:
        """Code in the process answered in its place."""
        self._end()
        self.launch()
        how = "it answered what nobody had asked"
        return Crashed(stage, how) if self._judged else Failed(stage, how)

    def _draw_ticket(self) -> bytes:
        self._ticket = secrets.token_bytes(protocol.TICKET)
        return self._ticket

    def receive(self, stage: str, timeout_s: float) -> dict[str, Any] | Trouble:
        """The answer to the last command, waited for. After `Crashed` or `TimedOut` the process is gone."""
        assert self._control is not None
        fd = self._control.fileno()
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            return self._hung(stage, timeout_s)
        try:
            answer = protocol.receive_answer(fd, self._ticket)
        except OSError:
            return self._died(stage)
        except protocol.Unasked:
            return self._forged(stage)
        except (ValueError, RecursionError):
            self._end()
            return Crashed(stage, "it sent nonsense", self.log_tail())
        if "error" in answer:
            return Failed(stage, f"{answer.get('trace', '')}\n{answer['error']}")
        return answer

    def _raised(self, answer: dict[str, Any] | Trouble) -> Trouble:
        """A call raised an error. After a fault on the device nothing more works: start anew."""
        if isinstance(answer, dict):
            answer = Failed("run", "no reason given")
        if not isinstance(answer, Failed) or not self._judged:
            return answer
        self._end()
        self.launch()
        return Crashed("run", answer.reason, answer.message)

    @property
    def _compiles(self) -> bool:
        """Whether Inductor compiles C++ in it, with torch's own options for that: of others the checks are others."""
        told = self.settings.hello
        own = any(name.startswith("cpp.") for name in told["inductor"])
        return self.settings.role == "baseline" and told["target"] == "cpu" and not own

    @property
    def _judged(self) -> bool:
        """Whether what goes wrong here is a candidate's fault."""
        return self.settings.role != "baseline"

    def _hung(self, stage: str, seconds: float) -> TimedOut | Failed:
        if self._process is not None and not self._process.began:
            self._server.stop()  # it hangs itself
        self._end()
        self.launch()
        found = TimedOut(stage, seconds)
        return found if self._judged and stage != START else Failed(stage, found.reason)

    def _died(self, stage: str) -> Crashed | Failed:
        found = Crashed(stage, _how(self._end(died=True)), self.log_tail())
        self.launch()  # the next one is ready when it is needed
        mine = self._judged and stage != START
        return found if mine else Failed(stage, f"{found.log}\n{found.reason}")


def _how(status: int | None) -> str:
    if status is None:
        return NOT_STARTED
    if status < 0 or status > SIGNAL_BASE:
        with suppress(ValueError):
            return signal.Signals(-status if status < 0 else status - SIGNAL_BASE).name
    return f"exit status {status}"
