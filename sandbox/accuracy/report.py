"""What a comparison says: errors, what they were held against, and where a result is wrong."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sandbox.accuracy.misses import Misses


@dataclass(frozen=True)
class OutputReport:
    """One output. Errors are absolute; `*_allowed` is the bound they were held against."""

    number: int
    passes: bool
    reason: str = ""
    elements: int = 0
    rms_error: float = 0.0
    rms_eager: float = 0.0
    rms_allowed: float = 0.0
    max_error: float = 0.0
    max_eager: float = 0.0
    max_allowed: float = 0.0
    error_ratio: float = 0.0
    """RMS error over that of eager, or over the rounding floor where eager was better than it."""
    misses: Misses | None = None
    """Where it is wrong, if it is, on the first draw on which an element is."""


@dataclass(frozen=True)
class AccuracyReport:
    """All outputs of one or more draws."""

    outputs: tuple[OutputReport, ...]

    @property
    def passes(self) -> bool:
        """Whether every output passes."""
        return all(output.passes for output in self.outputs)

    @property
    def reason(self) -> str:
        """The first failure, empty if there is none."""
        failed = [f"output {o.number}: {o.reason}" for o in self.outputs if not o.passes]
        return failed[0] if failed else ""

    @property
    def error_ratio(self) -> float:
        """The worst of the outputs."""
        return max((output.error_ratio for output in self.outputs), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)
