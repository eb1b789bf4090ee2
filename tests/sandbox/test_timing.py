"""The statistics of timing, on made-up samples."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.timing import decision as timing


def noisy(center: float, n: int, seed: int, spread: float = 0.02) -> list[float]:
    rng = random.Random(seed)
    return [center * math.exp(rng.gauss(0, spread)) for _ in range(n)]


def coverage(n: int, low: int, high: int) -> float:
    """Probability that the median lies between the order statistics low and high (from 0)."""
    return float(sum(math.comb(n, k) for k in range(low + 1, high + 1)) / 2**n)


@pytest.mark.parametrize("n", [6, 8, 9, 16, 31, 100, 501])
def test_the_bounds_cover_the_median_and_are_not_wider_than_needed(n: int) -> None:
    low, high = timing.order_bounds(n, 0.95)
    assert low + high == n - 1
    assert coverage(n, low, high) >= 0.95
    assert coverage(n, low + 1, high - 1) < 0.95


def test_few_samples_give_the_widest_interval() -> None:
    assert timing.order_bounds(1, 0.95) == (0, 0)
    assert timing.order_bounds(3, 0.95) == (0, 2)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(400):
        found = timing.interval(noisy(1.1, 25, seed, spread=0.2))
        hits += found.low <= 1.1 <= found.high
    assert hits / 400 >= 0.93


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60))
def test_the_median_lies_within_the_interval(values: list[float]) -> None:
    found = timing.interval(values)
    assert found.low <= found.median <= found.high


def test_a_clear_win_wins_and_the_faster_baseline_is_the_yardstick() -> None:
    found = timing.report(
        {"inductor": noisy(1.3, 30, 1), "eager": noisy(2.0, 30, 2), "candidate": noisy(1.0, 30, 3)}
    )
    assert found.wins
    assert found.baseline == "inductor"
    assert 1.2 < found.speedup.low <= found.speedup.median < 1.4
    assert found.beats("eager")


def test_beating_only_the_slower_baseline_does_not_win() -> None:
    found = timing.report(
        {"inductor": noisy(1.3, 30, 1), "eager": noisy(1.0, 30, 2), "candidate": noisy(1.0, 30, 3)}
    )
    assert not found.wins
    assert found.baseline == "eager"
    assert found.beats("inductor")


def test_four_percent_is_not_enough() -> None:
    samples = {"inductor": noisy(1.04, 400, 1, 0.005), "candidate": noisy(1.0, 400, 2, 0.005)}
    assert not timing.report(samples).wins


def test_two_pairs_are_never_a_win() -> None:
    assert not timing.report({"inductor": [2.0, 2.0], "candidate": [1.0, 1.0]}).wins


def test_a_slow_round_slows_both_and_changes_nothing() -> None:
    slow = [8.0 if i % 5 == 0 else 1.0 for i in range(40)]
    base, mine = noisy(1.3, 40, 1), noisy(1.0, 40, 2)
    found = timing.report(
        {
            "inductor": [a * s for a, s in zip(base, slow, strict=True)],
            "candidate": [a * s for a, s in zip(mine, slow, strict=True)],
        }
    )
    assert found.wins


def test_rounds_that_a_baseline_sat_out_are_left_out_of_its_pairs() -> None:
    eager = [3.0 if i < 10 else None for i in range(30)]
    found = timing.report({"inductor": [1.2] * 30, "eager": eager, "candidate": [1.0] * 30})
    assert found.over["eager"].pairs == 10
    assert found.wins


def test_a_baseline_like_itself_is_quiet() -> None:
    assert timing.control(noisy(1.0, 16, 1), noisy(1.0, 16, 2)).quiet


def test_a_baseline_unlike_itself_is_reported() -> None:
    found = timing.control(noisy(1.1, 16, 1), noisy(1.0, 16, 2))
    assert not found.quiet
    assert "differs from itself" in found.reason


def test_a_noisy_machine_is_reported() -> None:
    found = timing.control(noisy(1.0, 16, 1, 0.5), noisy(1.0, 16, 2, 0.5))
    assert not found.quiet
    assert "noisy" in found.reason


def test_the_answer_settles_early_only_when_it_is_clear() -> None:
    def samples(ratio: float, n: int) -> dict[str, list[float]]:
        return {"inductor": noisy(ratio, n, 1), "candidate": noisy(1.0, n, 2)}

    assert timing.settled(samples(1.5, 12))
    assert timing.settled(samples(0.9, 12))
    assert not timing.settled(samples(1.05, 12))
    assert not timing.settled(samples(1.5, 4))


def test_a_control_is_sure_early_only_of_what_is_like_itself() -> None:
    even, uneven = (noisy(1.0, 10, 1, spread=spread) for spread in (0.004, 0.05))
    assert timing.is_quiet(even, noisy(1.0, 10, 2, spread=0.004))
    assert not timing.is_quiet(even, noisy(1.04, 10, 2, spread=0.004))
    assert not timing.is_quiet(uneven, noisy(1.0, 10, 2, spread=0.05))
    assert not timing.is_quiet(even[:7], even[:7])
    assert timing.control(even, noisy(1.0, 10, 2, spread=0.004)).quiet


def test_a_time_of_zero_is_an_error() -> None:
    with pytest.raises(ValueError, match="positive"):
        timing.report({"inductor": [1.0] * 9, "candidate": [0.0] * 9})


def test_the_median_of_times_that_scatter_is_sure_once_there_are_enough_of_them() -> None:
    """A baseline with two speeds, either of them as often: a third of the pairs say the truth."""
    generator = random.Random(0)

    def either(n: int) -> list[float]:
        return [generator.choice((1.0, 1.6)) for _ in range(n)]

    few, many = (timing.control(either(n), either(n)) for n in (24, 240))
    assert not few.quiet and timing.is_wide(few.interval) and many.quiet


def two_speeds(n: int, slower: float = 1.5) -> list[float]:
    return [slower if i % 3 else 1.0 for i in range(n)]


def test_what_is_faster_than_a_scattering_baseline_ever_was_wins() -> None:
    control = timing.control(two_speeds(24), two_speeds(25)[1:])
    assert control.scatters and not control.quiet
    samples = {"eager": two_speeds(12, 3.0), "inductor": two_speeds(36), "candidate": [0.9] * 12}
    found = timing.report_at_best(samples, control)
    assert found.wins and found.speedup.median == pytest.approx(1 / 0.9)
    assert found.seconds == {"eager": 3.0, "inductor": 1.5, "candidate": 0.9}


@pytest.mark.parametrize("mine", [[0.97] * 12, [1.0] * 12, [0.5] * 9 + [1.2] * 3])
def test_what_is_faster_than_its_slow_half_only_does_not_win(mine: list[float]) -> None:
    control = timing.control(two_speeds(24), two_speeds(25)[1:])
    found = timing.report_at_best({"inductor": two_speeds(36), "candidate": mine}, control)
    assert not found.wins


def test_a_control_is_steady_once_surely_not_too_wide() -> None:
    few, many = 10, 150
    scattered = [noisy(1.0, n, seed, spread=0.08) for n in (few, many) for seed in (1, 2)]
    assert not timing.is_steady(*scattered[:2]) and timing.is_steady(*scattered[2:])
    assert not timing.is_quiet(*scattered[2:])
    even = noisy(1.0, 7, 1, spread=0.004)
    assert not timing.is_steady(even, even)


def test_a_control_that_is_biased_does_not_scatter() -> None:
    assert not timing.control(noisy(1.1, 16, 1), noisy(1.0, 16, 2)).scatters
    assert not timing.control([1.0] * 4, [1.0] * 4).scatters


def test_the_best_of_a_baseline_needs_samples() -> None:
    with pytest.raises(ValueError, match="too few"):
        timing.at_best([1.0] * 7, [0.5] * 12)


@pytest.mark.parametrize(
    ("bounds", "lost"),
    [
        ((1.0, 0.98, 1.02), False),
        ((0.995, 0.98, 1.01), False),
        ((0.995, 0.992, 0.998), True),
        ((0.98, 0.9, 1.1), True),
    ],
)
def test_a_clock_that_does_not_decide_forbids_only_what_it_shows(
    bounds: tuple[float, float, float], lost: bool
) -> None:
    assert timing.loses(timing.Interval(*bounds, pairs=24)) == lost
