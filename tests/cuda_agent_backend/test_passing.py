"""A failure that may pass is tried again: at once, then after a while, and never is it the last word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import splice_kit as kit
import torch

from cuda_agent_backend.runtime import child_process
from cuda_agent_backend.search import client
from cuda_agent_backend.search.client import SearchProcess
from cuda_agent_backend.search.durations import Durations
from cuda_agent_backend.search.passing_failures import WatchedJudge, met_before
from kernel_cache import KernelCache
from sandbox.failures import CompileFailed, Crashed


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_task_whose_searches_were_cut_off_waits_ever_longer_and_one_success_ends_that(
    tmp_path: Path,
) -> None:
    clock = Clock()
    durations = Durations(tmp_path / "kernels", clock)
    durations.note_failures(["a"])
    assert durations.waiting(["a", "b"]) == {}, "after one failure it is tried again at once"
    durations.note_failures(["a"])
    assert durations.waiting(["a", "b"]) == {"a": 60.0}
    clock.now += 60.0
    durations.note_failures(["a"])
    assert durations.waiting(["a"]) == {"a": 240.0}
    clock.now -= 50000.0
    assert durations.waiting(["a"]) == {}, "a clock that was set back"
    clock.now += 50000.0
    durations.note_failures([], ["a"])
    assert durations.waiting(["a"]) == {}


class Dying:
    """A child that is dead as soon as somebody looks."""

    made = 0
    owner = 0
    alive = False

    def __init__(self, *_: Any) -> None:
        Dying.made += 1
        self.owner = __import__("os").getpid()

    def send(self, _: Any) -> bool:
        return False

    def receive(self, _: float) -> None:
        return None

    def kill(self) -> None: ...

    def stop(self) -> None: ...

    process = type("Ended", (), {"returncode": -9})


def test_a_search_process_that_keeps_dying_is_started_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(client, "Child", Dying)
    monkeypatch.setattr(client.time, "monotonic", clock)
    Dying.made, process = 0, SearchProcess()
    told = [process.ask({}, 10.0, lambda _: None)["reason"] for _ in range(6)]
    assert told[0] == "the search process died (-9)"
    assert "again later" in told[-1] and Dying.made == client.MAX_DEATHS
    clock.now += 3600.0
    assert process.ask({}, 10.0, lambda _: None)["reason"] == told[0]


class Judge:
    """Answers what it is told to."""

    answers: list[Any]
    waited_s = 3.0

    def compile(self, candidate: Any) -> Any:
        return self.answers.pop(0)


class Named:
    digest = "d"


def test_what_comes_to_something_in_the_end_is_not_a_passing_failure_any_more() -> None:
    judge = Judge()
    judge.answers = [Crashed("run", "SIGKILL"), CompileFailed("error: no"), CompileFailed("", True)]
    watched = WatchedJudge(judge)
    watched.compile(Named())
    assert watched.passing and watched.waited_s == 3.0
    watched.compile(Named())
    assert watched.passing == ""
    watched.compile(Named())
    assert watched.passing


def test_an_episode_that_goes_on_knows_what_passing_failures_it_met_before() -> None:
    killed = {"role": "tool", "content": '{"reason": "crashed in run: SIGKILL"}'}
    refused = {"role": "tool", "content": '{"reason": "crashed in run: SIGSEGV"}'}
    assert met_before([refused, killed]) and not met_before([refused])


class Killed:
    """A searcher whose process is killed once, and which finds a kernel after that."""

    def __init__(self, cache: KernelCache, folder: Path) -> None:
        self.cache, self.folder, self.times = cache, folder, 0

    def search(self, tasks: Any, *_: Any) -> dict[str, Any]:
        self.times += 1
        if self.times == 1:
            return {task.digest: {"reason": "killed", "passing": True} for task in tasks}
        for task in tasks:
            kit.promote(self.cache, task, kit.elementwise(task, "std::exp(a)"), self.folder)
        return {task.digest: {"reason": "", "promoted": True} for task in tasks}

    def accept(self, *_: Any) -> str:
        return "not asked"


def test_a_search_that_was_killed_once_is_done_again_by_the_next_compilation(
    tmp_path: Path,
) -> None:
    options = kit.options_in(tmp_path, search="search")
    searcher = Killed(kit.cache_of(options), tmp_path / "made")
    x = torch.randn(64, 512)
    states = []
    for _ in range(2):
        torch._dynamo.reset()
        backend = kit.backend_for(options, searcher=searcher)
        with torch.no_grad():
            found = torch.compile(lambda x: torch.exp(x), backend=backend)(x)
        torch.testing.assert_close(found, torch.exp(x))
        states.append(backend.passes[0].uuid())
    assert searcher.times == 2, "torch had the code without kernels in its cache"
    assert len(set(states)) == 2


def test_a_child_that_is_killed_has_what_it_left_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[bool] = []
    monkeypatch.setattr(child_process.scratch, "sweep", lambda: swept.append(True))
    child = child_process.Child("fake_service_that_is_not_there")
    child.process.wait()
    child.kill()
    assert swept == [True]
