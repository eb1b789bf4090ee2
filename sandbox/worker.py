"""The worker process: `python -m sandbox.worker CONTROL LIFE POLICY`, two inherited descriptors and how to confine it.

It first splits in two. The outer half stays tiny: it watches the inner one and the LIFE pipe, and
when the judge closes that pipe, or dies, it kills the inner half's process group. So a hanging
candidate never outlives the judge. The inner half confines itself for good, while it is small and has one
thread; then it imports torch and serves commands on CONTROL.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from pathlib import Path
from typing import NoReturn

SIGNAL_BASE = 128


def main() -> None:
    """Entry point."""
    control, life = int(sys.argv[1]), int(sys.argv[2])
    child = os.fork()
    if child:
        os.close(control)
        watch(child, life)
    os.close(life)
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    from sandbox.confine import Policy, apply

    policy = Policy.from_json(sys.argv[3])
    hide_command_line()
    isolation = apply(policy)
    from sandbox.workerloop import serve

    serve(control, isolation)


def hide_command_line() -> None:
    """Overwrite this process's arguments in memory: they would tell a candidate where it runs."""
    import ctypes

    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    # the 48th and 49th field of all; the third is the first here
    begin, end = int(fields[45]), int(fields[46])
    if begin:
        ctypes.memset(begin, 0, end - begin)


def watch(child: int, life: int) -> NoReturn:
    """Wait for the child's end or for the judge's, then end the whole group and report the status.

    Exit status: that of the child, or 128 + the number of the signal that ended it.
    """
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
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else SIGNAL_BASE - code)


if __name__ == "__main__":
    main()
