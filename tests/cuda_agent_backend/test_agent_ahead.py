"""Candidates are compiled before they are asked for, beside what is waited for, and none twice."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sketch_kit import sample
from test_tools import Built, Scripted

from cuda_agent_backend.agent import loop
from cuda_agent_backend.agent.loop import Budget, EpisodeResult, run_episode
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.policies.search.prefetch import MOST, PrefetchingBench, proposals
from cuda_agent_backend.agent.protocol import ToolCall
from cuda_agent_backend.agent.tools.toolbox import Toolbox
from cuda_agent_backend.search.episode import run_agent
from cuda_agent_backend.search.setup import Setup
from sandbox.failures import TimedOut
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task
from sandbox.verdict import Baselines

TASK = replace(sample(lambda x: x.exp().sum(1), torch.empty(64, 4096)).task, target="cuda")


class Compiles(Scripted):
    """Notes what is compiled. Whatever waits for the device waits until so many were begun."""

    def __init__(self, wait_for: int = 0) -> None:
        super().__init__()
        self.wait_for, self.changed = wait_for, threading.Condition()
        self.seen: list[str] = []

    def compile(self, candidate: Candidate) -> Any:
        with self.changed:
            self.seen.append(candidate.digest)
            self.changed.notify_all()
        return Built()

    def baselines(self, task: Task) -> Baselines:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.seen) >= self.wait_for, 30)
        return super().baselines(task)


@pytest.fixture
def candidates() -> list[Candidate]:
    found = list({c.digest: c for c in proposals(TASK)}.values())
    assert len(found) > MOST + 2
    return found


def compiled(ahead: PrefetchingBench, bench: Compiles, number: int) -> list[str]:
    """What was compiled once as many have begun."""
    with bench.changed:
        assert bench.changed.wait_for(lambda: len(bench.seen) >= number, 30)
    return bench.seen


def test_the_first_are_compiled_while_the_baselines_are_timed(candidates: list[Candidate]) -> None:
    bench = Compiles(wait_for=MOST)
    with PrefetchingBench(bench, candidates, 2) as ahead:
        assert isinstance(ahead.baselines(TASK), Baselines)
        for candidate in candidates[:MOST]:
            assert isinstance(ahead.compile(candidate), Built)
    assert Counter(bench.seen) == Counter(c.digest for c in candidates[:MOST])


def test_the_next_are_compiled_as_those_before_are_asked_for(candidates: list[Candidate]) -> None:
    bench = Compiles()
    with PrefetchingBench(bench, candidates, 2) as ahead:
        ahead.baselines(TASK)
        for candidate in candidates[:2]:
            ahead.compile(candidate)
        ahead.profile(TASK, candidates[0], worth=1.0)
        ahead.profile(TASK, candidates[1], worth=1.0)
        compiled(ahead, bench, MOST + 2)
    assert set(bench.seen) == {c.digest for c in candidates[: MOST + 2]}


def test_whoever_asks_for_something_else_is_served_and_nothing_more_is_guessed(
    candidates: list[Candidate],
) -> None:
    bench = Compiles()
    with PrefetchingBench(bench, candidates, 2) as ahead:
        ahead.baselines(TASK)
        assert isinstance(ahead.compile(candidates[-1]), Built)
        ahead.profile(TASK, candidates[-1], worth=1.0)
    assert candidates[-1].digest in bench.seen
    assert set(bench.seen) <= {c.digest for c in (*candidates[:MOST], candidates[-1])}


def test_two_schedules_of_the_same_source_are_compiled_once(candidates: list[Candidate]) -> None:
    bench = Compiles()
    with PrefetchingBench(bench, [candidates[0], candidates[0], candidates[1]], 2) as ahead:
        ahead.baselines(TASK)
        for candidate in candidates[:2]:
            ahead.compile(candidate)
    assert Counter(bench.seen) == Counter(c.digest for c in candidates[:2])


def test_what_fails_is_told_to_who_asks(candidates: list[Candidate]) -> None:
    class Broken(Compiles):
        def compile(self, candidate: Candidate) -> Any:
            raise OSError("no space left")

    with PrefetchingBench(Broken(), candidates, 2) as ahead:
        ahead.baselines(TASK)
        with pytest.raises(OSError, match="no space"):
            ahead.compile(candidates[0])


@pytest.mark.parametrize("fails", [True, False])
def test_what_failed_and_is_asked_for_again_is_compiled_again(
    fails: bool, candidates: list[Candidate]
) -> None:
    class Busy(Compiles):
        def compile(self, candidate: Candidate) -> Any:
            found = super().compile(candidate)
            return TimedOut("compilation", 120.0) if fails else found

    bench = Busy()
    with PrefetchingBench(bench, candidates, 2) as ahead:
        ahead.baselines(TASK)
        for _ in range(3):
            assert isinstance(ahead.compile(candidates[0]), TimedOut) is fails
    assert bench.seen.count(candidates[0].digest) == (3 if fails else 1)


def test_all_else_is_the_benchs() -> None:
    bench = Compiles()
    with PrefetchingBench(bench, [], 2) as ahead:
        assert ahead.inspect is not None and ahead.judged == "wins"
        with pytest.raises(AttributeError):
            _ = ahead.nothing_like_it


def test_a_search_finds_all_that_it_asks_for_compiled_and_nothing_is_compiled_twice() -> None:
    bench = Compiles(wait_for=2)
    with PrefetchingBench(bench, proposals(TASK), 2) as ahead:
        tools = Toolbox(TASK, ahead, compile_jobs=2)
        found = run_episode(SearchPolicy(), tools, Budget(1e9))
        assert ahead._asked <= ahead._begun.keys()
    assert found.best is not None and len(tools.candidates) > 1
    assert set(Counter(bench.seen).values()) == {1}
    assert len(bench.seen) <= len(tools.candidates) + MOST


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_a_search_compiles_ahead_where_that_disturbs_no_timing(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked for: whatever is compiled was a guess."""
    bench = Compiles(wait_for=2 if target == "cuda" else 0)
    monkeypatch.setattr(Compiles, "waited_s", 0.0, raising=False)

    def look(policy: Any, tools: Toolbox, *_: Any, **__: Any) -> EpisodeResult:
        tools.run([ToolCall.of("1", "look")])
        return EpisodeResult(None, "seen")

    monkeypatch.setattr(loop, "run_episode", look)
    setup = Setup(tmp_path / "cache", tmp_path / "native", {}, memory=False)
    found = run_agent(replace(TASK, target=target), bench, setup, 1.0, None, lambda _: None)
    assert found.reason == "seen"
    assert bool(bench.seen) is (target == "cuda")
