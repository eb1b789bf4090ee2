"""A process that holds a task and dies is seen to have died, on the same machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kernel_cache.owners import is_gone, own_name

PRINT = "from kernel_cache.owners import own_name; print(own_name(), flush=True); input()"


def test_a_living_process_is_not_gone_and_a_dead_one_is() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", PRINT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin and child.stdout
    name = child.stdout.readline().strip()
    assert not is_gone(name) and not is_gone(own_name())
    child.stdin.close()
    child.wait()
    child.stdout.close()
    assert is_gone(name)


@pytest.mark.parametrize("name", ["", "me", "pid 1", "elsewhere/pid:[1] 999999999 5", "a b c d"])
def test_of_others_nothing_is_known(name: str) -> None:
    assert not is_gone(name)


def test_another_process_with_the_same_number_is_not_the_owner() -> None:
    where, pid, start = own_name().split(" ")
    assert is_gone(f"{where} {pid} {int(start) - 1}")
