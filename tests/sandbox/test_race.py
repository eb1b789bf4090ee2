"""When a glance and the baselines' measurement may end, and what comes of a process that ends before."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandbox.failures import Crashed, Failed, TimedOut
from sandbox.judge.glance import agree, are_sure, is_hopeless
from sandbox.judge.race import CONTROL, LONG_CONTROL, Race
from sandbox.judge.rounds import Effort, Record


@pytest.mark.parametrize(
    ("ratios", "ends"),
    [
        ([0.5, 0.55], True),
        ([0.5, 0.7], False),  # of a baseline of two speeds, perhaps
        ([0.7, 0.8], False),
        ([0.7, 0.8, 0.75, 0.85], True),
        ([0.7, 0.8, 0.75, 0.95], False),
        ([0.5] * 7 + [1.1], False),
    ],
)
def test_a_glance_ends_where_all_pairs_are_far_below(ratios: list[float], ends: bool) -> None:
    assert is_hopeless(ratios, 1.0) is ends
    assert is_hopeless([2 * ratio for ratio in ratios], 2.0) is ends


def test_without_a_least_speed_no_glance_ends() -> None:
    assert not is_hopeless([0.01, 0.01], 0.0)


@pytest.mark.parametrize(
    ("ratios", "ends"),
    [
        ([1.5, 1.5], False),
        ([1.5, 1.51, 1.5, 1.52], True),
        ([1.5, 1.51, 1.5, 1.54], False),
        ([1.5, 1.51, 1.5, 1.54] * 2, True),
        ([1.5] * 7 + [1.6], False),
    ],
)
def test_a_glance_ends_where_its_pairs_agree(ratios: list[float], ends: bool) -> None:
    assert agree(ratios) is ends


@pytest.mark.parametrize(("spread", "sure"), [(0.04, True), (0.08, False)])
@pytest.mark.parametrize("name", ["eager", "inductor"])
def test_baselines_are_sure_where_both_scatter_little(name: str, spread: float, sure: bool) -> None:
    steady: list[float | None] = [1.0] * 6
    record = Record(device={"eager": steady, "inductor": steady, "harness": [1.0, 9.0]})
    record.device[name] = [1.0, 1.0, 1.0 + spread, 1.0, None, 1.0]
    assert are_sure(record) is sure


@pytest.mark.parametrize(("scatter", "usual", "long"), [(0.01, 10, 10), (0.1, 24, 20)])
def test_a_control_that_scatters_goes_on_until_it_is_known_to_scatter_little_enough(
    scatter: float, usual: int, long: int
) -> None:
    drawn = random.Random(4)

    def rounds(field: Any, effort: Effort, stop: Any, wall: bool) -> Record:
        record, look = Record(), effort.min_rounds
        for number in range(1, effort.max_rounds + 1):
            for own in ("A", "A'"):
                sample = drawn.uniform(1, 1 + scatter)
                record.device.setdefault(own, []).append(sample)
            if number == look:
                look *= 2
                if stop(record):
                    break
        return record

    race = Race.__new__(Race)
    race.baseline, race._faster = cast("Any", (None, SimpleNamespace(slot=0)))
    watch = cast("Any", SimpleNamespace(rounds=rounds))
    for effort, expected in ((CONTROL, usual), (LONG_CONTROL, long)):
        found = race._control(watch, effort)
        assert isinstance(found, Record) and len(found.device["A"]) == expected


def equipped(*answers: Any) -> Race:
    """A race that was equipped twice; the candidate's worker gave these answers when it was given inputs."""
    left, made = list(answers), Race.__new__(Race)
    made.session = cast(
        "Any",
        SimpleNamespace(
            task=SimpleNamespace(target="cuda"),
            timed=["some inputs"],
            share=lambda worker, inputs: left.pop(0) if worker == "candidate" else None,
            prepare=lambda *_: None,
            baselines={},
        ),
    )
    made.baseline, made.candidate = cast("Any", ("baseline", "candidate"))
    made.eager_task, made._lost = made.session.task, None
    assert made.equip() is None
    assert made.equip() is None
    return made


@pytest.mark.parametrize("end", [Crashed("draw 0", "SIGKILL"), TimedOut("draw 0", 20.0)])
def test_a_candidates_process_that_ended_before_the_race_is_what_comes_of_it(end: Any) -> None:
    """Another one holds no candidate: that it cannot run it says nothing."""
    assert equipped(end, None)._line_up(fresh=False) == end


def test_what_failed_beside_others_is_tried_again() -> None:
    assert equipped(Failed("draw 0", "CUDA out of memory"), None)._lost is None
