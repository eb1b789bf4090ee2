"""Inductor's header is made once, while what measures a graph imports torch, and not where others take turns."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sketch_kit import sample

from cuda_agent_backend.search import graph_measurement
from cuda_agent_backend.search.graph_measurement import GraphMeasurer
from cuda_agent_backend.search.setup import Setup
from sandbox.workers import inductor_store

WAITS = threading.Event()


class Child:
    """What measures, which only says when it was started and asked."""

    def __init__(self, steps: list[str]) -> None:
        steps.append("started")
        self.steps, self.alive = steps, True

    def send(self, message: Any) -> None:
        self.steps.append("asked")

    def receive(self, timeout_s: float) -> dict[str, Any]:
        return {"event": "failed", "reason": "a test"}

    def kill(self) -> None:
        self.alive = False


def steps_of(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    target: str = "cpu",
    lock: Path | None = None,
    over: bool = False,
) -> list[str]:
    """In which order a measurement comes to be."""
    steps: list[str] = []

    def make() -> None:
        steps.append("making")
        if over:
            WAITS.wait()
        steps.append("made")

    monkeypatch.setattr(graph_measurement, "Child", lambda *_, **__: Child(steps))
    monkeypatch.setattr(inductor_store, "make_header", make)
    task = sample(torch.exp, torch.ones(8)).task
    request = {
        "id": 1,
        "name": "graph",
        "graph": replace(task, target=target).to_json(),
        "kernels": [],
        "inputs": "",
        "eager_layouts": False,
        "static_inputs": None,
        "origins": [],
        "budget_s": 60.0,
    }
    setup = Setup(folder / "kernels", folder / "native", {}, device_lock=lock)
    over_now = lambda: over and "making" in steps  # noqa: E731
    GraphMeasurer(lambda _: None, over_now).measure(request, setup)
    return steps


def test_it_is_made_between_the_start_of_what_measures_and_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert steps_of(monkeypatch, tmp_path) == ["started", "making", "made", "asked"]


def test_it_is_not_made_for_a_device_nor_beside_processes_that_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert steps_of(monkeypatch, tmp_path, target="cuda") == ["started", "asked"]
    assert steps_of(monkeypatch, tmp_path, lock=tmp_path / "lock") == ["started", "asked"]


def test_nobody_waits_for_it_once_the_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = steps_of(monkeypatch, tmp_path, over=True)
    assert found == ["started", "making", "asked"]
    WAITS.set()
