"""How far something is that takes minutes: a bar, or a line now and then where no terminal shows one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

LINES_S = 60.0
"""Between lines in a log."""


@contextlib.contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """Yields what is told how many of them are done."""
    from rich import progress as rich_progress

    with rich_progress.Progress(transient=True) as bar:
        if not bar.console.is_terminal:
            yield _lines(total, what)
            return
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def _lines(total: int, what: str) -> Callable[[int], None]:
    last = time.monotonic()

    def tell(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= LINES_S:
            last = time.monotonic()
            print(f"{done} of {total} {what}", flush=True)

    return tell
