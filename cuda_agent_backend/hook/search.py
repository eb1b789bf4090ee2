"""Step 3 of the pass: have kernels searched for the candidates without one, as the mode says."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from cuda_agent_backend import log
from cuda_agent_backend.acceptance.whole_graph import WholeGraph
from cuda_agent_backend.graph.canonical import NotATask
from cuda_agent_backend.hook.compilation import MORE_TIME, Compilation
from cuda_agent_backend.hook.lookup import Candidates
from cuda_agent_backend.hook.whole_graph import Subject, known_decision
from cuda_agent_backend.partition.candidates import CandidateRegion
from cuda_agent_backend.partition.estimate import saving
from cuda_agent_backend.runtime.kernels import Hit, NoKernel
from cuda_agent_backend.runtime.machine import toolchain_of
from cuda_agent_backend.search.budget import LEAST_SEARCH_S, acceptance_reserve, allowance
from cuda_agent_backend.search.durations import ACCEPTANCE
from cuda_agent_backend.search.protocol import Searcher
from sandbox.task.task import Task


@dataclass(frozen=True)
class Found:
    """The candidates with what is known after the search. later: what is measured when a background search ends."""

    candidates: Candidates
    later: WholeGraph | None = None


def search(candidates: Candidates, subject: Subject, compilation: Compilation) -> Found:
    """Have what is not known searched, and look again."""
    searcher, mode = compilation.searcher, compilation.options.search
    wanted = [candidates.to_search(whole) for whole in candidates.wholes]
    missing = {one.key.digest: one.task for one in wanted if one is not None}
    if searcher is None or mode == "cached":
        return Found(candidates)
    missing = _without_waiting(missing, compilation) if missing else {}
    if not missing:
        if mode == "background" and _is_unmeasured(candidates, subject, compilation):
            return _enqueue([], candidates, subject, searcher, compilation)
        return Found(candidates)
    promises = _promises(candidates)
    tasks = sorted(missing.values(), key=lambda task: -promises[task.digest])
    if mode == "background":
        return _enqueue(tasks, candidates, subject, searcher, compilation)
    return _search_now(tasks, promises, candidates, subject, compilation)


def _promises(candidates: Candidates) -> dict[str, float]:
    """What kernels may save, by their task's digest: the sum over all regions of the task."""
    promises: dict[str, float] = defaultdict(float)
    for one in candidates.all:
        promises[one.task.digest] += saving(one.region)
    return promises


def _is_unmeasured(candidates: Candidates, subject: Subject, compilation: Compilation) -> bool:
    """Whether there are kernels with which the graph was never measured: what was to do so may have died."""
    keys = candidates.keys
    measures = compilation.options.acceptance != "trust"
    return bool(keys) and measures and not known_decision(compilation, subject.name, keys)


def _enqueue(
    tasks: list[Task],
    candidates: Candidates,
    subject: Subject,
    searcher: Searcher,
    compilation: Compilation,
) -> Found:
    whole = subject.with_kernels(tuple({one.key for one in candidates.all}))
    if isinstance(whole, NotATask):
        log.once("accept", f"kernels will not be used: {whole.reason}", logging.INFO)
    later = None if isinstance(whole, NotATask) else whole
    searcher.enqueue(tasks, later)
    if any(toolchain_of(task.target) for task in tasks) or (later and not tasks):
        compilation.outdate()
    return Found(candidates, later)


def _search_now(
    tasks: list[Task],
    promises: Mapping[str, float],
    candidates: Candidates,
    subject: Subject,
    compilation: Compilation,
) -> Found:
    searcher, durations = compilation.searcher, compilation.durations
    assert searcher is not None
    seconds = _seconds(tasks, promises, candidates, subject, compilation)
    if not seconds:
        if not durations.spent_s(subject.name):  # other graphs of this process took them
            compilation.outdate()
        return Found(candidates)
    rests = {
        whole.task.digest: whole.rest.task
        for whole in candidates.wholes
        if whole.rest and candidates.searchable(whole) and candidates.searchable(whole.rest)
    }
    used_s = compilation.deadline.used_s
    became = searcher.search(tasks, seconds, compilation.recorded, promises, rests)
    passing = {digest for digest, told in became.items() if told.get("passing")}
    said_nothing = bool(became) and passing == became.keys()
    if not (said_nothing or compilation.deadline.is_interrupted):
        durations.spend(subject.name, compilation.deadline.used_s - used_s)
    _note_passing(passing, became, compilation)
    again = {
        one.key.digest: _look_again(one, became, compilation)
        for one in candidates.all
        if candidates.searchable(one)
    }
    found = replace(candidates, known={**candidates.known, **again})
    if any(found.to_search(whole) is not None for whole in found.wholes):
        compilation.outdate()
    return Found(found)


def _without_waiting(missing: dict[str, Task], compilation: Compilation) -> dict[str, Task]:
    """Without tasks whose last searches met failures that may pass, until they are to be searched again."""
    if compilation.options.patient:
        return missing
    waits = compilation.durations.waiting([task.digest for task in missing.values()])
    if waits:
        compilation.outdate()
        log.once(
            "search",
            f"{len(waits)} of {len(missing)} tasks wait up to {max(waits.values()):.0f} s to be searched again: "
            "their last searches were cut off by failures that may pass",
        )
    return {key: task for key, task in missing.items() if task.digest not in waits}


def _note_passing(passing: Set[str], became: Mapping[str, Any], compilation: Compilation) -> None:
    """Say and write down which searches met a failure that may pass: they are done again, sooner or later."""
    begun = {digest for digest, told in became.items() if told.get("begun") is not False}
    compilation.durations.note_failures(passing, begun - passing)
    if passing:
        reason = became[min(passing)].get("reason")
        log.once(
            "search", f"{len(passing)} of {len(became)} tasks are to be searched again: {reason}"
        )


def _seconds(
    tasks: list[Task],
    promises: Mapping[str, float],
    candidates: Candidates,
    subject: Subject,
    compilation: Compilation,
) -> float:
    """Seconds for the search, 0 where it is not worth beginning; says so where earlier processes left work over."""
    options = compilation.options
    seconds = compilation.left_s
    if options.acceptance != "trust":
        took = compilation.durations.took(ACCEPTANCE)
        seconds -= acceptance_reserve(min(options.budget_s, seconds), took)
    spent_s = compilation.durations.spent_s(subject.name)
    if options.patient or not spent_s:
        return seconds if seconds >= LEAST_SEARCH_S else 0.0
    left = sum(promises[task.digest] for task in tasks)
    part = left / max(sum(promises[whole.task.digest] for whole in candidates.wholes), left, 1e-30)
    seconds = allowance(seconds, options.budget_s, spent_s, part)
    log.logger("search").info("%s", left_over(len(candidates.wholes), len(tasks), seconds, spent_s))
    return seconds


def left_over(regions: int, left: int, seconds: float, spent_s: float) -> str:
    """What is said of a graph with which earlier processes did not come to an end, as one line."""
    done = f"{max(regions - left, 0)} of {regions} tasks were searched to the end"
    if seconds:
        return f"{done}; {left} go on for up to {seconds:.0f} s"
    return f"{done}; {left} had {spent_s:.0f} s before, which were too few: {MORE_TIME}"


def _look_again(
    candidate: CandidateRegion, became: Mapping[str, Any], compilation: Compilation
) -> Hit | NoKernel:
    """After a search. became: what was made of each task, by digest."""
    found = compilation.find(candidate.key)
    told = became.get(candidate.task.digest, {}).get("reason")
    if isinstance(found, NoKernel) and found.searchable and told:
        return replace(found, reason=str(told))
    return found
