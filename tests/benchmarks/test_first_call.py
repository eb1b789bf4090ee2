"""The benchmark of first calls: which cells there are, where they run, and what their processes' words come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import first_call
from benchmarks.first_call import Cell, cells, facts_of, pairs, said, steps_of, summarise
from benchmarks.first_call_models import MAKERS, make


def test_the_parts_of_the_cells_are_all_cells_and_the_longest_come_first() -> None:
    every = cells()
    assert {cell.model for cell in every} == set(MAKERS) and len(every) == 24
    assert [cell.budget_s for cell in every] == sorted((c.budget_s for c in every), reverse=True)
    parts = [cell for number in range(1, 6) for cell in cells(f"{number}/5")]
    assert sorted(parts, key=str) == sorted(every, key=str)
    with pytest.raises(ValueError, match="6/5"):
        cells("6/5")


def test_each_cell_has_two_cores_of_its_own_and_threads_of_one_core_only_in_need() -> None:
    def sibling(core: int) -> int:
        return core - core % 2

    assert pairs(range(8), 2, sibling) == ["0,2", "4,6"]
    taken = ",".join(pairs(range(8), 4, sibling)).split(",")
    assert sorted(taken) == sorted(map(str, range(8)))
    with pytest.raises(ValueError, match="10 cores"):
        pairs(range(8), 5, sibling)


def process(seconds: float, **more: Any) -> dict[str, Any]:
    nothing = {"searches": 0, "measurements": 0, "left_over": [], "graphs": []}
    return {"first_call_s": seconds, **nothing, **more}


def test_a_first_call_is_compared_with_inductors_of_the_same_kind() -> None:
    steps = {"first candidate": [7.0], "judgement": [5.0, 9.0], "acceptance": [6.0]}
    line = "3 of 5 tasks were searched to the end; 2 go on for up to 8 s"
    ours = [process(45.0, steps=steps), process(4.5), process(5.0, searches=1, left_over=[line])]
    found = facts_of(Cell("block", 30.0), [process(12.0), process(4.0)], ours)
    assert found["cold_over_budget_s"] == pytest.approx(3.0) and found["cold_within"]
    assert found["warm_over_inductor_s"] == pytest.approx([0.5])
    assert found["going_on_over_budget_s"] == pytest.approx([-29.0])
    assert (found["first_candidate_s"], found["verify_and_accept_s"]) == (7.0, 11.0)
    assert found["searched_again"] == [False, False] and found["went_on"] == [[], [line]]
    anew = process(7.0, graphs=["forward graph a: 3 miss, in 5 ms"])
    slow = [process(52.5, steps={}), process(4.0, searches=1), anew]
    other = facts_of(Cell("vision", 30.0), [process(12.0), process(4.0)], slow)
    assert not other["cold_within"] and other["searched_again"] == [True, False]
    summary = summarise({"block 30 s": found, "vision 30 s": other})
    assert summary["cold_beyond"] == ["vision 30 s"] and summary["searched_again"] == 1
    assert summary["cold_over_budget_s"]["30"]["worst"] == pytest.approx(10.5)
    assert summary["first_candidate_s"] == {"median": 7.0, "worst": 7.0, "of": 1}
    assert (other["warm_over_inductor_s"], other["anew_over_inductor_s"]) == ([], [3.0])
    assert summary["warm_processes"] == summary["anew_over_inductor_s"]["of"] == 1
    assert summary["went_on"] == 1 and summary["cold_over_budget_s"]["10"] is None


def test_what_the_backend_logs_is_understood() -> None:
    from cuda_agent_backend.hook.search import left_over

    line = left_over(5, 2, 8.0, 30.0)
    heard = said(["searching kernels for 2 regions, at most 8 s", line, "forward graph a: in 3 ms"])
    assert heard["searches"] == 1 and heard["left_over"] == [line] and len(heard["graphs"]) == 1


def test_steps_are_read_from_what_a_search_notes(tmp_path: Path) -> None:
    from cuda_agent_backend.search.durations import JUDGEMENT, Durations

    assert steps_of(tmp_path) == {}
    Durations(tmp_path / "kernels").note(JUDGEMENT, 4.0)
    assert steps_of(tmp_path) == {JUDGEMENT: [4.0]}


def test_each_model_runs_on_its_inputs() -> None:
    for name in MAKERS:
        model, inputs = make(name)
        with torch.no_grad():
            assert bool(model(*inputs).isfinite().all())


def test_a_cell_that_the_limit_leaves_no_time_for_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def cell(_: Any, cell: Cell, cores: str) -> dict[str, Any]:
        ran.append(cell.name)
        ours = [process(45.0, steps={}), process(4.0), process(4.0)]
        return facts_of(cell, [process(12.0), process(4.0)], ours) | {"cores": cores}

    monkeypatch.setattr(first_call.Runner, "cell", cell)
    monkeypatch.setattr(first_call, "prepare", lambda _: None)
    results = first_call.Results("first-call", summarise, tmp_path)
    wanted = [Cell("block", 120.0), Cell("block", 10.0)]
    found = first_call.run_all(wanted, results, keep=False, jobs=1, limit_s=150.0)
    assert ran == ["block 10 s"] and found["cells"] == 1
    assert list(json.loads(results.path.read_text())["samples"]) == ["block 10 s"]
    first_call.run_all(wanted, results, keep=False, jobs=1, limit_s=1e6)
    assert ran == ["block 10 s", "block 120 s"]
