"""What a user sees of a search while it goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from cuda_agent_backend import log


class SearchProgress:
    """A bar on a terminal, log lines elsewhere; both with the seconds gone and left, and the best speed-up so far.

    limit_s: seconds that it takes at most. finds: whether there may be a best.
    """

    def __init__(
        self,
        title: str,
        mode: str,
        limit_s: float,
        finds: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title, self.limit_s = title, limit_s
        self._bar: Any = None
        self._on = mode == "on" or (mode == "auto" and sys.stderr.isatty())
        self._said = ""
        self._best: float | None = 0.0 if finds else None
        self._clock = clock
        self._begun = clock()

    def __enter__(self) -> SearchProgress:
        if self._on:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("cuda_agent: {task.description}", markup=False),
                BarColumn(),
                _column(self.standing),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=max(self.limit_s, 0.1))
        else:
            log.logger("search").info("%s", self.title)
        return self

    def update(self, message: Mapping[str, Any]) -> None:
        """Show a progress message of the search process."""
        done, of, text = message.get("done", 0), message.get("of", 1), str(message.get("text", ""))
        if self._best is not None:
            self._best = max(self._best, float(message.get("best") or 0.0))
        line = f"{done + 1} of {of}: {text}" if of > 1 else text
        if self._bar is not None:
            gone = self._clock() - self._begun
            self._bar.update(self._task, completed=gone, description=line[:90])
        elif line != self._said:
            log.logger("search").info("%s: %s", self.standing(), line)
        self._said = line

    def standing(self) -> str:
        """The seconds gone and left, and the best so far, as of now."""
        return standing(self._clock() - self._begun, self.limit_s, self._best)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def standing(gone_s: float, limit_s: float, best: float | None) -> str:
    """In words. best: the speed-up over the faster baseline, 0 while there is none, None where none is looked for."""
    times = f"{gone_s:.0f} s gone, {max(limit_s - gone_s, 0.0):.0f} s left"
    if best is None:
        return times
    return f"{times}, best so far {best:.2f}x" if best else f"{times}, nothing faster so far"


def _column(text: Callable[[], str]) -> Any:
    """A column of a bar that is written anew at each refresh."""
    from rich.progress import ProgressColumn
    from rich.text import Text

    class Column(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(text())

    return Column()
