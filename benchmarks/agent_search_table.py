"""What schedules of a task's space are worth, measured: the table on which policies are then simulated."""

from __future__ import annotations

import json
import os
import random
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from benchmarks.agent_search_tasks import Subject, task_of
from benchmarks.store import Facts
from cuda_agent_backend.agent.loop import Budget, run_episode
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.tools.toolbox import Toolbox
from cuda_agent_backend.codegen.api import analyse, generate, schedules
from cuda_agent_backend.codegen.covered_task import Analysis
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.schedule_space import space_of
from cuda_agent_backend.options import Options
from sandbox.failures import Failure
from sandbox.judge import Judge
from sandbox.judge.measurements import Measurements
from sandbox.judge.race import Race
from sandbox.judge.rounds import Record
from sandbox.judge.settings import JudgeSettings
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task
from sandbox.verdict import Baselines

PASSES = {"cpu": 8, "cuda": 3}
"""Times that a schedule is timed, in another order each time, so that a busy minute does not fall on one schedule. The
first time its results are checked as well."""
NEVER = 1e9


class KeepingJudge(Judge):
    """A judge that keeps the raw samples of the last quick timing."""

    kept: Record | None = None

    def __init__(self, settings: JudgeSettings) -> None:
        super().__init__(settings)
        judge = self

        class Keeping(Measurements):
            def glance(self, race: Race, pairs: int, worth: float) -> Record | Failure:
                found = super().glance(race, pairs, worth)
                judge.kept = found if isinstance(found, Record) else None
                return found

        self.measurements = Keeping(self.sessions)


def measure(
    subject: Subject,
    judge: KeepingJudge,
    options: Options,
    most: int,
    time_is_up: Callable[[], bool] = lambda: False,
) -> Facts:
    """The table of one subject: baselines, and up to ``most`` schedules with their status and their samples (seconds).

    Once ``time_is_up`` no schedule is timed again.
    """
    task = task_of(subject, judge.target, options)
    if isinstance(task, str):
        return {"reason": task}
    analysis = analyse(task)
    if isinstance(analysis, NotCovered):
        return {"reason": analysis.reason}
    baselines = judge.baselines(task)
    if not isinstance(baselines, Baselines):
        return {"reason": baselines.reason}
    proposals = schedules(analysis)
    every = _distinct(analysis, space_of(proposals).schedules())
    made = _sampled(every, frozenset(proposals), most)
    with ThreadPoolExecutor(max(2, len(os.sched_getaffinity(0)) // 2)) as pool:
        built = list(pool.map(judge.compile, (candidate for _, candidate in made)))
    rows = [
        {"schedule": json.loads(schedule.to_json()), "candidate": candidate.digest[:12]}
        | ({} if hasattr(outcome, "path") else {"status": outcome.status})
        for (schedule, candidate), outcome in zip(made, built, strict=True)
    ]
    passes = 0
    for turn in range(PASSES[judge.target]):
        if turn and time_is_up():
            break
        passes += 1
        order = list(range(len(rows)))
        random.Random(turn).shuffle(order)
        for place in order:
            if rows[place].get("status") in (None, "correct"):
                rows[place] |= _timed(judge, task, made[place][1], rows[place])
    return {
        "task": json.loads(task.to_json()),
        "digest": task.digest,
        "family": analysis.family,
        "baselines": asdict(baselines),
        "room": baselines.room,
        "proposals": [json.loads(s.to_json()) for s in proposals],
        "schedules": len(rows),
        "space": len(every),
        "passes": passes,
        "rows": [_with_time(row) for row in rows],
    }


def episode(subject: Subject, judge: Judge, options: Options, budget_s: float) -> Facts:
    """A real search of one subject."""
    task = task_of(subject, judge.target, options)
    if isinstance(task, str):
        return {"reason": task}
    judge.baselines(task)  # compiling the baselines is not charged to the search
    tools = Toolbox(task, judge)
    result = run_episode(SearchPolicy(), tools, Budget(budget_s))
    found = {
        "judgements": len(tools.profiles),
        "compiled": len(tools.candidates),
        "best_profile": max(tools.profiles.values(), default=None),
        "profiles": list(tools.profiles.values()),
        "turns": result.turns,
        "seconds": round(result.seconds, 1),
        "promoted": result.best is not None,
        "reason": result.reason,
    }
    return {"episode": found}


def _distinct(analysis: Analysis, wanted: Sequence[Schedule]) -> list[tuple[Schedule, Candidate]]:
    """The schedules that fit, of those that print the same source the first."""
    found: dict[str, tuple[Schedule, Candidate]] = {}
    for schedule in wanted:
        candidate = generate(analysis, schedule)
        if not isinstance(candidate, NotCovered):
            found.setdefault(candidate.digest, (schedule, candidate))
    return list(found.values())


def _sampled(
    every: Sequence[tuple[Schedule, Candidate]], proposed: frozenset[Schedule], most: int
) -> list[tuple[Schedule, Candidate]]:
    """All proposals, and others drawn uniformly, up to ``most`` in all."""
    first = [one for one in every if one[0] in proposed]
    others = [one for one in every if one[0] not in proposed]
    drawn = random.Random(0).sample(others, max(0, min(len(others), most - len(first))))
    return first + drawn


def _timed(judge: KeepingJudge, task: Task, candidate: Candidate, row: Facts) -> Facts:
    judge.kept = None
    checked = "status" in row
    outcome = judge.profile(task, candidate, worth=NEVER if checked else 0.0)
    samples: dict[str, list[float]] = dict(row.get("samples", {}))
    if judge.kept is not None:
        for name, own in judge.kept.device.items():
            samples[name] = [*samples.get(name, []), *(s for s in own if s is not None)]
    status = "correct" if checked and outcome.status == "unchecked" else outcome.status
    return {"status": status, "samples": samples}


def _with_time(row: Facts) -> Facts:
    """Also the speed-up: the median of paired ratios."""
    samples = dict(row.get("samples", {}))
    own = samples.pop("candidate", None)
    if row["status"] != "correct" or not own or not samples:
        return row
    (other,) = samples.values()
    ratios = [b / c for b, c in zip(other, own, strict=True)]
    return {**row, "speedup": statistics.median(ratios)}
