"""What came of the search for one task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.plan.candidate import Candidate
    from sandbox.verdict import Verdict


@dataclass(frozen=True)
class SearchResult:
    """A kernel that won, its verdict and its compiled form. policy: what found it."""

    candidate: Candidate
    verdict: Verdict
    binary: bytes
    toolchain: str
    policy: str
    reason: str = ""
    turns: int = 0


@dataclass(frozen=True)
class NothingFound:
    """No kernel won, and why. `exhausted`: looking longer would not have changed that."""

    reason: str
    exhausted: bool = False
    turns: int = 0
    keep: bool = True
    """Whether it says something about the task, not about the machine's state just now (see `sandbox.failures`)."""
    late: bool = False
    """Whether the time was up before anything was known: the next search goes on."""


SearchOutcome = SearchResult | NothingFound
