"""The expected failure of the code generator, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NotCovered:
    """No kernel family covers what was asked for, or the schedule does not fit it."""

    reason: str
