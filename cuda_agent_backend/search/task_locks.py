"""Who works on a task: two processes that search the same share the work.

One file beside the cache, of which a process locks the byte that a digest names. The system gives up the locks of a
process that dies, and the file stays empty.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LOOK_S = 0.2
"""Between two tries to get a lock that another process has."""
DIGITS = 15
"""Of a digest: 60 bits, which an offset in a file can be."""


class TaskLocks:
    """The locks of one kernel cache. Where the file cannot be opened or locked, everybody gets every lock."""

    def __init__(self, cache_dir: Path) -> None:
        self.path = cache_dir.with_name(f"{cache_dir.name}-tasks.lock")

    @contextlib.contextmanager
    def at_once(self, digest: str) -> Iterator[bool]:
        """Whether nobody else works on what the digest names. While the block runs, nobody else begins to."""
        with self.waited_for(digest, lambda: False) as mine:
            yield mine

    @contextlib.contextmanager
    def waited_for(self, digest: str, go_on: Callable[[], bool]) -> Iterator[bool]:
        """As `at_once`, after a while. go_on: whether to wait longer, asked between two tries."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            yield True
            return
        try:
            place = int(digest[:DIGITS], 16)
            while not (mine := _lock(descriptor, place)) and go_on():
                time.sleep(LOOK_S)
            yield mine
        finally:
            os.close(descriptor)


def _lock(descriptor: int, place: int) -> bool:
    """Lock one byte for this open file, which no child shares; False where another has it."""
    wanted = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
    except BlockingIOError:
        return False
    except OSError:  # a file system without such locks
        return True
    return True
