"""How code generation fails. One rule holds everywhere in `codegen`.

1. What is not covered is a value. A matcher returns a match or `NotCovered` with the reason; so does what reads the
   parameters of a schedule. A policy may send any schedule: one that does not fit is refused as a value, too.
2. `Unsupported` is an early exit within a family: while a task is lowered, or a kernel is written, the reason may come
   up many calls deep. It never leaves the family. `attempt` turns it into a value, and nothing else does: every family
   has one such edge where it is matched and one where its source is asked for. To write ``except Unsupported`` anywhere
   else is right only where there is another way to go on, which is tried instead.
3. Every other exception is a bug. `codegen.api` catches it, logs it once with the task's digest, counts it and returns
   a `bugs.Bug`; the user's model runs without the kernel. So nothing below catches `Exception`, `LookupError`,
   `ArithmeticError` or the like to say that something is not covered: it checks beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class NotCovered:
    """No kernel family covers what was asked for, or the schedule does not fit it."""

    reason: str


class Unsupported(Exception):
    """An early exit within a family, with the reason why it does not cover something. `attempt` makes it a value."""


def attempt(find: Callable[[], T]) -> T | NotCovered:
    """What ``find`` gives; the reason as a value where it gives up with `Unsupported`."""
    try:
        return find()
    except Unsupported as error:
        return NotCovered(str(error))
