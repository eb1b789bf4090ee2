"""Figures of tasks and groups, on made-up numbers."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cuda_agent_backend.bench import plots, report
from cuda_agent_backend.bench.figures import (
    BOTH,
    TaskFigures,
    geomean,
    grouped,
    is_faster,
    shares,
    speedup,
    summary,
    task_figures,
)
from cuda_agent_backend.bench.floor import floor_of, unique_bytes, weights
from cuda_agent_backend.bench.measurement import model_floor
from sandbox.timing.decision import Interval
from sandbox.timing.machine import Ceilings


def around(median: float, width: float = 0.01) -> Interval:
    return Interval(median, median - width, median + width, 40)


def task(
    name: str, eager: float = 3.0, inductor: float = 1.5, kernels: int = 1, **more: Any
) -> TaskFigures:
    over = {"eager": around(eager), "inductor": around(inductor)}
    known = {"group": "g", "status": "measured", "correct": True, "kernels": kernels, "regions": 2}
    return TaskFigures(name, **{**known, "over": over, "over_wall": over, **more})


def failed(name: str, status: str = "failed") -> TaskFigures:
    return TaskFigures(name, "g", status, reason="search: it broke")


def facts(**change: Any) -> dict[str, Any]:
    """A measured task: eager 4 s, Inductor 2 s, ours 1 s, in every round."""
    seconds = {"eager": 4.0, "inductor": 2.0, "inductor_again": 2.0, "cuda_agent": 1.0}
    samples = {name: [value] * 10 for name, value in seconds.items()}
    draws = [{"wrong": "", "as_inductor": False, "error_ratio": ratio} for ratio in (0.5, 1.25)]
    measured = {
        "draws": draws,
        "samples": {"device": samples, "wall": samples},
        "floor": {"bytes": 8, "operations": 0, "seconds": 0.5},
        "kernels": 1,
        "regions": 3,
    }
    return {
        "name": "a",
        "group": "g",
        "status": "measured",
        "search": {"seconds": 12.0},
        "measure": {**measured, **change},
    }


def low(found: Interval) -> float:
    return found.low


def test_bugs_of_the_code_generator_are_counted_and_shown() -> None:
    bugs = {"digest": "a bug of the code generator: KeyError: 1", "other": "another"}
    found = [task_figures(facts(codegen_bugs=bugs)), task_figures(facts())]
    assert [task.codegen_bugs for task in found] == [2, 0]
    assert report.summary_rows(summary(found), ())["bugs of the code generator"] == "2"


def test_a_measured_task_has_its_speedups_and_its_place_under_the_roofline() -> None:
    found = task_figures(facts())
    assert found.correct and not found.noisy and not found.fallback and not found.at_limit
    assert found.over["eager"].median == 4 and found.over["inductor"].median == 2
    assert set(found.over) == {"eager", "inductor"}
    assert (found.of_floor, found.room, found.error_ratio) == (0.5, 4.0, 1.25)
    assert (found.kernels, found.regions, found.search_seconds) == (1, 3, 12.0)


def test_max_autotune_is_a_baseline_of_its_own() -> None:
    samples = facts()["measure"]["samples"]["device"] | {"max_autotune": [3.0] * 10}
    found = task_figures(facts(samples={"device": samples, "wall": samples}))
    assert found.over["max_autotune"].median == 3
    assert "max_autotune" in summary([found])["faster"]
    assert speedup(found, BOTH) == 2, "the faster of eager and Inductor, whatever else was timed"


def test_one_wrong_draw_makes_a_task_wrong() -> None:
    draws = [
        {"wrong": "", "as_inductor": False, "error_ratio": 1.0},
        {"wrong": "output 0: RMS", "as_inductor": False, "error_ratio": 9.0},
    ]
    found = task_figures(facts(draws=draws))
    assert not found.correct and found.reason == "output 0: RMS" and found.error_ratio == 9
    assert speedup(found, "eager") is None and not is_faster(found, "eager", 0, low)


def test_a_ratio_that_json_could_not_hold_is_infinite_and_ends_no_run() -> None:
    given = facts()
    given["measure"]["draws"][0] |= {"error_ratio": None, "as_inductor": True}
    found = task_figures(given)
    assert found.correct and found.error_ratio == math.inf
    assert report.task_sentence(given).startswith("a: correct")
    assert summary([found])["worst_error_ratio"] == math.inf


def test_a_task_in_which_inductor_differs_from_itself_is_noisy() -> None:
    samples = facts()["measure"]["samples"]["device"] | {"inductor_again": [2.5] * 10}
    found = task_figures(facts(samples={"device": samples, "wall": samples}))
    assert found.correct and found.noisy and "differs from itself" in found.reason
    assert speedup(found, "inductor") is None and not is_faster(found, "inductor", 0, low)


@pytest.mark.parametrize(("ours", "noisy"), [(0.8, False), (0.99, True)])
def test_inductor_of_two_speeds_is_beaten_by_what_is_faster_than_its_best(
    ours: float, noisy: bool
) -> None:
    two = [1.5 if n % 2 else 1.0 for n in range(40)]
    times = {"eager": [4.0] * 40, "inductor": two, "inductor_again": [*two[1:], 1.0]}
    samples = {**times, "cuda_agent": [ours] * 40}
    found = task_figures(facts(samples={"device": samples, "wall": samples}))
    assert found.noisy is noisy and "too noisy" in found.reason
    if not noisy:
        assert found.over["inductor"].low == found.over["inductor"].median == 1 / ours
        assert is_faster(found, BOTH, 0.2, low)


def test_a_failed_task_is_incorrect_and_says_where_it_failed() -> None:
    found = task_figures(
        {"name": "a", "group": "g", "status": "timed_out", "phase": "search", "reason": "late"}
    )
    assert not found.correct and found.reason == "search: late"


def test_a_fallback_is_correct_as_fast_as_inductor_and_faster_than_nothing() -> None:
    found = task("a", eager=3.0, inductor=1.07, kernels=0)
    assert found.fallback and speedup(found, "inductor") == 1.0 and speedup(found, "eager") == 3.0
    assert speedup(found, BOTH) == 1.0
    assert not any(is_faster(found, name, 0.0, low) for name in ("eager", "inductor", BOTH))
    slow = task("b", eager=0.5, inductor=1.0, kernels=0)
    assert speedup(slow, BOTH) == 0.5


def test_shares_count_lower_bounds_among_all_tasks() -> None:
    tasks = [
        task("barely", inductor=1.055),
        task("clearly", inductor=1.3),
        task("twice", inductor=2.5),
        failed("broken"),
    ]
    assert shares(tasks, "inductor", low) == {"0": 0.75, "5": 0.5, "20": 0.5, "100": 0.25}
    assert shares(tasks, "inductor", lambda found: found.median)["5"] == 0.75
    assert shares([], "eager", low)["0"] == 0


def test_faster_than_both_needs_both() -> None:
    assert is_faster(task("a", eager=1.3, inductor=1.3), BOTH, 0.2, low)
    assert not is_faster(task("b", eager=1.1, inductor=9.0), BOTH, 0.2, low)


def test_a_geometric_mean_leaves_out_what_has_no_result() -> None:
    assert geomean([4.0, None, 1.0]) == 2.0
    assert geomean([None]) is None


def test_a_summary_has_every_figure() -> None:
    tasks = [
        task("won", eager=4.0, inductor=2.0, of_floor=0.8, room=3.0, error_ratio=1.5),
        task("limit", eager=1.0, inductor=1.0, kernels=0, of_floor=0.2, room=1.02, error_ratio=1.0),
        task("loud", noisy=True),
        task("wrong", correct=False),
        failed("broken"),
        failed("late", "timed_out"),
    ]
    found = summary(tasks)
    assert (found["tasks"], found["correct"], found["pass_rate"]) == (6, 3, 0.5)
    assert (found["failed"], found["timed_out"]) == (["broken"], ["late"])
    assert (found["wrong"], found["noisy"], found["at_limit"]) == (["wrong"], ["loud"], ["limit"])
    assert (found["fallbacks"], found["timed"]) == (1, 2)
    assert found["faster"][BOTH]["20"] == pytest.approx(1 / 6)
    assert found["geomean"]["eager"] == pytest.approx(2.0)
    assert found["geomean"]["inductor"] == pytest.approx(2**0.5)
    assert found["geomean"][BOTH] == pytest.approx(2**0.5)
    assert found["of_floor"] == pytest.approx(0.4)
    assert found["worst_error_ratio"] == 1.5
    assert found["kernels"] == 3
    json.dumps(found)


def test_nothing_has_a_summary_too() -> None:
    found = summary([])
    assert found["pass_rate"] == 0 and found["geomean"]["eager"] is None
    assert grouped([]) == {}


def test_groups_are_apart() -> None:
    found = grouped([task("a"), task("b", group="h"), failed("c")])
    assert {name: group["tasks"] for name, group in found.items()} == {"g": 2, "h": 1}


def test_tables_show_what_there_is() -> None:
    tasks = [task("a"), failed("c"), task("late", group="h", status="timed_out", correct=False)]
    assert report.task_line(failed("c"))[1:4] == ("failed", "-", "-")
    overall, groups = summary(tasks), grouped(tasks)
    found = report.summary_table({"overall": overall, "groups": groups})
    assert [column.header for column in found.columns] == ["", "all tasks", "g", "h"]
    assert report.summary_rows(overall, ["inductor"])["correct"] == "33%"
    assert report.status_of(task("n", noisy=True, kernels=0, room=1.0)) == (
        "noisy, fallback, at the limit"
    )


def test_the_floor_is_the_longer_of_memory_and_arithmetic() -> None:
    ceilings = {**Ceilings(100.0, 200.0, 10.0, cache_bytes=0).to_dict(), "call_s": 0.5}
    assert floor_of(200, 100, 10, ceilings).seconds == 2.5
    assert floor_of(200, 100, 30, ceilings).seconds == 3.5
    assert floor_of(200, 100, 0, ceilings).bytes == 300


def test_bytes_that_tensors_share_count_once() -> None:
    x = torch.zeros(4, 8)
    assert unique_bytes([x, x, x.view(32)]) == 128
    assert unique_bytes([x[0]]) == 32
    assert unique_bytes([torch.zeros(1, 8).expand(100, 8)]) == 32
    assert unique_bytes([x, torch.zeros(2, dtype=torch.int64)]) == 144


def test_tables_of_embeddings_are_not_read_whole() -> None:
    model = nn.Sequential(nn.Embedding(1000, 8), nn.Linear(8, 8), nn.BatchNorm1d(8))
    assert sum(t.numel() for t in weights(model)) == 64 + 8 + 4 * 8 + 1


def test_of_tables_the_rows_count_that_are_looked_up() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.bags = nn.Embedding(1000, 8), nn.EmbeddingBag(500, 4, mode="sum")

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.words(x) + self.words(input=x.flip(0)), self.bags(x)

    ceilings = {**Ceilings(1.0, 1.0, 1e9, cache_bytes=0).to_dict(), "call_s": 0.0}
    x = torch.tensor([[3, 5, 3], [7, 3, 999 % 500]])
    floor = model_floor(Words(), (x,), ceilings)
    rows, outputs = len(x.unique()), (2 * 3 * 8 + 2 * 4) * 4
    assert floor.bytes == rows * (8 + 4) * 4 + outputs + 6 * 8
    assert not any(module._forward_pre_hooks for module in Words().modules())


def test_the_floor_of_a_model_that_hands_its_parameters_on() -> None:
    class Latents(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.latents, self.mix = nn.Parameter(torch.zeros(4, 8)), nn.Linear(8, 16, bias=False)

        def forward(self, x: torch.Tensor) -> Any:
            return self.mix(self.latents) * x

    model = Latents()
    ceilings = {**Ceilings(4.0, 8.0, 1e9, cache_bytes=0).to_dict(), "call_s": 0.0}
    with torch.no_grad():
        floor = model_floor(model, (torch.zeros(16),), ceilings)
    assert floor.operations == 2 * 4 * 8 * 16
    assert floor.seconds == (4 * 8 + 8 * 16 + 16) / 2 + 4 * 16
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_plots_rest_on_results_only() -> None:
    tasks = [
        task("b", inductor=2.0, of_floor=0.5),
        task("a", inductor=1.1, kernels=0, of_floor=0.1),
        failed("c"),
        task("d", noisy=True),
    ]
    bars = plots.sorted_bars(tasks)
    assert [bar.name for bar in bars] == ["a", "b"]
    assert (bars[0].low, bars[0].median, bars[0].high) == (1.0, 1.0, 1.0)
    assert plots.cumulative(tasks, "inductor") == ([2.0, 1.0], [0.25, 0.5])
    assert plots.floors(tasks) == [("a", 0.1), ("b", 0.5)]


def test_plots_are_drawn_as_svg_and_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = plots.draw([task(str(number), of_floor=0.5) for number in range(50)], tmp_path / "p")
    assert isinstance(files, list) and len(files) == 6
    assert all(file.stat().st_size > 1000 for file in files)
    assert isinstance(plots.draw([failed("a")], tmp_path), plots.NoPlots)


def test_without_matplotlib_there_are_no_plots_and_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    found = plots.draw([task("a")], tmp_path)
    assert isinstance(found, plots.NoPlots) and "cuda_agent[bench]" in found.reason
