"""Step 3 of the pass: have kernels searched for the candidates without one, as the mode says."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cuda_agent_backend import log
from cuda_agent_backend.acceptance.whole_graph import WholeGraph
from cuda_agent_backend.graph.canonical import NotATask
from cuda_agent_backend.hook.compilation import Compilation
from cuda_agent_backend.hook.lookup import Candidates
from cuda_agent_backend.hook.whole_graph import Subject
from cuda_agent_backend.partition.candidates import CandidateRegion
from cuda_agent_backend.partition.estimate import saving
from cuda_agent_backend.runtime.kernels import Hit, NoKernel
from cuda_agent_backend.runtime.machine import toolchain_of
from cuda_agent_backend.search.budget import acceptance_reserve
from cuda_agent_backend.search.durations import ACCEPTANCE, Durations
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
    if not missing or searcher is None or mode == "cached":
        return Found(candidates)
    promises = _promises(candidates)
    tasks = sorted(missing.values(), key=lambda task: -promises[task.digest])
    if mode == "background":
        return _enqueue(tasks, candidates, subject, searcher, compilation)
    return _search_now(tasks, promises, candidates, searcher, compilation)


def _promises(candidates: Candidates) -> dict[str, float]:
    """What kernels may save, by their task's digest: the sum over all regions of the task."""
    promises: dict[str, float] = defaultdict(float)
    for one in candidates.all:
        promises[one.task.digest] += saving(one.region)
    return promises


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
    if any(toolchain_of(task.target) for task in tasks):
        compilation.outdate()
    return Found(candidates, later)


def _search_now(
    tasks: list[Task],
    promises: Mapping[str, float],
    candidates: Candidates,
    searcher: Searcher,
    compilation: Compilation,
) -> Found:
    options = compilation.options
    budget = compilation.left_s
    if options.acceptance != "trust":
        took = Durations(options.cache_dir).took(ACCEPTANCE)
        budget -= acceptance_reserve(budget, took)
    rests = {
        whole.task.digest: whole.rest.task
        for whole in candidates.wholes
        if whole.rest and candidates.searchable(whole) and candidates.searchable(whole.rest)
    }
    became = searcher.search(tasks, budget, compilation.recorded, promises, rests)
    again = {
        one.key.digest: _look_again(one, became, compilation)
        for one in candidates.all
        if candidates.searchable(one)
    }
    found = replace(candidates, known={**candidates.known, **again})
    if any(found.to_search(whole) is not None for whole in found.wholes):
        compilation.outdate()
    return Found(found)


def _look_again(
    candidate: CandidateRegion, became: Mapping[str, Any], compilation: Compilation
) -> Hit | NoKernel:
    """After a search. became: what was made of each task, by digest."""
    found = compilation.find(candidate.key)
    told = became.get(candidate.task.digest, {}).get("reason")
    if isinstance(found, NoKernel) and found.searchable and told:
        return replace(found, reason=str(told))
    return found
