"""JSON lines between a process and its children."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from sandbox import scratch

STOP_GRACE_S = 3.0
DYING_S, LOOK_S = 1.0, 0.005
"""How long what was killed may take to be gone, and how often that is looked at."""
STUCK_S = 10.0
"""Nobody waits longer for a process that was killed: one that waits for a device or a file system may never end."""
WAITING_S = 3600.0
"""What a child may wait for other processes' turns on the device, beyond the time that its work may take."""


def own_stdout() -> TextIO:
    """The real standard output for our messages; whatever else prints goes to standard error from now on."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return out


def child_environment() -> dict[str, str]:
    """This process's environment, with our packages importable as they are here, and torch within seconds."""
    import cuda_agent_backend
    from cuda_agent_backend.runtime import bytecode
    from cuda_agent_backend.settings import own_folder

    root = str(Path(cuda_agent_backend.__file__).resolve().parent.parent)
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    own = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
    return {**os.environ, **own, **bytecode.variables(own_folder(os.environ) / "bytecode")}


class Child:
    """A Python module run as a process group of its own, spoken to in JSON lines.

    Its standard error is ours. It is expected to end when its standard input does.
    """

    def __init__(self, module: str, arguments: Sequence[str] = (), own_group: bool = True) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=child_environment(),
            start_new_session=own_group,
        )
        self.own_group = own_group
        self.owner = os.getpid()
        self._sending = threading.Lock()
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether it runs, and is ours to talk to (not a parent's, after a fork)."""
        return self.owner == os.getpid() and self.process.poll() is None

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send a message; False if it is gone."""
        assert self.process.stdin
        with self._sending:
            try:
                self.process.stdin.write(json.dumps(message) + "\n")
                self.process.stdin.flush()
            except (OSError, ValueError):
                return False
        return True

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message; None when it ended. Raises `queue.Empty` after the time."""
        return self._messages.get(timeout=max(timeout_s, 0.0))

    def stop(self) -> None:
        """Close its input, and kill its group if that does not end it."""
        if self.owner != os.getpid():
            return
        try:
            self._close_input(STOP_GRACE_S)
            killed = self.process.wait(STOP_GRACE_S) < 0
        except (subprocess.TimeoutExpired, TimeoutError):
            self.kill()
        else:
            if killed:  # as while it was ending: nobody else may come to remove what it left
                scratch.sweep()

    def kill(self) -> None:
        """Kill it now, and everything in its group."""
        if self.owner != os.getpid():
            return
        try:
            if self.own_group:
                os.killpg(self.process.pid, 9)
            else:
                self.process.kill()
        except ProcessLookupError:
            pass
        with contextlib.suppress(subprocess.TimeoutExpired, TimeoutError):
            self.process.wait(STUCK_S)
            self._close_input(STUCK_S)
        if self.own_group:
            _wait_for_group(self.process.pid)
        scratch.sweep()  # nobody else may come to remove what it left

    def _close_input(self, patience_s: float) -> None:
        """What it was not told any more is dropped. Raises TimeoutError where a thread is still sending then, as to a
        process that does not read: closing would wait for it."""
        assert self.process.stdin
        if not self._sending.acquire(timeout=patience_s):
            raise TimeoutError(f"a message is not taken within {patience_s:g} s")
        try:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        finally:
            self._sending.release()

    def _read(self) -> None:
        assert self.process.stdout
        with self.process.stdout as stream:
            for message in _lines(stream):
                self._messages.put(message)
        self._messages.put(None)


def _wait_for_group(group: int) -> None:
    """Until a group that was killed is gone, within `DYING_S`: what still dies keeps its folders locked."""
    until = time.monotonic() + DYING_S
    with contextlib.suppress(OSError):
        while time.monotonic() < until:
            os.killpg(group, 0)
            time.sleep(LOOK_S)


def _lines(stream: Any) -> Iterator[dict[str, Any]]:
    for line in stream:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict):
            yield message
