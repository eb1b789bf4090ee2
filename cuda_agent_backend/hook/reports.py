"""Step 5 of the pass: what became of each region."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cuda_agent_backend.graph.canonical import NotATask
from cuda_agent_backend.hook.accept import Accepted
from cuda_agent_backend.partition.candidates import CandidateRegion
from cuda_agent_backend.partition.report import (
    DROPPED,
    HIT,
    LEFT,
    MISS,
    NEGATIVE,
    RegionReport,
    describe,
    finite,
)
from cuda_agent_backend.runtime.kernels import NoKernel, lower_bound
from kernel_cache import Record


def region_reports(accepted: Accepted) -> Iterator[RegionReport]:
    """Of each region, and of its rest where that is what is searched or used."""
    used = {id(replacement.region) for replacement in accepted.replacements}
    for region, found in accepted.candidates.places:
        if isinstance(found, NotATask):
            yield describe(region, LEFT, found.reason)
            continue
        yield _report(found, accepted)
        rest = found.rest
        if rest and (accepted.candidates.negative(found) or id(rest.region) in used):
            yield replace(_report(rest, accepted), beside=True)


def _report(candidate: CandidateRegion, accepted: Accepted) -> RegionReport:
    digest, region, task = candidate.key.digest, candidate.region, candidate.task.digest
    found = accepted.candidates.known[digest]
    if isinstance(found, NoKernel):
        status = NEGATIVE if found.negative else MISS if found.searchable else LEFT
        return describe(region, status, found.reason, task=task)
    dropped = accepted.dropped.get(digest, "")
    status = DROPPED if dropped else HIT
    return describe(region, status, dropped, task=task, **_evidence(found.record))


def _evidence(record: Record) -> dict[str, str | float | None]:
    """The fields of a report that a kernel's record fills."""
    speed = record.evidence.get("speedup")
    known = speed if isinstance(speed, dict) else {}
    return {
        "label": record.label,
        "speedup": finite(known.get("median")),
        "low": lower_bound(record),
        "high": finite(known.get("high")),
        "error_ratio": finite(record.evidence.get("error_ratio")),
    }
