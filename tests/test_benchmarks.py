"""Benchmarks: result files go on where they were cut, summaries say what the samples say, and differences are seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import agent_service, matrix, models, overhead, regions, store
from benchmarks.cases import SIZES, cases
from benchmarks.equality import check


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> store.Results:
    monkeypatch.setattr(store, "machine", lambda: {"cpu": "one", "load": [0.0]})
    monkeypatch.setattr(store, "commit", lambda: "abc")
    return store.Results("some", lambda samples: {"cases": len(samples)}, tmp_path)


def collect(
    results: store.Results, *names: str, keep: bool = False, limit_s: float = 1e9
) -> list[str]:
    ran: list[str] = []

    def run(name: str) -> store.Facts:
        ran.append(name)
        return {"value": 1.0}

    results.collect(names, run, keep=keep, limit_s=limit_s)
    return ran


def test_a_result_file_has_all_that_makes_it_comparable(results: store.Results) -> None:
    collect(results, "a")
    found = json.loads(results.path.read_text())
    assert found.keys() == {"machine", "versions", "commit", "samples", "summary"}
    assert found["samples"]["a"]["commit"] == "abc"
    assert "torch" in found["versions"]


def test_cases_that_are_done_are_not_run_again(results: store.Results) -> None:
    assert collect(results, "a") == ["a"]
    assert collect(results, "a", "b") == ["b"]


def test_cases_of_another_commit_are_run_again_unless_kept(
    results: store.Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect(results, "a")
    monkeypatch.setattr(store, "commit", lambda: "def")
    assert collect(results, "a", keep=True) == []
    assert collect(results, "a") == ["a"]


def test_cases_of_another_machine_never_count(
    results: store.Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect(results, "a")
    monkeypatch.setattr(store, "machine", lambda: {"cpu": "two", "load": [0.0]})
    assert collect(results, "a", keep=True) == ["a"]


def test_the_load_does_not_make_another_machine(
    results: store.Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect(results, "a")
    monkeypatch.setattr(store, "machine", lambda: {"cpu": "one", "load": [9.0]})
    assert collect(results, "a") == []


LENT = {
    "gpu": "NVIDIA H200",
    "gpus": 1,
    "cpu": "one",
    "cores": 16,
    "system": "Linux 6.1",
    "driver": "x",
}


@pytest.mark.parametrize(
    ("facts", "same"),
    [
        ({"system": "Linux 6.8", "driver": "y", "load": [2.0]}, True),
        ({"gpu": "NVIDIA H100 80GB HBM3"}, False),
        ({"gpus": 2}, False),
        ({"cpu": "two"}, False),
        ({"cores": 8}, False),
        ({"torch": "2.13.0"}, False),
    ],
)
def test_machines_of_one_kind_are_the_same_machine(facts: store.Facts, same: bool) -> None:
    assert store.same_machine(LENT, {**LENT, **facts}) is same
    older = {name: value for name, value in LENT.items() if name != "gpus"}
    assert store.same_machine(older, {**LENT, "gpus": 8})


def test_cases_of_another_machine_of_the_kind_count_and_say_what_was_different_there(
    results: store.Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on(system: str, *names: str) -> dict[str, Any]:
        here = {**LENT, "system": system, "load": [1.0]}
        monkeypatch.setattr(store, "machine", lambda: here)
        assert collect(results, *names) == [names[-1]]
        found = json.loads(results.path.read_text())
        assert found["machine"]["system"] == system
        return {name: facts.get("machine") for name, facts in found["samples"].items()}

    assert on("Linux 6.1", "a") == {"a": None}
    assert on("Linux 6.8", "a", "b") == {"a": {"system": "Linux 6.1"}, "b": None}
    back = on("Linux 6.1", "a", "b", "c")
    assert back == {"a": None, "b": {"system": "Linux 6.8"}, "c": None}


def test_a_benchmark_stops_when_its_time_is_up(results: store.Results) -> None:
    assert collect(results, "a", "b", limit_s=-1.0) == []


def test_a_case_that_fails_leaves_the_others_written(results: store.Results) -> None:
    def run(name: str) -> store.Facts:
        if name == "b":
            raise RuntimeError("broken")
        return {}

    with pytest.raises(RuntimeError):
        results.collect("ab", run, keep=False, limit_s=1e9)
    assert json.loads(results.path.read_text())["samples"].keys() == {"a"}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_cases_have_about_the_size_that_they_are_named_after(target: str) -> None:
    for case in cases(target):
        numbers = torch.Size(case.shapes[0]).numel() * 4
        assert 0.9 < numbers / SIZES[target][case.size] <= 1.0, case.name


def test_there_are_twelve_families_at_three_sizes() -> None:
    assert len(cases("cpu")) == 36
    assert len({case.name for case in cases("cuda")}) == 48


def test_the_summary_of_regions_counts_what_wins() -> None:
    won = {"wins": True, "speedup": 2.0, "room": 3.0, "turns": 5, "reason": "promoted"}
    lost = {"wins": False, "speedup": 0.5, "room": 1.2, "turns": 5, "reason": "nothing wins"}
    limit = {"wins": False, "room": 1.01, "turns": 2, "reason": "at the limit: 1.01x"}
    slow = {**limit, "turns": 4}
    none: dict[str, Any] = {"wins": False, "reason": "no region is offered"}
    found = regions.summarise({"a": won, "b": lost, "c": limit, "d": slow, "e": none})
    assert found["cases"] == 5
    assert found["wins"] == 1
    assert found["geomean"] == pytest.approx(2.0 ** (1 / 5))
    assert (found["with_room"], found["wins_with_room"]) == (2, 1)
    assert (found["without_room"], found["at_the_limit_within_3_turns"]) == (2, 1)
    assert found["failed"] == ["e"]


def test_the_summary_of_models_names_the_slowest() -> None:
    fast = {"speedup": 1.3, "low": 1.2, "accurate": True, "quiet": True}
    slow = {"speedup": 0.97, "low": 0.9, "accurate": True, "quiet": False}
    broken = {"failed": "out of memory"}
    found = models.summarise({"fast": fast, "slow": slow, "broken": broken})
    assert (found["slowest_model"], found["below_0.98"]) == ("slow", ["slow"])
    assert (found["wins"], found["above_1.05"], found["noisy"]) == (1, ["fast"], ["slow"])
    assert (found["models"], found["failed"]) == (2, ["broken"])


@pytest.mark.parametrize("module", [matrix, models, overhead, regions])
def test_a_summary_of_nothing_is_no_error(module: Any) -> None:
    assert module.summarise({})


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.norm(x))
        return out


def changed(change: str) -> Any:
    def compile_model(model: nn.Module) -> Any:
        def call(x: Tensor) -> Tensor:
            y: Tensor = model(x)
            if change == "output":
                return y + 1e-4
            if change == "stride":
                return y.t().contiguous().t()
            if change == "gradient":
                return y + 1e-3 * (x[:, :4] - x[:, :4].detach())
            if change == "buffer":
                model.norm.running_mean.data.add_(1e-3)  # type: ignore[operator, union-attr]
            return y

        return call

    return compile_model


def test_a_model_is_equal_to_itself() -> None:
    assert check(Normed(), [torch.randn(64, 8)], changed("nothing"), train=True).equal


@pytest.mark.parametrize("change", ["output", "stride", "gradient", "buffer"])
def test_a_difference_is_seen_and_named(change: str) -> None:
    torch.manual_seed(0)
    found = check(Normed(), [torch.randn(64, 8)], changed(change), train=True)
    assert not found.equal
    assert change in found.reason


def test_what_inductor_does_not_do_better_is_marked() -> None:
    torch.manual_seed(0)
    wrong = changed("output")
    found = check(Normed(), [torch.randn(64, 8)], wrong, train=True, inductor=wrong)
    assert found.equal
    assert "output 0" in found.as_inductor


def test_the_modelled_policy_looks_makes_times_and_submits_the_fastest() -> None:
    def answer(name: str, **fields: Any) -> dict[str, Any]:
        return {"role": "tool", "name": name, "content": json.dumps({"ok": True, **fields})}

    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    said = []
    answers = [
        [answer("look", sketch="rows", schedules=[[{"rows": n}] for n in range(5)])],
        [answer("sketch", candidate="a"), answer("sketch", candidate="b")],
        [answer("profile", speedup={"median": 1.2}), answer("profile", speedup={"median": 1.5})],
        [answer("submit", ok=False)],
    ]
    for given in [*answers, []]:
        turn = agent_service.next_step(messages)
        said.append([(call.name, json.loads(call.arguments)) for call in turn.calls])
        messages += [turn.to_message(), *given]
    assert [[name for name, _ in calls] for calls in said] == [
        ["look"],
        ["sketch"] * agent_service.KERNELS,
        ["profile"] * 2,
        ["submit"],
        ["submit"],
    ]
    assert said[3] == [("submit", {"candidate": "b"})]
    assert said[4] == [("submit", {"reason": "that was all"})]


@pytest.mark.parametrize(("busy", "reached"), [(0.79, False), (0.81, True)])
def test_the_service_is_busy_above_four_fifths(busy: float, reached: bool) -> None:
    facts = {
        "busy": busy,
        "device_busy": 0.7,
        "episodes": 64,
        "beside": "",
        "ended_after_seconds": [1.0],
    }
    assert agent_service.summarise({"cpu-64": facts})["cpu-64"]["reached"] is reached
