"""Where the time of a verdict goes: seconds in compiling and running, taken around the functions that do it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

PLACES = {
    "compile": ("sandbox.judge.builds.Builds.build",),
    "prepare": ("sandbox.judge.session.Session.prepare",),
    "reference": (
        "sandbox.judge.session.Session.reference",
        "sandbox.judge.session.Session.reference_of",
    ),
    "run": (
        "sandbox.workers.supervisor.WorkerProcess.run",
        "sandbox.workers.supervisor.WorkerProcess.ask_to_run",
    ),
}
"""Parts of a verdict that are compiling or running something; what they contain of each other counts once."""


@dataclass
class Clock:
    """Seconds by part."""

    seconds: dict[str, float] = field(default_factory=dict)
    depth: int = 0

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time being added to the part."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.depth += 1
            before = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.depth -= 1
                if self.depth == 0:
                    spent = time.perf_counter() - before
                    self.seconds[part] = self.seconds.get(part, 0.0) + spent

        return timed


@contextmanager
def listening(clock: Clock) -> Iterator[None]:
    """Take times within the block."""
    import pkgutil

    with ExitStack() as stack:
        for part, places in PLACES.items():
            for place in places:
                wrapped = clock.around(part, pkgutil.resolve_name(place))
                stack.enter_context(mock.patch(place, wrapped))
        yield
