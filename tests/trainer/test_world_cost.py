"""What measuring took, and what of it one judgement of a candidate is charged with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from world_kit import measured

from sandbox.judge.glance import GLANCES, MOST_GLANCES
from trainer.arena.agreement import measured as told
from trainer.world.replay_tools import TableBench
from trainer.world.rows import Row

TABLE = next(table for table in measured() if table.best > 0)
RUN_S, BASELINE_S, OWN_S = 0.01, 3e-3, 1e-3


def timed(runs: int, again: int = 0, scatters: bool = False) -> Row:
    """A row of so many runs of `RUN_S` each, beside one that warmed it up."""
    own = [OWN_S * (2 if scatters and n % 2 else 1) for n in range(runs)]
    about = {"compile_s": 1.0, "check_s": 0.5, "time_s": RUN_S * (1 + runs + again)}
    row = Row("c", ('[{"sketch": "row"}]',), 0, True, "correct", **about)
    more = {"retimed": (OWN_S,) * again, "retimed_baseline": (BASELINE_S,) * again}
    return replace(row, seconds=tuple(own), baseline=(BASELINE_S,) * runs, **more)


def test_a_leader_is_charged_with_no_more_than_a_profile_takes() -> None:
    pair = 2 * RUN_S + BASELINE_S - OWN_S
    for row in (timed(4), timed(8), timed(20, again=16)):
        assert row.profile_s == pytest.approx(GLANCES * pair)
        assert row.judging_s == pytest.approx(1.5 + GLANCES * pair)
    assert timed(2).profile_s == pytest.approx(GLANCES * pair), "it was left as it is"


def test_pairs_that_disagree_are_charged_with_as_many_as_a_profile_takes_of_them() -> None:
    found = timed(12, scatters=True)
    assert found.profile_s == pytest.approx(MOST_GLANCES * 2 * RUN_S, rel=0.2)


def test_what_does_not_work_is_charged_with_what_it_took() -> None:
    row = Row("c", (), 0, True, "crashed", compile_s=1.0, check_s=0.5, time_s=0.25)
    assert (row.profile_s, row.judging_s) == (0.25, 1.75)


def test_a_replayed_profile_takes_a_profiles_seconds() -> None:
    row = timed(20, again=16)
    bench = TableBench(replace(TABLE, rows=(row,)), 0)
    bench.rows = {"x": 0}

    class Candidate:
        digest = "x"

    bench.profile(TABLE.parsed, Candidate(), worth=0.0)  # type: ignore[arg-type]
    assert bench.spent_s == pytest.approx(row.check_s + row.profile_s)


def test_programs_are_counted_and_only_what_each_schedule_takes_is_scaled_to_64() -> None:
    steps = {"baselines": 3.0, "check": 2.0, "time": 4.0, "retime": 1.0}
    steps |= {"prepare": 9.0, "compile": 9.0, "inductor": 9.0}
    rows = tuple(replace(timed(4), candidate=f"c{n}") for n in range(16))
    one = replace(TABLE, source="a", steps=steps, rows=rows)
    found = told([one, one, replace(one, source="b")])
    assert (found["tables"], found["tasks"]) == (3, 2)
    assert found["step_s"]["device"]["median"] == pytest.approx(10.0)
    assert found["step_s"]["device_per_64"]["median"] == pytest.approx(4.0 + 4 * 6.0)
