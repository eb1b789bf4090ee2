"""What can come of compiling a candidate."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sandbox.compile.toolchain import Toolchain
from sandbox.failures import PASSING_SIGNALS
from sandbox.isolation.limits import Finished, StartFailed, TimedOut
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Plan


@dataclass(frozen=True)
class Compiled:
    """The binary at `path` (shared object or cubin).

    `facts` (cuda only) maps each kernel to registers, spill_store_bytes, spill_load_bytes, stack_bytes, shared_bytes.
    `plan`: what to launch, where compiling has made another plan of the candidate's.
    """

    path: Path
    log: str
    seconds: float
    toolchain: Toolchain
    facts: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan | None = None

    def launched(self, candidate: Candidate) -> Candidate:
        """The candidate with the plan that goes with this binary."""
        return candidate if self.plan is None else replace(candidate, plan=self.plan)


@dataclass(frozen=True)
class CompileFailed:
    """The compiler refused the source. passing: it could not, as it was killed, is not there or has no room."""

    log: str
    passing: bool = False


@dataclass(frozen=True)
class CompileTimedOut:
    """The compiler was stopped at its deadline."""

    log: str
    seconds: float


@dataclass(frozen=True)
class Refused:
    """The candidate asks for something that is not allowed."""

    reason: str


_KILLS = frozenset(int(signal.Signals[name]) for name in PASSING_SIGNALS)

CompileResult = Compiled | CompileFailed | CompileTimedOut | Refused


def was_killed(code: int) -> bool:
    """Whether a compiler's exit status says that something outside ended it, directly or a process below it."""
    return -code in _KILLS or code - 128 in _KILLS


def failure_of(
    result: Finished | TimedOut | StartFailed,
) -> CompileFailed | CompileTimedOut | None:
    """What went wrong with a compiler's run, if anything."""
    match result:
        case TimedOut(output, seconds):
            return CompileTimedOut(output, seconds)
        case StartFailed(reason):
            return CompileFailed(reason, passing=True)
        case Finished(code, output, _) if code != 0:
            log = f"{output}\nthe compiler ended with status {code}".lstrip()
            return CompileFailed(log, passing=was_killed(code))
    return None
