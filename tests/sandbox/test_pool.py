"""Many candidates through one judge: side by side, and worth the same in any order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from judge_kit import silu_bias, silu_candidate

from sandbox.compile.disassembly import Inspection
from sandbox.judge import Judge
from sandbox.judge.builds import Builds
from sandbox.judge.pool import Pool
from sandbox.judge.rounds import Effort
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task
from sandbox.verdict import Baselines, Correct

TASK, OTHER = silu_bias(), silu_bias(128, 512)
SHORT = Effort(min_rounds=12, max_rounds=12, seconds=1.0)
SLOW = 'for (int again = 0; again < 400; ++again) asm volatile("" ::: "memory");'


def mixed() -> list[tuple[Task, Candidate, str]]:
    """Candidates whose answers do not hang on the machine's mood, for two tasks."""
    found = []
    for task in (TASK, OTHER):
        found += [
            (task, silu_candidate(task, special="float v = => float v = 0.01f + "), "wrong"),
            (
                task,
                silu_candidate(task, special="float v = => float v = oops + "),
                "compile_failed",
            ),
            (
                task,
                silu_candidate(task, change="#pragma => *(volatile int*)0 = 1;\n  #pragma"),
                "crashed",
            ),
            (
                task,
                silu_candidate(task, special=f"const float v = => {SLOW} const float v ="),
                "too_slow",
            ),
        ]
    found.append((TASK, silu_candidate(OTHER), "refused"))
    return found


@pytest.mark.parametrize("turned", [False, True])
def test_the_order_changes_no_verdict(judge: Judge, turned: bool) -> None:
    work = mixed()[:: -1 if turned else 1]
    pool = Pool(judge)
    found = dict(pool.judge_all([(task, of) for task, of, _ in work], effort=SHORT))
    assert {n: found[n].status for n in found if found[n].status != "noisy"} == {
        n: status for n, (_, _, status) in enumerate(work) if found[n].status != "noisy"
    }
    assert len(found) == len(work)
    assert sum(verdict.status == "noisy" for verdict in found.values()) <= 2


def test_episodes_in_threads_get_their_own_answers(judge: Judge) -> None:
    pool = Pool(judge, compile_jobs=2)

    def episode(task: Task) -> list[Any]:
        good = silu_candidate(task)
        return [
            pool.baselines(task),
            pool.compile(good),
            pool.verify(task, good),
            pool.inspect(good),
        ]

    with ThreadPoolExecutor(4) as threads:
        for answers in threads.map(episode, [TASK, OTHER, TASK, OTHER]):
            baselines, _, verified, inspected = answers
            assert isinstance(baselines, Baselines)
            assert isinstance(verified, Correct), verified
            assert isinstance(inspected, Inspection)


def test_a_policys_source_is_built_for_the_judgement_before_the_turn(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[tuple[str, bool]] = []
    pool = Pool(judge)
    build = Builds.build

    def noted(self: Builds, made: Candidate, place: str) -> Any:
        places.append((place, pool._turns._busy))
        return build(self, made, place)

    monkeypatch.setattr(Builds, "build", noted)
    mine = replace(silu_candidate(TASK), origin="policy")
    assert pool.judge(TASK, mine, effort=SHORT).status == "refused"  # no consent
    assert places == [("judged", False)]
