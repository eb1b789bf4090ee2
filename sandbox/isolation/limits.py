"""Run a command in a child process with limits: the one place where isolation of children is put in force.

Threat model: the command is trusted (a compiler) but its input is not. It may loop, fill memory or disk, fork, or print
without end. Each run gets its own session and process group, resource limits set before exec, an allow-listed
environment, and a deadline after which the whole group is killed. What it may read or connect to is limited where a
policy is given (see `confine`).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from sandbox.isolation.confine import Policy, confined
from sandbox.isolation.head_tail import shortened

GIB = 1 << 30
OUTPUT_LIMIT = 16_000
LOOK_S = 0.25
"""How often a command that may be stopped is looked at."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Limits:
    """Wall time and processor time in seconds, address space and largest file in bytes.

    stop: once it is set, from any thread, the command ends as at its deadline.
    """

    wall_s: float = 120.0
    cpu_s: int = 240
    memory_bytes: int = 16 * GIB
    file_bytes: int = 1 * GIB
    stop: threading.Event | None = None


@dataclass(frozen=True)
class Finished:
    """The command ended by itself. `code` is its exit status, negative if a signal ended it."""

    code: int
    output: str
    seconds: float


@dataclass(frozen=True)
class TimedOut:
    """The command was killed at its deadline, or as it was stopped."""

    output: str
    seconds: float


@dataclass(frozen=True)
class StartFailed:
    """The command could not be started."""

    reason: str


# The limits are set by the shell that then becomes the command: preexec_fn is not safe in a process with threads.
_WITH_LIMITS = (
    'ulimit -c 0; ulimit -t "$1" && ulimit -v "$2" && ulimit -f "$3" && shift 3 && exec "$@"'
)


def run_limited(
    argv: Sequence[str],
    cwd: Path,
    limits: Limits,
    env: Mapping[str, str] | None = None,
    policy: Policy | None = None,
) -> Finished | TimedOut | StartFailed:
    """Run argv in cwd and wait. stdout and stderr come back together, cut in the middle when long.

    The environment is PATH, HOME, TMPDIR and LANG, plus `env`; nothing is inherited. policy: put in force first,
    together with the limits.
    """
    environment = {
        "PATH": SYSTEM_PATH,
        "HOME": str(cwd),
        "TMPDIR": str(cwd),
        "LANG": "C.UTF-8",
        **(env or {}),
    }
    if policy is not None:
        # gcc asks whether it may use a folder in a way that knows no capabilities; this is its next choice.
        environment["TMP"] = "."
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                _command(argv, limits, policy),
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return StartFailed(f"{argv[0]}: {error}")
        in_time = _wait_then_kill_group(child.pid, limits.wall_s, limits.stop)
        code = child.wait()
        text, seconds = _read(output), time.monotonic() - started
    # This process may itself have been kept from looking until the limit of processor time had ended the other.
    late = code in (-signal.SIGKILL, -signal.SIGXCPU) and seconds >= limits.wall_s
    return Finished(code, text, seconds) if in_time and not late else TimedOut(text, seconds)


def _command(argv: Sequence[str], limits: Limits, policy: Policy | None) -> list[str]:
    if policy is None:
        front = ["/bin/sh", "-c", _WITH_LIMITS, "limited", str(limits.cpu_s)]
        return [*front, str(limits.memory_bytes // 1024), str(limits.file_bytes // 512), *argv]
    resources = {
        "core": 0,
        "cpu": limits.cpu_s,
        "as": limits.memory_bytes,
        "fsize": limits.file_bytes,
    }
    return confined(argv, replace(policy, limits={**policy.limits, **resources}))


def _wait_then_kill_group(pid: int, timeout_s: float, stop: threading.Event | None) -> bool:
    """Wait for the process without reaping it, then kill what is left of its group. False if it had to be stopped."""
    descriptor = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        in_time = _ends(poller, timeout_s, stop)
    finally:
        # Not reaped yet, so the group's id cannot have been given to anyone else.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        os.close(descriptor)
    return in_time


def _ends(process: select.poll, timeout_s: float, stop: threading.Event | None) -> bool:
    """Whether a process ends in time, and before it is to stop."""
    if stop is None:
        return bool(process.poll(timeout_s * 1000))
    until = time.monotonic() + timeout_s
    while not stop.is_set() and (left := until - time.monotonic()) > 0:
        if process.poll(min(LOOK_S, left) * 1000):
            return True
    return False


def _read(output: BinaryIO) -> str:
    size = output.seek(0, os.SEEK_END)
    keep = 4 * OUTPUT_LIMIT
    output.seek(0)
    data = output.read(min(size, keep))
    if size > 2 * keep:
        output.seek(size - keep)
        data += b"\n[... %d of %d bytes left out ...]\n" % (size - 2 * keep, size)
    data += output.read()
    return shortened(data.decode(errors="replace"), OUTPUT_LIMIT)
