"""The reward of a verdict: from the same figures that promote."""

from __future__ import annotations

import pytest

from sandbox.accuracy import compare
from sandbox.timing import report
from sandbox.verdict import Correct, Crashed, Failed, Noisy, Outcome, TooSlow, reward

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


def test_what_is_wrong_costs_and_what_is_not_known_gives_nothing() -> None:
    assert reward(Crashed("run", "SIGSEGV")) == -1
    assert reward(Noisy("the machine")) is None
    assert reward(Failed("inductor", "no memory")) is None
    assert reward(Correct(ACCURACY)) == 1
