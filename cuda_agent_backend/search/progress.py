"""What a user sees of a search while it goes on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from cuda_agent_backend import log


class SearchProgress:
    """A bar on a terminal, log lines elsewhere."""

    def __init__(self, title: str, mode: str) -> None:
        self.title = title
        self._bar: Any = None
        self._on = mode == "on" or (mode == "auto" and sys.stderr.isatty())
        self._said = ""

    def __enter__(self) -> SearchProgress:
        if self._on:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("cuda_agent: {task.description}", markup=False),
                BarColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=None)
        else:
            log.logger("search").info("%s", self.title)
        return self

    def update(self, message: Mapping[str, Any]) -> None:
        """Show a progress message of the search process."""
        done, of, text = message.get("done", 0), message.get("of", 1), str(message.get("text", ""))
        line = f"{done + 1} of {of}: {text}" if of > 1 else text
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=of, description=line[:90])
        elif line != self._said:
            log.logger("search").info("%s", line)
        self._said = line

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
