"""A composed task, and what a composer is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Wishes:
    """What tasks are for. device: ``cpu`` or ``cuda``. Times are in seconds, memory in bytes.

    need_bytes: what a task's probe may need as it is reckoned; sizes that need more, or whose inputs and weights have
    more than `memory_bytes`, are not composed. None where sizes follow from time alone. short: times aimed at are drawn
    as if the window were this power of a number from 0 to 1 wide; above 1 more of them are short.
    """

    device: str
    least_s: float
    most_s: float
    memory_bytes: int
    need_bytes: int | None = None
    short: float = 1.0

    @staticmethod
    def of(device: str) -> Wishes:
        """The window of eager's time and the memory of inputs and weights, by device."""
        if device == "cuda":
            return Wishes(device, 1e-3, 0.1, 1 << 30, need_bytes=10 << 30, short=2.0)
        return Wishes(device, 0.2e-3, 50e-3, 1 << 28)


SMALL_S = {"cuda": (5e-6, 1e-3), "cpu": (5e-6, 0.2e-3)}
"""The window of a task that is marked as bound by launches."""


def window_of(wishes: Wishes, small: bool) -> tuple[float, float]:
    """Seconds that eager may take."""
    return SMALL_S[wishes.device] if small else (wishes.least_s, wishes.most_s)


@dataclass(frozen=True)
class Composed:
    """A task's code and what is said of it.

    ops: the operators, in order. families: theirs. small: launches dominate, so that its time may lie below the
    window. exempt: ends of names of weights on which the result does not depend by a law, such as the bias of keys,
    which softmax cancels. provenance: from which seed, by which composer, how often scaled.
    """

    code: str
    ops: tuple[str, ...]
    families: tuple[str, ...]
    source: str
    dtype: str
    training: bool
    pattern: str
    small: bool
    provenance: dict[str, Any] = field(default_factory=dict)
    exempt: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Sixteen hex digits of the code."""
        return hashlib.sha256(self.code.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class NotComposed:
    """No task comes of this seed number, and why."""

    reason: str


class Composer(Protocol):
    """What makes tasks from seed numbers."""

    @property
    def name(self) -> str:
        """As provenance has it."""
        ...

    @property
    def trusted(self) -> bool:
        """Whether its code is ours: other code runs only where this machine can confine it."""
        ...

    @property
    def scales(self) -> bool:
        """Whether a task that takes too long or too little may be asked for at another rung."""
        ...

    def compose(self, seed: int, rung: int) -> Composed | NotComposed:
        """The task of a seed number. rung: how often its size is doubled (halved, where negative)."""
        ...
