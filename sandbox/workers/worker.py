"""The worker process, which a fork server makes (see `fork_server`): what it does before it serves.

It first splits in two. The outer half only watches the inner one and the LIFE pipe, and
when the judge closes that pipe, or dies, it kills the inner half's process group. So a hanging
candidate never outlives the judge. The inner half confines itself for good, while it has one
thread; then it serves commands on CONTROL.

As a program, `python -m sandbox.workers.worker CONTROL LIFE STATUS POLICY`: three inherited descriptors, and how to
confine it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

SIGNAL_BASE = 128
BYTECODE = "PYTHONPYCACHEPREFIX"
"""Where modules' bytecode is, if not beside them: for what a fork server imports. Its workers make no use of it."""
NUMBER = struct.Struct("<i")


def places(folder: Path) -> dict[str, str]:
    """Where a worker keeps what: variables of its environment, all below a folder of its own; and a name for its user,
    whose number no system knows, as torch looks for one to name a folder after."""
    return {
        "USER": "sandbox",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "CUDA_CACHE_PATH": str(folder / "cuda"),
    }


def main() -> None:
    """Entry point of the program."""
    control, life, status = map(int, sys.argv[1:4])
    begin(control, life, status, sys.argv[4])


def begin(control: int, life: int, status: int, policy: str) -> NoReturn:
    """Split, watch, confine, serve. status: a pipe that is told the watching half's process id and its exit status."""
    os.write(status, NUMBER.pack(os.getpid()))
    child = os.fork()
    if child:
        os.close(control)
        watch(child, life, status)
    os.close(life)
    os.close(status)
    run_and_exit(lambda: _confine_and_serve(control, policy))


def run_and_exit(work: Callable[[], object]) -> NoReturn:
    """Do what a forked process is for, and end it without what its parent does at its end: with status 1 where the
    work raises."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _confine_and_serve(control: int, policy: str) -> None:
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    from sandbox.isolation.confine import Policy, apply

    wanted = Policy.from_json(policy)
    hide_command_line()
    isolation = apply(wanted)
    from sandbox.workers.loop import serve

    serve(control, isolation)


def hide_command_line() -> None:
    """Overwrite this process's arguments in memory: they would tell a candidate where it runs."""
    import ctypes

    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    # the 48th and 49th field of all; the third is the first here
    begin, end = int(fields[45]), int(fields[46])
    if begin:
        ctypes.memset(begin, 0, end - begin)


def watch(child: int, life: int, status: int) -> NoReturn:
    """Wait for the child's end or for the judge's, then end the whole group and report the status.

    It leads a group of its own: a signal to that of the judge, as a terminal or a time limit sends, ends the judge, and
    would end this before what it watches. Exit status: that of the child, or 128 + the number of the signal that ended
    it.
    """
    with contextlib.suppress(PermissionError):  # of a session's leader, as a worker's is
        os.setpgid(0, 0)
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(child, child)
    descriptor = os.pidfd_open(child)
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    poller.register(life, select.POLLIN | select.POLLHUP)
    poller.poll()
    # Not reaped yet, so the number cannot belong to anyone else.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = code if code >= 0 else SIGNAL_BASE - code
    with contextlib.suppress(OSError):
        os.write(status, NUMBER.pack(code))
    os._exit(code)


if __name__ == "__main__":
    main()
