"""A judge starts beside the imports of the search process, once, and has its first task's baselines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sketch_kit import sample

from cuda_agent_backend.search import judges
from cuda_agent_backend.search.judges import FIRST, Judges
from cuda_agent_backend.search.setup import Setup
from sandbox.task.task import Task


class Judge:
    """Notes what it is asked for."""

    waited_s = 0.0

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.ended = False

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.asked.append(name)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Judge]:
    """All judges that were made, in order."""
    found: list[Judge] = []

    @contextmanager
    def make(*_: object) -> Iterator[Judge]:
        found.append(Judge())
        yield found[-1]
        found[-1].ended = True

    monkeypatch.setattr(judges, "make_judge", make)
    return found


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path, tmp_path, {"torch": {}, "threads": 1})


def task() -> Task:
    return sample(lambda x: torch.softmax(x, -1) * 2, torch.randn(64, 256)).task


def test_a_judge_that_was_started_ahead_is_the_one_that_is_used(
    made: list[Judge], setup: Setup
) -> None:
    source = Judges()
    source.start("cpu", setup)
    assert source.get(task(), setup) is source.get(task(), setup)
    assert len(made) == 1


def test_a_judge_that_is_to_be_ready_before_its_task_is_waited_for(
    made: list[Judge], setup: Setup
) -> None:
    source = Judges()
    source.prepare("cpu", setup)
    assert made[0].asked == ["ready"]
    assert source.get(task(), setup) is made[0]
    source.close()
    source.prepare("cpu", setup)
    assert len(made) == 1, "what goes wrong comes up when it is used"


def test_first_candidates_are_compiled_before_baselines_are_waited_for(
    made: list[Judge], setup: Setup
) -> None:
    source = Judges()
    source.get(task(), setup)
    source.get(task(), setup)
    assert made[0].asked == ["open", *["compile"] * FIRST, "baselines"]


def test_a_judge_that_is_still_starting_ends_with_the_process(
    made: list[Judge], setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, make = threading.Event(), judges.make_judge

    def slow(*given: Any) -> Any:
        goes_on.wait(10)
        return make(*given)

    monkeypatch.setattr(judges, "make_judge", slow)
    source = Judges()
    source.start("cpu", setup)
    goes_on.set()
    source.close()
    assert all(judge.ended for judge in made)
    with pytest.raises(RuntimeError, match="ended"):
        source.get(task(), setup)


class Timer:
    """One whose time is up when its work is called."""

    def __init__(self, seconds: float, work: Any, arguments: list[Any]) -> None:
        self.work = lambda: work(*arguments)
        self.cancelled = self.daemon = False

    def start(self) -> None:
        timers.append(self)

    def cancel(self) -> None:
        self.cancelled = True


timers = list[Timer]()


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> list[Timer]:
    """Timers that were started."""
    timers.clear()
    monkeypatch.setattr(judges, "Timer", Timer)
    return timers


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_after_a_while_without_a_task_workers_on_a_gpu_end(
    target: str, made: list[Judge], setup: Setup, ticking: list[Timer]
) -> None:
    source = Judges()
    source.get(replace(task(), target=target), setup)
    source.rest()
    for timer in ticking:
        timer.work()
    assert ("close_contexts" in made[0].asked) == (target == "cuda")


def test_workers_do_not_end_under_a_task_that_came_meanwhile(
    made: list[Judge], setup: Setup, ticking: list[Timer]
) -> None:
    source = Judges()
    wanted = replace(task(), target="cuda")
    source.get(wanted, setup)
    source.rest()
    source.get(wanted, setup)
    (timer,) = ticking
    assert timer.cancelled
    timer.work()
    assert "close_contexts" not in made[0].asked
    source.rest()
    source.close()
    assert all(timer.cancelled for timer in ticking)
