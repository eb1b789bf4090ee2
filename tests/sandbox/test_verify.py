"""Calls through the operator while a candidate is verified."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sandbox.accuracy.report import AccuracyReport, OutputReport
from sandbox.judge import verify
from sandbox.judge.input_sets import Source
from sandbox.judge.verify import run_through_operator
from sandbox.verdict import Correct, Wrong
from sandbox.workers.supervisor import CallTime, Crashed

INPUTS: Any = SimpleNamespace(number=3, source=SimpleNamespace(distribution="normal"))


def session(fetched: list[Any], target: str = "cuda") -> Any:
    """One whose worker's outputs are these, one after the other."""
    return SimpleNamespace(
        task=SimpleNamespace(target=target),
        share=lambda worker, inputs: None,
        timeouts=SimpleNamespace(run=1.0),
        fetch=lambda worker: fetched.pop(0),
    )


def worker(results: list[Any]) -> Any:
    """One whose calls end so; `did` is what it was told."""
    did: list[str] = []

    def run(slot: int, number: int, timeout: float) -> Any:
        did.append("run")
        return results.pop(0)

    return SimpleNamespace(run=run, drop=lambda: did.append("drop"), did=did)


def calls(session: Any, worker: Any) -> list[Any]:
    return list(run_through_operator(session, worker, INPUTS))


def test_outputs_of_both_calls_are_there_to_be_compared() -> None:
    first, second = [torch.zeros(2)], [torch.ones(2)]
    found = calls(session([first, second]), worker([CallTime(0.0), CallTime(0.0)]))
    assert found == [first, second]


def test_no_call_runs_beside_the_outputs_of_the_one_before() -> None:
    asked = worker([CallTime(0.0), CallTime(0.0)])
    assert len(calls(session([[torch.zeros(2)], [torch.ones(2)]]), asked)) == 2
    assert asked.did == ["run", "drop", "run", "drop"]


def test_on_cpu_where_nothing_overwrites_outputs_the_next_call_gets_other_memory() -> None:
    asked = worker([CallTime(0.0), CallTime(0.0)])
    assert len(calls(session([[torch.zeros(2)], [torch.ones(2)]], "cpu"), asked)) == 2
    assert asked.did == ["run", "run"]


def test_what_goes_wrong_in_the_second_call_is_the_outcome() -> None:
    first, crashed = [torch.zeros(2)], Crashed("run", "gone")
    good = CallTime(0.0)
    assert calls(session([first]), worker([good, crashed])) == [first, crashed]
    assert calls(session([first, crashed]), worker([good, good])) == [first, crashed]
    found = calls(session([first, "2 outputs"]), worker([good, good]))
    assert found == [first, Wrong("normal inputs", "2 outputs")]


class Draws:
    """A session whose candidate is right, or not from some draw on; `did` is what was done in which turn."""

    def __init__(self, frugal: bool, wrong_from: int = 99) -> None:
        self.frugal, self.wrong_from = frugal, wrong_from
        self.did: list[str] = []
        self.timeouts = SimpleNamespace(go_on=lambda: None)

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.did.append("begin")
        yield
        self.did.append("end")

    def shed(self, worker: Any) -> None:
        self.did.append("shed")

    def release(self) -> None:
        self.did.append("release")

    def check(self, *given: Any) -> AccuracyReport:
        self.did.append("check")
        right = self.did.count("check") < self.wrong_from
        return AccuracyReport((OutputReport(0, right, "" if right else "off"),))


@pytest.mark.parametrize(("wrong_from", "parts"), [(99, 3), (2, 2)])
def test_each_part_of_a_check_has_a_turn_and_a_large_one_leaves_nothing_in_its_worker(
    wrong_from: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for frugal in (True, False):
        made: Any = Draws(frugal, wrong_from)
        monkeypatch.setattr(verify, "_check_group", made.check)
        monkeypatch.setattr(verify, "_plan", lambda *_: [[Source("normal", 1)]] * 3)
        found = verify.check_candidate(made, None, verify.QUICK, (), made.turn).outcome  # type: ignore[arg-type]
        assert isinstance(found, Correct) == (wrong_from > 3)
        turns = ["begin", "check", "end"] * parts
        assert made.did == (["shed", *turns, "shed", "release"] if frugal else turns)
