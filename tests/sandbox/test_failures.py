"""Which failures are final and which may pass."""

from __future__ import annotations

import errno

import pytest

from sandbox.compile.outcome import failure_of
from sandbox.failures import (
    NOT_STARTED,
    CompileFailed,
    Crashed,
    Failed,
    Noisy,
    Refused,
    TimedOut,
    back_off_s,
    why_passing,
)
from sandbox.isolation.limits import Finished, StartFailed
from sandbox.isolation.limits import TimedOut as Late
from sandbox.verdict import Verdict, Wrong

FULL = "/tmp/ccX.s: fatal error: error writing to /tmp/ccX.s: No space left on device"


@pytest.mark.parametrize(
    "found",
    [
        Crashed("run", "SIGKILL"),
        Crashed("run", "SIGTERM"),
        Crashed("run", NOT_STARTED),
        Crashed("run", "exit status 1", "terminate called: std::bad_alloc"),
        CompileFailed(FULL),
        CompileFailed("g++: fatal error: Killed signal terminated program cc1plus"),
        CompileFailed("g++: fatal error: Terminated signal terminated program cc1plus"),
        CompileFailed("g++: fatal error: Interrupt signal terminated program as"),
        CompileFailed("collect2: fatal error: ld terminated with signal 2 [Interrupt]"),
        CompileFailed("nvcc error : 'cicc' died due to signal 15"),
        CompileFailed("no C++ compiler; install g++", passing=True),
        TimedOut("run", 10.0),
        Failed("start", "no reason"),
        Noisy("busy"),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EROFS, "Read-only file system"),
        MemoryError(),
        KeyboardInterrupt(),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("can't start new thread"),
        Verdict("crashed", "crashed in run: SIGKILL", -1.0),
        Verdict("timed_out", "no answer from run within 10 s", -1.0),
    ],
    ids=repr,
)
def test_what_the_machine_did_is_passing_and_says_why(found: object) -> None:
    why = why_passing(found)
    assert why and "\n" not in why


@pytest.mark.parametrize(
    "found",
    [
        Crashed("run", "SIGSEGV", "a line of the log"),
        Crashed("run", "SIGFPE"),
        Crashed("run", "exit status 3"),
        CompileFailed("kernel.cpp:1:1: error: expected unqualified-id"),
        CompileFailed("g++: fatal error: Segmentation fault signal terminated program cc1plus"),
        CompileFailed("collect2: fatal error: ld terminated with signal 11 [Segmentation fault]"),
        Refused("host code in it"),
        Wrong("normal, output 0", "2e-1"),
        ValueError("no such schedule"),
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        Verdict("wrong", "wrong on normal: 1", -1.0),
        Verdict("crashed", "crashed in run: SIGSEGV", -1.0),
    ],
    ids=repr,
)
def test_what_the_code_did_is_final(found: object) -> None:
    assert why_passing(found) == ""


@pytest.mark.parametrize(
    ("ran", "passing"),
    [
        (Finished(-9, "", 1.0), True),
        (Finished(137, "", 1.0), True),
        (Finished(143, "", 1.0), True),
        (StartFailed("g++: Cannot allocate memory"), True),
        (Finished(1, "kernel.cpp:1:1: error: a type is missing", 1.0), False),
        (Finished(-11, "internal compiler error: Segmentation fault", 1.0), False),
    ],
)
def test_a_compiler_that_was_killed_says_nothing_of_the_source(
    ran: Finished | StartFailed, passing: bool
) -> None:
    found = failure_of(ran)
    assert found is not None and not isinstance(found, Late)
    assert bool(getattr(found, "passing", False)) is passing


def test_what_keeps_failing_is_tried_at_once_and_then_after_ever_longer_waits_of_an_hour_at_most() -> (
    None
):
    waits = [back_off_s(times) for times in range(40)]
    assert waits[:4] == [0.0, 0.0, 60.0, 240.0] and waits == sorted(waits) and waits[-1] == 3600.0
