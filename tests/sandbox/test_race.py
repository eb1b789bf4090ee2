"""When a glance and the baselines' measurement may end."""

from __future__ import annotations

import pytest

from sandbox.race import are_sure, is_hopeless
from sandbox.rounds import Record


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


@pytest.mark.parametrize(("spread", "sure"), [(0.04, True), (0.08, False)])
@pytest.mark.parametrize("name", ["eager", "inductor"])
def test_baselines_are_sure_where_both_scatter_little(name: str, spread: float, sure: bool) -> None:
    steady: list[float | None] = [1.0] * 6
    record = Record(device={"eager": steady, "inductor": steady, "harness": [1.0, 9.0]})
    record.device[name] = [1.0, 1.0, 1.0 + spread, 1.0, None, 1.0]
    assert are_sure(record) is sure
