"""The reward of a verdict: from the same figures that promote."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandbox.accuracy.rule import compare
from sandbox.failures import Crashed, Failed, Noisy
from sandbox.judge.race import Race, Timed
from sandbox.judge.rounds import Contestant, Record
from sandbox.timing import decision as timing
from sandbox.timing.decision import Interval, report
from sandbox.verdict import Correct, Outcome, TooSlow, reward

ACCURACY = compare([], [], [])
NEIGHBOUR = "inductor (candidate's process)"
Times = dict[str, float]


def judged(times: Times) -> Outcome:
    """What a race comes to in which the candidate takes one second, and the others as long as they take."""
    samples = {name: [seconds] * 12 for name, seconds in {**times, "candidate": 1.0}.items()}
    speed = report(samples)
    return Correct(ACCURACY, speed) if speed.wins else TooSlow(ACCURACY, speed)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"eager": 2.0, "inductor": 2.0}, 3),
        ({"eager": 2.0, "inductor": 1.04}, 2),
        ({"eager": 1.04, "inductor": 2.0}, 1),
        ({"eager": 0.5, "inductor": 0.5}, 1),
        ({"eager": 2.0, "inductor": 1.08, NEIGHBOUR: 1.0}, 2),  # faster by its place only
        ({"eager": 2.0, "inductor": 2.0, NEIGHBOUR: 1.9}, 3),
        ({"eager": 1.08, "inductor": 2.0, "eager (candidate's process)": 1.0}, 1),
    ],
)
def test_the_reward_counts_what_was_beaten_wherever_it_ran(times: Times, expected: int) -> None:
    found = judged(times)
    assert reward(found) == expected
    assert isinstance(found, Correct) is (expected == 3)


def test_what_is_too_slow_says_which_baseline_or_clock_was_not_overcome() -> None:
    assert judged({"eager": 1.5, "inductor": 1.04}).reason == "1.04x (1.04 to 1.04) over inductor"
    by_its_place = judged({"eager": 2.0, "inductor": 1.08, NEIGHBOUR: 1.0})
    assert by_its_place.reason == f"1.00x (1.00 to 1.00) over {NEIGHBOUR}"
    speed = replace(
        report({"inductor": [2.0] * 12, "candidate": [1.0] * 12}),
        wins=False,
        wall=Interval(0.9, 0.8, 0.95, 12),
    )
    by_the_wall = TooSlow(ACCURACY, speed)
    assert by_the_wall.reason.endswith("over inductor, 0.90x by the wall clock")
    assert reward(by_the_wall) == 1  # there is no eager to beat
    both = replace(speed, over={**speed.over, "eager": speed.over["inductor"]})
    assert (
        reward(TooSlow(ACCURACY, both)) == 2
        and reward(Correct(ACCURACY, replace(both, wall=None, wins=True))) == 3
    )


@pytest.mark.parametrize(("pairs", "expected"), [(timing.MIN_PAIRS - 1, 2), (timing.MIN_PAIRS, 3)])
def test_what_too_few_pairs_show_is_not_rewarded_as_promoted(pairs: int, expected: int) -> None:
    samples = {"eager": [2.0] * pairs, "inductor": [2.0] * pairs, "candidate": [1.0] * pairs}
    speed = report(samples)
    found = Correct(ACCURACY, speed) if speed.wins else TooSlow(ACCURACY, speed)
    assert reward(found) == expected


@pytest.mark.parametrize(
    ("inductor", "wall", "forbidden", "expected"),
    [(0.8, 0.8, False, 2), (1.2, 0.8, True, 2), (1.2, 1.0, False, 3)],
)
def test_the_wall_clock_only_forbids_what_device_time_allows(
    inductor: float, wall: float, forbidden: bool, expected: int
) -> None:
    device = {"eager": [1.5] * 12, "inductor": [inductor] * 12, "candidate": [1.0] * 12}
    record = Record({**device, "inductor": [wall] * 12}, device)
    control = timing.control([1.0] * 12, [1.0] * 12)
    race = Race.__new__(Race)
    speed = race._by_all_clocks(timing.report(record.device, aa=control), record)
    assert (speed.wall is not None) == forbidden
    found = Correct(ACCURACY, speed) if speed.wins else TooSlow(ACCURACY, speed)
    assert reward(found) == expected


@pytest.mark.parametrize(("beside", "forbidden"), [(0.8, True), (1.0, False), (1.3, False)])
def test_by_the_wall_clock_what_runs_in_the_candidate_s_process_counts_too(
    beside: float, forbidden: bool
) -> None:
    device = {"inductor": [1.2] * 12, NEIGHBOUR: [1.2] * 12, "candidate": [1.0] * 12}
    record = Record({**device, "inductor": [0.8] * 12, NEIGHBOUR: [beside] * 12}, device)
    speed = Race.__new__(Race)._by_all_clocks(timing.report(record.device), record)
    assert speed.wins is not forbidden
    assert (speed.wall is not None and speed.wall.median == 0.8) is forbidden


@pytest.mark.parametrize(("mine", "expected"), [(0.9, 3), (0.97, None), (1.2, None)])
def test_a_baseline_of_two_speeds_is_beaten_at_its_best_or_not_at_all(
    mine: float, expected: float | None
) -> None:
    two = [1.5 if n % 3 else 1.0 for n in range(24)]
    samples = {"eager": [3.0] * 12, "inductor": [1.5] * 12, "candidate": [mine] * 12}
    race = Race.__new__(Race)
    race._faster = Contestant("inductor", None, 0)  # type: ignore[arg-type]
    speed = race._decide(Timed(Record(samples, samples), two, [*two[1:], 1.0]))
    assert reward(speed if isinstance(speed, Noisy) else Correct(ACCURACY, speed)) == expected


def test_what_is_wrong_costs_and_what_is_not_known_gives_nothing() -> None:
    assert reward(Crashed("run", "SIGSEGV")) == -1
    assert reward(Noisy("the machine")) is None
    assert reward(Failed("inductor", "no memory")) is None
    assert reward(Correct(ACCURACY)) == 1
