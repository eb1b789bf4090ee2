"""Lines that a process is told on its standard input, and its end with whoever tells them.

What a process is at, as a search or a kernel that hangs, would else go on after its parent was killed, and disturb what
the next run measures.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator

GRACE_S = 10.0
"""From the end of the input to that of a process that does not end by itself."""


def end_group() -> None:
    """Kill this process, and its group where it leads one."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def commands(
    descriptor: int = 0, grace_s: float = GRACE_S, end: Callable[[], None] = end_group
) -> Iterator[str]:
    """The lines, without their ends, until the input does; some time after that `end` is called, from a thread."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def listen() -> None:
        # Unbuffered: a process that ends while a thread waits within a buffer is aborted.
        with open(descriptor, "rb", buffering=0, closefd=False) as stream:
            for line in stream:
                lines.put(line.decode().rstrip("\n"))
        lines.put(None)
        time.sleep(grace_s)
        end()

    threading.Thread(target=listen, daemon=True).start()
    return iter(lines.get, None)
