"""What a killed process and its group leave behind is removed."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cuda_agent_backend.runtime import child_process
from cuda_agent_backend.runtime.child_process import Child


class Gone:
    """A process that is dead."""

    pid, stdin = 4_000_000, io.StringIO()

    def wait(self, timeout: float) -> int:
        return -9


class Stuck(Gone):
    """A process that was killed and does not end, as one that waits for a file system."""

    def wait(self, timeout: float) -> int:
        raise subprocess.TimeoutExpired("stuck", timeout)


def killed(monkeypatch: pytest.MonkeyPatch, looks: int, process: type[Gone] = Gone) -> list[str]:
    """What killing a child does whose group is there for so many looks more."""
    steps: list[str] = []

    def killpg(group: int, signal: int) -> None:
        assert group == Gone.pid
        steps.append("kill" if signal else "look")
        if steps.count("look") > looks:
            raise ProcessLookupError

    child: Any = Child.__new__(Child)
    child.process, child.own_group, child.owner = process(), True, os.getpid()
    child._sending = threading.Lock()
    monkeypatch.setattr(child_process.os, "killpg", killpg)
    monkeypatch.setattr(child_process.scratch, "sweep", lambda: steps.append("sweep"))
    child.kill()
    return steps


def test_folders_are_swept_once_the_last_of_the_group_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert killed(monkeypatch, 2) == ["kill", "look", "look", "look", "sweep"]


def test_a_group_that_does_not_die_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "DYING_S", 0.0)
    assert killed(monkeypatch, 1_000_000) == ["kill", "sweep"]


def test_nobody_waits_for_a_process_that_does_not_end_when_it_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_process, "DYING_S", 0.0)
    assert killed(monkeypatch, 1_000_000, Stuck) == ["kill", "sweep"]


def test_a_process_that_does_not_read_is_stopped_while_a_message_to_it_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_process, "STOP_GRACE_S", 0.1)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    child = Child("unread_child")
    sent: list[bool] = []
    sender = threading.Thread(target=lambda: sent.append(child.send({"text": "x" * (1 << 20)})))
    sender.start()
    while not child._sending.locked():
        time.sleep(0.01)
    child.stop()
    sender.join(30.0)
    assert sent == [False] and child.process.returncode == -signal.SIGKILL


def test_what_a_child_leaves_that_is_killed_as_it_ends_is_swept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swept: list[bool] = []
    monkeypatch.setattr(child_process, "STOP_GRACE_S", 60.0)  # it ends by itself, however late
    monkeypatch.setattr(child_process.scratch, "sweep", lambda: swept.append(True))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    for signalled in (False, True):
        child = Child("ending_child", ["killed"] if signalled else [])
        child.stop()
        assert swept == [True] * signalled and child.process.returncode is not None
