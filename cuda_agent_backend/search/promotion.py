"""Promotion into the kernel cache: what came of a search is kept with its evidence."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cuda_agent_backend.json_values import plain
from cuda_agent_backend.search.outcome import SearchOutcome, SearchResult
from kernel_cache import (
    KernelCache,
    KernelKey,
    NegativeRecord,
    Record,
    Stored,
)
from kernel_cache.canonical import sha256
from sandbox.task.task import Task

if TYPE_CHECKING:
    pass

SEARCHED_OUT_S = 30 * 86400.0
CUT_SHORT_S = 86400.0
"""How long a failed search is remembered: one that tried all it knew, and one that the budget ended."""


def is_usable(known: object) -> bool:
    """Whether what the cache holds under a key is a kernel to use as it is."""
    from cuda_agent_backend.runtime.machine import why_doubted

    return isinstance(known, Record) and not why_doubted(known)


def keep(
    cache: KernelCache,
    key: KernelKey,
    task: Task,
    found: SearchOutcome,
    policy: str,
    budget_s: float,
    graph_s: float | None = None,
) -> str:
    """Write the record or the negative record; "" or why that failed. Durable when this returns.

    budget_s: seconds that the search had, a share of ``graph_s``; None where nobody knows of a graph.
    """
    now = time.time()
    if isinstance(found, SearchResult):
        record = record_of(key, task, found, now)
        stored = cache.put(record, found.binary)
        return "" if isinstance(stored, Stored) else f"not kept: {stored}"
    if found.keep:
        lasts = SEARCHED_OUT_S if found.exhausted else CUT_SHORT_S
        budget: dict[str, Any] = {"seconds": budget_s}
        if graph_s is not None and not found.exhausted:  # what more seconds might help
            budget["graph_seconds"] = graph_s
        cache.put_negative(NegativeRecord(key, policy, budget, found.reason, now, now + lasts))
    return ""


def record_of(key: KernelKey, task: Task, found: SearchResult, created: float) -> Record:
    """The record of a kernel that won, with the verdict as evidence."""
    from cuda_agent_backend.runtime.machine import LIBRARIES, PROCESSORS, libraries, processors

    verdict, candidate = found.verdict, found.candidate
    evidence: dict[str, Any] = {
        "driver": None,
        "samples": {},
        "errors": verdict.accuracy.to_dict() if verdict.accuracy else {},
        **verdict.evidence,
        "toolchain": found.toolchain,
        "policy": found.policy,
    }
    if candidate.plan.calls:
        evidence[LIBRARIES] = libraries()
    if any(launch.cooperative for launch in candidate.plan.launches()):
        evidence[PROCESSORS] = processors()
    evidence.setdefault("verifier", "unknown")
    if verdict.speed is not None:
        evidence["speedup"] = verdict.speed.speedup.to_dict()
        evidence["baseline"] = verdict.speed.baseline
    if verdict.accuracy is not None:
        evidence["error_ratio"] = verdict.accuracy.error_ratio
    return Record(
        key=key,
        task=task.to_json(),
        language=candidate.language,
        origin=candidate.origin,
        label=candidate.label,
        source=candidate.source,
        plan=candidate.plan.to_json(),
        binary_digest=sha256(found.binary),
        evidence=plain(evidence),
        created=created,
    )
