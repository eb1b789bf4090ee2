"""Many candidates measured together: what is right and runs is timed in rounds, what is not costs itself only."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judge_kit import candidate, silu_bias, silu_candidate, sized

from sandbox.failures import Refused
from sandbox.judge import Judge
from sandbox.judge.survey import Found, Surveyed, SurveyEffort, share_set_up
from sandbox.plan.candidate import Candidate
from sandbox.timing.turns import TurnsOver
from sandbox.verdict import Correct

SHORT = SurveyEffort(rounds=2, close=((1.5, 3),), leading=1e9, leaders=2, again=4, seed=0)
CRASHES = """
extern "C" void kernel(void* const* p) { *(volatile int*)8 = 1; }
"""


@pytest.fixture(scope="module")
def surveyed(judge: Judge) -> Surveyed:
    task = silu_bias(64, 96)
    sources = {
        "good": silu_candidate(task),
        "crashes": candidate(task, CRASHES, "crashes"),
        "wrong": silu_candidate(task, wrong="1.0f + std::exp(-v) => 1.01f + std::exp(-v)"),
        "broken": candidate(task, "this is no C++", "broken"),
        "also good": candidate(task, sized(silu_candidate(task).source + "// other", task)),
        "last": candidate(task, sized(silu_candidate(task).source + "// third", task)),
    }
    found = judge.survey(task, list(sources.values()), SHORT)
    assert isinstance(found, Surveyed)
    return found


def test_each_candidate_has_its_own_outcome_by_the_rule_of_a_profile(surveyed: Surveyed) -> None:
    statuses = [found.outcome.status for found in surveyed.found]
    assert statuses == ["correct", "crashed", "wrong", "compile_failed", "correct", "correct"]


def test_only_what_is_right_is_timed_with_a_baseline_for_each_round(surveyed: Surveyed) -> None:
    for found in surveyed.found:
        assert len(found.seconds) == len(found.baseline)
        assert bool(found.seconds) is isinstance(found.outcome, Correct)
        assert all(s > 0 for s in (*found.seconds, *found.baseline))
    rounds = [len(f.seconds) for f in surveyed.found if f.timed]
    assert min(rounds) >= SHORT.rounds and max(rounds) == SHORT.close[-1][1]


def test_the_leaders_are_timed_again_and_no_others(surveyed: Surveyed) -> None:
    again = [len(found.retimed) for found in surveyed.found]
    assert sorted(again) == [0, 0, 0, 0, SHORT.again, SHORT.again]
    assert all(len(f.retimed) == len(f.retimed_baseline) for f in surveyed.found)


def test_the_first_checked_pays_no_more_than_the_others_for_what_all_need() -> None:
    cost = [0.0, 5.0, 0.5, 0.25, 0.75]  # the first one did not compile
    found = [Found(Refused("no"), check_s=seconds) for seconds in cost]
    share_set_up(found)
    assert [one.check_s for one in found] == [0.0, 0.5, 0.5, 0.25, 0.75]
    cheap = [Found(Refused("no"), check_s=seconds) for seconds in (0.25, 0.5)]
    share_set_up(cheap)
    share_set_up([])
    assert [one.check_s for one in cheap] == [0.25, 0.5]


def test_baselines_and_seconds_of_the_steps_are_told(surveyed: Surveyed) -> None:
    assert surveyed.rival in ("eager", "inductor")
    assert set(surveyed.seconds) == {"inductor", "baselines", "check", "time", "retime"}
    assert all(seconds >= 0 for seconds in surveyed.seconds.values())


def test_after_a_survey_a_profile_runs_the_candidate_that_it_is_given(judge: Judge) -> None:
    """What a survey bound last is not taken for what is loaded."""
    task = silu_bias(32, 48)
    good = silu_candidate(task)
    wrong = silu_candidate(task, wrong="1.0f + std::exp(-v) => 1.01f + std::exp(-v)")
    assert judge.verify(task, wrong).status == "wrong"
    found = judge.survey(task, [good], SHORT)
    assert isinstance(found, Surveyed) and found.found[0].timed
    assert judge.verify(task, wrong).status == "wrong"
    assert judge.verify(task, good).status == "correct"


def test_host_code_of_a_policy_is_not_measured_beside_others(judge: Judge) -> None:
    task = silu_bias(32, 48)
    made = silu_candidate(task)
    theirs = Candidate(made.target, made.language, made.source, made.plan, "policy")
    found = judge.survey(task, [theirs, made], SHORT)
    assert isinstance(found, Surveyed)
    assert isinstance(found.found[0].outcome, Refused) and found.found[1].timed


def test_a_survey_that_nobody_waits_for_is_left_while_inductor_compiles(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    over: list[bool] = []

    def compiles(patience_s: float) -> bool:
        over.append(True)
        return len(over) > 3

    timeouts = replace(judge.settings.timeouts, is_over=lambda: bool(over))
    monkeypatch.setattr(judge.sessions, "settings", replace(judge.settings, timeouts=timeouts))
    monkeypatch.setattr(judge.sessions, "is_settled", compiles)
    task = silu_bias(16, 48)
    with pytest.raises(TurnsOver):
        judge.survey(task, [silu_candidate(task)], SHORT)
    assert over == [True]
    judge.rest()
