"""Locks on files that are taken at once or not at all."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sandbox.file_locks import lock_at_once

Opens = Callable[[], int]


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    """Opens one file anew, as another process would: locks are of what was opened."""
    with ExitStack() as stack:

        def opened() -> int:
            descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, descriptor)
            return descriptor

        yield opened


@pytest.mark.parametrize(
    ("held", "wanted", "taken"),
    [
        (fcntl.LOCK_EX, fcntl.LOCK_EX, False),
        (fcntl.LOCK_EX, fcntl.LOCK_SH, False),
        (fcntl.LOCK_SH, fcntl.LOCK_EX, False),
        (fcntl.LOCK_SH, fcntl.LOCK_SH, True),
    ],
)
def test_a_lock_is_taken_only_where_that_needs_no_waiting(
    opens: Opens, held: int, wanted: int, taken: bool
) -> None:
    first, second = opens(), opens()
    assert lock_at_once(first, held)
    assert lock_at_once(second, wanted) is taken
    fcntl.flock(first, fcntl.LOCK_UN)
    assert lock_at_once(second, wanted)


def test_a_lock_ends_with_the_process_that_has_it(opens: Opens, tmp_path: Path) -> None:
    program = (
        "import fcntl, os, sys; from sandbox.file_locks import lock_at_once;"
        "print(lock_at_once(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX), flush=True);"
        "sys.stdin.read()"
    )
    ours = opens()
    command = [sys.executable, "-c", program, str(tmp_path / "lock")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "True\n"
        assert not lock_at_once(ours, fcntl.LOCK_EX)
        child.kill()
        child.wait()
    assert lock_at_once(ours, fcntl.LOCK_EX)


def test_what_is_no_lock_raises_and_is_not_taken_for_one_that_others_have(opens: Opens) -> None:
    closed = os.dup(opens())
    os.close(closed)
    with pytest.raises(OSError, match="Bad file descriptor"):
        lock_at_once(closed, fcntl.LOCK_EX)
