"""Which vector instructions processor and compiler know, as torch finds it out: it compiles a small library for each
kind and loads it, some seconds in all.

Torch takes any failure of that for an answer, and keeps the answer as long as its process lives. So a compiler that is
ended from outside, or a disk that is full for a moment, would leave everything that is compiled later with fewer
instructions. Here such a failure ends the check before torch sees it, and the check is made once more.
"""

from __future__ import annotations

import contextlib
import platform
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sandbox.compile.outcome import was_killed
from sandbox.failures import passing_words, why_passing

ATTEMPTS = 2


class _Passing(BaseException):
    """A program of a check failed for a reason that says nothing of the instructions. No `Exception`: torch catches all
    of those, and takes them for an answer."""


def known() -> bool:
    """Whether torch has found it out in this process, or in one that this was forked from."""
    from torch._inductor import cpu_vec_isa

    return bool(cpu_vec_isa.valid_vec_isa_list.cache_info().currsize)


def find_instructions() -> str:
    """Have torch find it out for this process and those that are forked from it, unless it is known.

    The reason where it could not be found out twice in a row; torch then has no answer, and asks again where it needs
    one. Else "". Raises what torch does, as where there is no compiler. For a process in which no other thread starts
    programs meanwhile.
    """
    from torch._inductor import cpu_vec_isa

    if known():
        return ""
    why = ""
    for _ in range(ATTEMPTS):
        try:
            with _passing_failures_raised():
                _check_side_by_side(cpu_vec_isa)
                cpu_vec_isa.valid_vec_isa_list()
            return ""
        except _Passing as failure:
            why = str(failure)
    return why


def _check_side_by_side(torchs: Any) -> None:
    """Compile what torch checks one after the other, each of which it remembers. torchs: its module."""
    if platform.machine() != "x86_64":
        return  # there is one only
    flags = torchs.x86_isa_checker()
    kinds = [isa for isa in torchs.supported_vec_isa_list if {*str(isa).split()} <= {*flags}]
    with (
        contextlib.suppress(Exception),  # it comes up where torch checks them itself
        _keeping_flags(kinds),
        ThreadPoolExecutor(max_workers=len(kinds) or 1) as threads,
    ):
        list(threads.map(bool, kinds))


@contextlib.contextmanager
def _keeping_flags(kinds: Sequence[Any]) -> Iterator[None]:
    """Where a check is broken off, give each kind its compiler flags back: torch adds others while it asks for more."""
    before = [kind._arch_flags for kind in kinds]
    try:
        yield
    except BaseException:
        for kind, flags in zip(kinds, before, strict=True):
            kind._arch_flags = flags
        raise


@contextlib.contextmanager
def _passing_failures_raised() -> Iterator[None]:
    """Programs that torch runs: one that fails for a passing reason raises `_Passing`, without what it had written."""
    run = subprocess.run

    def watched(*words: Any, **options: Any) -> Any:
        try:
            return run(*words, **options)
        except (OSError, subprocess.CalledProcessError) as error:
            why = _why_passing(error)
            if not why:
                raise
            if isinstance(error, subprocess.CalledProcessError):
                _remove_output(error.cmd)
            raise _Passing(why) from error

    subprocess.run = watched
    try:
        yield
    finally:
        subprocess.run = run


def _why_passing(error: OSError | subprocess.CalledProcessError) -> str:
    if isinstance(error, OSError):
        return why_passing(error)
    if was_killed(code := error.returncode):
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        return f"{error.cmd[0]} ended with {how}"
    said = b"\n".join(text for text in (error.stdout, error.stderr) if isinstance(text, bytes))
    return passing_words(said.decode(errors="replace"))


def _remove_output(command: Sequence[str]) -> None:
    """Remove what a compiler that was ended has left of its output: torch would load it, and not compile it again."""
    if "-o" in command[:-1]:
        with contextlib.suppress(OSError):
            Path(command[command.index("-o") + 1]).unlink()
