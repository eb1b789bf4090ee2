"""The judge's end of a fork server: start workers, and learn how they ended."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sandbox.workers.worker import NUMBER, places

SEND_SECONDS = 5.0
"""A server that does not take a request for so long, with many of them waiting, is started anew."""


class Started:
    """A worker's watching half: a process that is not this one's child."""

    def __init__(self, status_fd: int) -> None:
        self._status = status_fd
        self._pid: int | None = None

    @property
    def began(self) -> bool:
        """Whether it came to be, as far as is known now."""
        return self.pid(0.0) is not None

    def pid(self, timeout_s: float) -> int | None:
        """Its process id, waited for; None if it never came to be."""
        if self._pid is None:
            self._pid = self._read(timeout_s)
        return self._pid

    def wait(self, timeout_s: float) -> int:
        """Its exit status, that of a kill where something ended it. Raises TimeoutError; to be called once."""
        deadline = time.monotonic() + timeout_s
        if self.pid(timeout_s) is None and time.monotonic() >= deadline:
            raise TimeoutError
        status = self._read(max(0.0, deadline - time.monotonic()))
        if status is None and time.monotonic() >= deadline:
            raise TimeoutError
        return -signal.SIGKILL if status is None else status

    def kill(self) -> None:
        """End it at once."""
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def close(self) -> None:
        """Give the pipe up."""
        os.close(self._status)

    def _read(self, timeout_s: float) -> int | None:
        """The next number; None at the end of the pipe, or when none comes in time."""
        poller = select.poll()
        poller.register(self._status, select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            return None
        data = os.read(self._status, NUMBER.size)
        return NUMBER.unpack(data)[0] if len(data) == NUMBER.size else None


class ForkServer:
    """A process that forks workers (see `fork_server`), started when first needed and again after it died.

    Several threads may use it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.folder / "forkserver.log"

    @property
    def process_id(self) -> int | None:
        """Of the server; None where none was started."""
        return self._process.pid if self._process else None

    def begin(self, environment: Mapping[str, str]) -> None:
        """Start the server itself, for workers to come. What goes wrong comes up when one is started."""
        with self._lock, suppress(OSError):
            self._running(environment)

    def start(
        self,
        policy: str,
        cwd: Path,
        environment: Mapping[str, str],
        fds: tuple[int, int, int],
        cache: str = "",
    ) -> Started:
        """Have a worker started, without waiting for it. fds: its control, life and log.

        environment: counts when the server itself is started, which has folders of its own; a worker's follow from
        `cwd`. cache: of Inductor's, in which the server finds out first which instructions there are; it takes
        seconds, once.
        """
        with self._lock:
            return self._start(policy, cwd, environment, fds, cache)

    def _start(
        self,
        policy: str,
        cwd: Path,
        environment: Mapping[str, str],
        fds: tuple[int, int, int],
        cache: str,
    ) -> Started:
        read, write = os.pipe()
        control, life, log = fds
        request = f"{cwd}\n{cache}\n{policy}".encode()
        for _ in range(2):  # one that died in silence is started again
            with suppress(OSError):
                socket.send_fds(self._running(environment), [request], [control, life, write, log])
                break
            self.stop()
        os.close(write)
        return Started(read)

    def _running(self, environment: Mapping[str, str]) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self.stop()
        if self._requests is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-P",
                        "-m",
                        "sandbox.workers.fork_server",
                        str(theirs.fileno()),
                    ],
                    cwd=self.folder,
                    env={**environment, **places(self.folder)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            theirs.close()
            ours.settimeout(SEND_SECONDS)
            self._requests = ours
        return self._requests

    def stop(self) -> None:
        """End it; its workers live on."""
        with self._lock:
            process, requests = self._process, self._requests
            self._process = self._requests = None
        if requests is not None:
            requests.close()
        if process is not None:
            if process.poll() is None:  # not reaped, so the number is still its own
                os.killpg(
                    process.pid, signal.SIGKILL
                )  # workers have groups of their own, its compilers not
            process.wait()
