"""The space of schedules around a sketch's proposals, and the tables on which searches are simulated."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import agent_search_summary
from benchmarks.agent_search_simulation import Row, Table, as_planned, needed, table_of
from benchmarks.agent_search_table import _sampled
from benchmarks.agent_search_tasks import PRACTICE, subjects
from cuda_agent_backend.agent.policies.search.surrogate import features
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.schedule_space import kind_of, space_of

parameters = st.fixed_dictionaries(
    {
        "unroll": st.sampled_from((1, 2, 4, 8)),
        "stream": st.integers(0, 1),
        "lanes": st.sampled_from(("inner", "outer")),
    }
)
proposals = st.lists(
    st.lists(parameters, min_size=1, max_size=3).map(lambda kernels: Schedule.of(*kernels)),
    max_size=6,
)


@given(proposals, st.integers(1, 40))
def test_proposals_come_first_and_nothing_twice(given: list[Schedule], most: int) -> None:
    found = space_of(given).schedules(most)
    first = list(dict.fromkeys(given))
    assert found[: len(first)] == first[:most]
    assert len(found) == len(set(found)) <= most


@given(proposals)
def test_every_schedule_of_a_space_is_of_the_kind_of_a_proposal(given: list[Schedule]) -> None:
    kinds = {kind_of(schedule) for schedule in given}
    assert {kind_of(schedule) for schedule in space_of(given).schedules()} <= kinds


def test_numbers_have_halves_and_doubles_and_words_only_themselves() -> None:
    first, second = (
        Schedule.of({"sketch": "row", "unroll": 4}),
        Schedule.of({"sketch": "map", "unroll": 2}),
    )
    assert space_of([first, second]).describe() == [
        [{"sketch": ["row"], "unroll": [2, 4, 8]}],
        [{"sketch": ["map"], "unroll": [1, 2, 4]}],
    ]


def test_what_accuracy_or_the_machine_sets_is_only_as_proposed() -> None:
    one = Schedule.of({"run": 32, "products": 6, "group": 2, "width": 8, "threads": 1, "stream": 0})
    assert space_of([one]).describe() == [
        [
            {
                "run": [32],
                "products": [6],
                "group": [2],
                "width": [8],
                "threads": [1],
                "stream": [0, 1],
            }
        ]
    ]


def test_kernels_are_mixed_nearest_to_the_best_guess_first() -> None:
    made = [Schedule.of({"u": a}, {"v": b}) for a, b in ((0, 0), (1, 0), (0, 1))]
    assert space_of(made).schedules()[3] == Schedule.of({"u": 1}, {"v": 1})


@given(proposals)
def test_schedules_are_points_between_nought_and_one(given: list[Schedule]) -> None:
    schedules = space_of(given).schedules()
    points = features(schedules)
    assert points.shape[0] == len(schedules)
    assert points.size == 0 or (points.min() >= 0 and points.max() <= 1)
    if len(schedules) > 1:
        assert len({tuple(p) for p in points.tolist()}) == len(schedules)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_subjects_come_in_pairs_and_name_constants_of_their_files(target: str) -> None:
    found = subjects(target)
    assert len({s.name for s in found}) == len(found) >= 12
    for one, other in pairwise(found):
        assert one.name != other.name
    assert all(found[n].file == found[n + 1].file for n in range(0, len(found), 2))
    for subject in found:
        text = (PRACTICE / f"{subject.file}.py").read_text()
        assert all(f"\n{name} = " in text for name in subject.constants)


SPEC = {"dtype": "float32", "shape": [64, 64], "stride": [64, 1]}
TASK = {"target": "cpu", "inputs": [SPEC], "nodes": [{"op": "aten.relu.default", "args": {"self": {"i": 0}}}],
        "outputs": [{"n": 0}], "output_specs": [SPEC]}  # fmt: skip


def sample(
    speeds: dict[int, float | None], noise: float = 0.0, passes: int = 4
) -> dict[str, object]:
    """A measured table of schedules by their unroll."""
    rows = []
    for unroll, speed in speeds.items():
        row: dict[str, object] = {
            "schedule": [{"unroll": unroll}],
            "candidate": f"c{unroll}",
            "status": "wrong",
        }
        if speed is not None:
            own = [1e-3 / speed * (1 + noise * (n % 48 >= 24)) for n in range(48)]
            samples = {"inductor": [1e-3] * 48, "candidate": own}
            row |= {"status": "correct", "speedup": speed, "samples": samples}
        rows.append(row)
    return {
        "task": TASK,
        "room": 10.0,
        "passes": passes,
        "proposals": [[{"unroll": 4}], [{"unroll": 2}]],
        "rows": rows,
    }


def test_a_table_says_how_many_judgements_were_needed() -> None:
    table = table_of(json.loads(json.dumps(sample({4: 1.2, 2: 1.0, 8: 2.0, 1: None}))))
    assert table.best == 2.0 and table.close == {"c8"}
    assert needed(["c4", "c1", "c8"], table) == 3 and needed(["c4", "c1"], table) is None


def test_a_sample_of_a_space_has_all_proposals_and_others_by_chance() -> None:
    schedules = [Schedule.of({"u": n}) for n in range(50)]
    every: list[Any] = [(schedule, n) for n, schedule in enumerate(schedules)]
    found = [n for _, n in _sampled(every, frozenset(schedules[:5]), 20)]
    assert (
        found[:5] == [0, 1, 2, 3, 4] and len(set(found)) == 20 and found[5:] != list(range(5, 20))
    )
    assert len(_sampled(every, frozenset(schedules[:5]), 90)) == 50


def test_the_plan_goes_on_as_long_as_a_round_brings_something() -> None:
    schedules = [Schedule.of({"u": n}) for n in range(12)]

    def judged(speeds: list[float]) -> int:
        rows = {
            s: Row(s, str(n), v) for n, (s, v) in enumerate(zip(schedules, speeds, strict=True))
        }
        return len(as_planned(Table(tuple(schedules), rows)))

    assert judged([1.0] * 12) == 8
    assert judged([1.0] * 4 + [2.0] * 8) == 12


def test_tables_that_are_too_noisy_or_without_a_winner_are_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_search_summary, "SEEDS", 1)
    monkeypatch.setattr(agent_search_summary, "RANDOM_SEEDS", 10)
    monkeypatch.setattr(agent_search_summary, "RESAMPLES", 100)
    monkeypatch.setattr(agent_search_summary, "of_products", dict)
    fine, none, noisy = (
        sample({4: 1.2, 2: 1.0, 8: 2.0}),
        sample({4: 0.9, 2: 1.0, 8: 0.8}),
        sample({4: 1.2, 2: 2.0}, 0.5),
    )
    summary = agent_search_summary.summarise(
        {
            "fine": fine,
            "none": none,
            "noisy": noisy,
            "bad": {"reason": "x"},
            "cut short": sample({4: 1.2, 2: 1.0}, passes=1),
        }
    )
    assert "cut short" not in summary["tasks"]
    assert summary["counted"] == ["fine"] and summary["too_noisy"] == ["noisy"]
    assert summary["needed"]["model"]["mean"] == 3.0
    assert summary["tasks"]["fine"]["stopped"]["model"]["share_of_best"] == 1.0


def test_what_a_memory_saves_is_also_said_of_tasks_with_neighbours_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of_task(name: str, tables: Any) -> dict[str, Any]:
        near = name == "near"
        needed = {way: {"all": [4]} for way in (*ways, "model", "model_on")}
        needed |= {way: {"all": [1 if near else 4]} for way in ("memory", "memory_on")}
        return {"best": 2.0, "scatter": 0.0, "neighbours": int(near), "needed": needed}

    ways = {way for pair in agent_search_summary.RATIOS for way in pair}
    monkeypatch.setattr(agent_search_summary, "_task", of_task)
    tables = {n: table_of(json.loads(json.dumps(sample({4: 2.0})))) for n in ("near", "far")}
    found = agent_search_summary.figures(tables)
    assert found["ratios"]["memory/model"]["ratio"] == 5 / 8
    assert found["ratios_with_neighbours"]["memory/model"]["ratio"] == 1 / 4
