"""A process that has imported everything and forks the processes of rounds, and what starts them through it.

`WarmPopen` stands in for `subprocess.Popen` where a `Child` starts a Python module: the process is forked from the warm
one, is told what to run, and its end is reported over the socket by which it was asked for.
"""

from __future__ import annotations

import array
import atexit
import importlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from sandbox.workers.fork_server import ASK_NVML, cuda_is_initialized

ADDRESS = "CHAOS_WARM"
"""The variable that holds the socket's path."""
MODULES = {
    "cuda_agent_backend.search.service": "search",
    "cuda_agent_backend.acceptance.process": "acceptance",
}
MOST = 1 << 17
PRELOADED = (
    "torch._inductor.compile_fx",
    "torch._inductor.graph",
    "torch._inductor.codegen.cpp",
    "torch._dynamo",
    "torch._dynamo.backends.registry",
    "cuda_agent_backend.backend",
    "cuda_agent_backend.hook.kernel_pass",
    "cuda_agent_backend.search.service",
    "cuda_agent_backend.search.client",
    "cuda_agent_backend.acceptance.process",
    "cuda_agent_backend.acceptance.trial",
    "cuda_agent_backend.tools.warm",
    "cuda_agent_backend.tools.capture",
    "sandbox.judge.builds",
    "chaos.actors",
)


class WarmPopen:
    """As much of `subprocess.Popen` as a `Child` uses. kind: of the actor, by default what the module stands for."""

    def __init__(
        self,
        command: Sequence[str],
        stdin: int | None = None,
        stdout: int | None = None,
        env: Mapping[str, str] | None = None,
        start_new_session: bool = True,
        kind: str = "",
        stderr: int = 2,
        **_: Any,
    ) -> None:
        values = dict(os.environ if env is None else env)
        what = kind or MODULES[command[2]]
        request = {"kind": what, "arguments": list(command[3:]), "env": values}
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        self._status = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._status.connect(values[ADDRESS])
        fds = array.array("i", [theirs_in, theirs_out, stderr])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
        self._status.sendmsg([json.dumps(request).encode()], rights)
        os.close(theirs_in)
        os.close(theirs_out)
        self.stdin = io.TextIOWrapper(os.fdopen(ours_in, "wb"), encoding="utf-8")
        self.stdout = os.fdopen(ours_out, encoding="utf-8")
        self.pid = int(self._status.recv(64))
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit status, once it has ended."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, waited for. Raises `subprocess.TimeoutExpired`."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = 1.0 if until is None else min(1.0, until - time.monotonic())
            code = self._look(max(left, 0.0))
            if code is not None:
                return code
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired("a warm process", timeout or 0.0)

    def kill(self) -> None:
        """End it."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _look(self, seconds: float) -> int | None:
        # Who only asks does not wait for another thread that waits: that one has the lock all the time.
        if not self._lock.acquire(blocking=seconds > 0):
            return self.returncode
        try:
            if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
                self.returncode = int(self._status.recv(64) or b"-9")
                self._status.close()
            return self.returncode
        finally:
            self._lock.release()


class Warm:
    """The warm process, as its owner sees it."""

    def __init__(self, place: Path) -> None:
        self.is_ready = False
        self.address = str(place / "warm.sock")
        Path(self.address).unlink(missing_ok=True)
        tests = Path(__file__).parents[1]
        paths = [str(tests.parent), str(tests), os.environ.get("PYTHONPATH", "")]
        own = {ADDRESS: self.address, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        own |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
        # No process survives a fork with a device.
        own |= {"CUDA_VISIBLE_DEVICES": "", ASK_NVML: "1"}
        self.log = place / "warm.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "chaos.warm_fork"],
                env={**os.environ, **own},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def ready(self) -> None:
        """Wait until it forks. Raises RuntimeError with its last words where it does not."""
        assert self.process.stdout is not None
        if self.is_ready:
            return
        self.is_ready = True
        if self.process.stdout.readline().strip() != b"ready":
            raise RuntimeError(self.log.read_text()[-2000:])

    def stop(self) -> None:
        """End it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.kill()
        self.process.wait()


def serve() -> None:
    """Fork who is asked for until standard input ends."""
    from chaos import actors

    actors.install_clock()  # before anything else takes hold of the clock
    for name in PRELOADED:
        importlib.import_module(name)
    actors.prepare()
    if cuda_is_initialized():  # a fork that asks for a device would hang
        raise SystemExit("CUDA's driver is awake in the warm process")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(os.environ[ADDRESS])
    listening.listen(64)
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
        print("the warm process has threads", file=sys.stderr, flush=True)
    print("ready", flush=True)
    asked: dict[int, socket.socket] = {}
    while True:
        there = select.select([0, listening, woken], [], [])[0]
        if 0 in there:
            return
        if woken in there:
            os.read(woken, 1 << 12)
            _report(asked)
        if listening in there:
            _fork(listening, asked, (woken, wakes))


def _report(asked: dict[int, socket.socket]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        who = asked.pop(pid, None)
        if who is not None:
            with suppress(OSError):
                who.send(str(os.waitstatus_to_exitcode(status)).encode())
            who.close()


def _fork(
    listening: socket.socket, asked: dict[int, socket.socket], pipes: tuple[int, int]
) -> None:
    who, _ = listening.accept()
    try:
        content, fds, _, _ = socket.recv_fds(who, MOST, 3)
    except OSError:
        content, fds = b"", []
    if not content:
        who.close()
        return
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        for one in (listening, who, *asked.values()):
            one.close()
        for fd in pipes:
            os.close(fd)
        _become(json.loads(content), fds)
    for fd in fds:
        os.close(fd)
    asked[pid] = who
    with suppress(OSError):
        who.send(str(pid).encode())


def _become(request: Mapping[str, Any], fds: Sequence[int]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for to, fd in enumerate(fds):
            os.dup2(fd, to)
            if fd > 2:
                os.close(fd)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        os.environ.clear()
        os.environ.update(request["env"])
        tempfile.tempdir = None
        sys.argv = [str(request["kind"]), *request["arguments"]]
        from chaos import actors

        code = actors.act(str(request["kind"]), request["arguments"])
    except KeyboardInterrupt:
        code = 130
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    with suppress(BaseException):
        atexit._run_exitfuncs()
    with suppress(BaseException):
        sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
