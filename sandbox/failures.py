"""What can go wrong around a candidate, each a value with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Crashed:
    """The process died. `how` names the signal or exit status; `log` is the end of its output."""

    status: ClassVar[str] = "crashed"
    stage: str
    how: str
    log: str = ""

    @property
    def reason(self) -> str:
        """One line."""
        return f"crashed in {self.stage}: {self.how}"


@dataclass(frozen=True)
class TimedOut:
    """The process did not answer in time and was killed."""

    status: ClassVar[str] = "timed_out"
    stage: str
    seconds: float

    @property
    def reason(self) -> str:
        """One line."""
        return f"no answer from {self.stage} within {self.seconds:g} s"


@dataclass(frozen=True)
class CompileFailed:
    """The candidate's source did not compile; the compiler's words are in `log`."""

    status: ClassVar[str] = "compile_failed"
    log: str

    @property
    def reason(self) -> str:
        """One line: the first error."""
        lines = [line for line in self.log.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line]
        return f"does not compile: {(errors or lines or ['no output'])[0]}"


@dataclass(frozen=True)
class Refused:
    """The candidate or the task is not one that can be judged, or its result cannot be true."""

    status: ClassVar[str] = "refused"
    reason: str


@dataclass(frozen=True)
class Failed:
    """A worker could not do its part, with torch's words: the task does not compile, for instance."""

    status: ClassVar[str] = "failed"
    stage: str
    message: str

    @property
    def reason(self) -> str:
        """One line."""
        lines = self.message.strip().splitlines() or ["no reason given"]
        return f"{self.stage} failed: {lines[-1]}"


@dataclass(frozen=True)
class Noisy:
    """The machine is not quiet enough to time anything on it now."""

    status: ClassVar[str] = "noisy"
    reason: str


Failure = Crashed | TimedOut | CompileFailed | Refused | Failed | Noisy
