"""Calls through the operator while a candidate is verified."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from sandbox.judge.verify import run_through_operator
from sandbox.verdict import Wrong
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
