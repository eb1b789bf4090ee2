"""Work on several tasks at once, in threads that do not keep an interrupted process from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sandbox.task.task import Task

AT_ONCE = 16
"""Tasks whose episodes go on side by side where they wait for a model."""
LOOK_S = 0.5
"""How long an interrupt may wait until it is noticed."""


def side_by_side(tasks: Sequence[Task], work: Callable[[Task], None]) -> None:
    """Do all, some at a time, in the order in which they are given; an interrupt leaves them.

    The threads are daemons: those that wait for a model do not keep this process from ending. Raises what one of them
    failed with, when all have ended.
    """
    left, lock = iter(list(tasks)), threading.Lock()
    failures: list[BaseException] = []

    def run() -> None:
        while True:
            with lock:
                task = next(left, None)
            if task is None:
                return
            try:
                work(task)
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in tasks[:AT_ONCE]]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(LOOK_S)
    if failures:
        raise failures[0]
