"""What a killed process and its group leave behind is removed."""

from __future__ import annotations

import os
from typing import Any

import pytest

from cuda_agent_backend.runtime import child_process
from cuda_agent_backend.runtime.child_process import Child


class Gone:
    """A process that is dead."""

    pid, stdin = 4_000_000, None

    def wait(self) -> int:
        return -9


def killed(monkeypatch: pytest.MonkeyPatch, looks: int) -> list[str]:
    """What killing a child does whose group is there for so many looks more."""
    steps: list[str] = []

    def killpg(group: int, signal: int) -> None:
        assert group == Gone.pid
        steps.append("kill" if signal else "look")
        if steps.count("look") > looks:
            raise ProcessLookupError

    child: Any = Child.__new__(Child)
    child.process, child.own_group, child.owner = Gone(), True, os.getpid()
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
