"""What can go wrong around a candidate, each a value with its reason, and which of it may pass.

A failure is final where the code is at fault: it is wrong, refused, too slow, crashes or does not compile for reasons
of its own. It is passing where the machine was at fault: a process was killed, memory or the disk was full, the time
ran out, nothing could be started. This is the one place that tells the two apart (`why_passing`, `passing_words`). A
passing failure is never remembered as final: no negative record, no decision on a graph, no code in torch's caches.

A candidate may print the words of a passing failure. All that it gains is that its task is searched once more.
"""

from __future__ import annotations

import errno
import re
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
    """The candidate's source did not compile; the compiler's words are in `log`.

    passing: the compiler was killed, is not there, or could not be started.
    """

    status: ClassVar[str] = "compile_failed"
    log: str
    passing: bool = False

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


@dataclass(frozen=True)
class NoMemory:
    """The device has not as many bytes as a phase needs. It says nothing of the candidate, nor of another device.

    free: what could be had. ever: whether it might fit once others hold less; else it is more than there is in all.
    """

    status: ClassVar[str] = "no_memory"
    phase: str
    needed: int
    free: int
    total: int
    ever: bool = True

    @property
    def reason(self) -> str:
        """One line."""
        have = (
            f"{self.free:,} of {self.total:,} are to be had"
            if self.ever
            else f"it has {self.total:,}"
        )
        return f"{self.phase} needs {self.needed:,} bytes of the device's memory: {have}"


Failure = Crashed | TimedOut | CompileFailed | Refused | Failed | Noisy | NoMemory


PASSING_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGXCPU", "SIGXFSZ", "SIGPIPE")
"""What ends a process from outside, or because the machine has no more of something. A fault of the code ends it by
SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT."""
NOT_STARTED = "it could not be started"
_WORDS = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|File too large|Input/output error"
    r"|Cannot allocate memory|virtual memory exhausted|out of memory|OutOfMemory|OUT_OF_MEMORY|_ALLOC_FAILED"
    r"|MemoryError|bad_alloc|Resource temporarily unavailable|Too many open files|can't start new thread"
    r"|bytes of the device's memory|vfork|cannot fork"
    r"|Broken pipe|Connection re(?:set|fused)|BrokenProcessPool|database is locked"
    r"|(?:Killed|Terminated|Interrupt|Hangup|limit exceeded) signal terminated program"  # GCC of a program it runs
    r"|: Killed|\bsignal (?:1|2|9|13|15|24|25)\b|\((?:-9|-15|-2|-1)\)|terminated by signal|Text file busy"
    rf"|\b(?:{'|'.join(PASSING_SIGNALS)})\b|no answer from|could not be started|did not answer in time",
    re.IGNORECASE,
)
_ERRNOS = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.ENOMEM),
        *(errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EPIPE, errno.ETXTBSY),
    }
)


def why_passing(found: object) -> str:
    """Why an outcome, a verdict or an exception says nothing of the code itself, as one line; "" where it is final."""
    match found:
        case Noisy() | Failed() | TimedOut() | NoMemory():
            return found.reason
        case Crashed(how=how, log=log):
            ended = how in PASSING_SIGNALS or how == NOT_STARTED or passing_words(log)
            return found.reason if ended else ""
        case CompileFailed(log=log, passing=passing):
            return found.reason if passing or passing_words(log) else ""
        case MemoryError() | KeyboardInterrupt() | EOFError() | TimeoutError() | ConnectionError():
            return f"{type(found).__name__}: {found}"
        case OSError(errno=number) if number in _ERRNOS:
            return str(found)
        case Exception():
            return passing_words(f"{type(found).__name__}: {found}")
    status, reason = getattr(found, "status", ""), getattr(found, "reason", "")
    if status in (Noisy.status, Failed.status, TimedOut.status, NoMemory.status):
        return str(reason)
    if status in (Crashed.status, CompileFailed.status):
        return passing_words(str(reason))
    return ""


def passing_words(text: str) -> str:
    """The line of a program's or an error's words that tells of the machine and not of the code; "" where none does."""
    return next((line.strip() for line in text.splitlines() if _WORDS.search(line)), "")


AT_ONCE, FIRST_WAIT_S, LONGEST_WAIT_S = 1, 60.0, 3600.0


def back_off_s(times: int) -> float:
    """Seconds to wait after so many passing failures in a row before it is tried again: none after the first, then a
    minute, four times as long after each, an hour at most."""
    if times <= AT_ONCE:
        return 0.0
    return float(min(FIRST_WAIT_S * 4.0 ** min(times - AT_ONCE - 1, 8), LONGEST_WAIT_S))
