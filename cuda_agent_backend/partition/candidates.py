"""Candidate regions: parts of a graph that a kernel may replace, with their tasks and keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cuda_agent_backend.graph.canonical import Canonical, NotATask, canonical
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.partition.splice import Replacement
from cuda_agent_backend.runtime.machine import key_of
from kernel_cache import KernelKey
from sandbox.task.task import Task


@dataclass(frozen=True)
class CandidateRegion:
    """A region, how it lies in its task, and the key of a kernel for it. rest: of the region's rest (see `Region`)."""

    region: Region
    canonical: Canonical
    key: KernelKey
    rest: CandidateRegion | None = None

    @property
    def task(self) -> Task:
        """What a kernel for it computes."""
        return self.canonical.task

    @property
    def both(self) -> Iterator[CandidateRegion]:
        """Itself and its rest."""
        yield self
        if self.rest is not None:
            yield self.rest

    @property
    def replacements(self) -> dict[str, Replacement]:
        """What could be put in its place, by key digest (see `splice.choose`)."""
        return {c.key.digest: Replacement(c.region, c.canonical, c.key.op_key) for c in self.both}


def candidate_of(region: Region) -> CandidateRegion | NotATask:
    """The region as a candidate under the flags set now, or why it is left to Inductor."""
    if region.reason:
        return NotATask(region.reason)
    form = canonical(region.nodes, region.outputs, region.target)
    if isinstance(form, NotATask):
        return form
    rest = candidate_of(region.rest) if region.rest is not None else None
    known = rest if isinstance(rest, CandidateRegion) else None
    return CandidateRegion(region, form, key_of(form.task), known)
