"""All that a process has started: found, measured and ended, whatever became of groups and parents in between.

For a process with one thread that has called `adopt`: whatever loses its parent below it becomes its child.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

_SET_CHILD_SUBREAPER = 36


def adopt() -> None:
    """Be the parent of all descendants whose own parent ends. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def descendants(pid: int) -> list[int]:
    """Process ids of all below a process, as far as they can be seen at once."""
    children = _children if _kernel_lists_children() else _children_by_parent()
    found, todo = [], children(pid)
    while todo:
        found.append(todo.pop())
        todo += children(found[-1])
    return found


@cache
def _kernel_lists_children() -> bool:
    return Path("/proc/thread-self/children").exists()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:  # noqa: PTH123
                found += map(int, file.read().split())
    return found


def _children_by_parent() -> Callable[[int], list[int]]:
    by_parent: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                by_parent[parent].append(int(entry.name))
    return lambda pid: list(by_parent[pid])


def tasks_of(uid: int) -> int:
    """How many threads a user has."""
    total = 0
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                total += len(list((entry / "task").iterdir()))
    return total


def memory_of(pids: Iterable[int]) -> int:
    """Bytes that these processes hold beside pages of files; what several share counts for each."""
    total = 0
    for pid in pids:
        with suppress(OSError, IndexError, ValueError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith(("RssAnon:", "RssShmem:")):
                    total += int(line.split()[1]) << 10
    return total


def reap(keep: int) -> None:
    """Take note of children that have ended, so that they count no more; but not of `keep`."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == keep:
            return
        with suppress(ChildProcessError):
            os.waitpid(ended.si_pid, 0)


def end_group(group: int) -> None:
    """Kill all of a process group. Its leader must not have been waited for, or its number may be another's."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def end_all(seconds: float) -> int:
    """Kill all descendants and wait for them. Returns how many are still there after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = descendants(os.getpid())
        if not left or time.monotonic() >= deadline:
            return len(left)
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
