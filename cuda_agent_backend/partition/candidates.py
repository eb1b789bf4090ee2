"""What the pass offers of a graph: regions with their tasks and what is known of kernels for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cuda_agent_backend.graph.canonical import Canonical
from cuda_agent_backend.partition.regions import Region
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
from cuda_agent_backend.partition.splice import Replacement
from cuda_agent_backend.runtime.kernels import Hit, NoKernel, lower_bound
from kernel_cache import KernelKey


@dataclass
class Offer:
    """A region with its task, and what is known of a kernel for it. rest: see `Region`."""

    region: Region
    canonical: Canonical
    key: KernelKey
    found: Hit | NoKernel
    rest: Offer | None = None
    dropped: str = ""

    @property
    def both(self) -> Iterator[Offer]:
        """Itself and its rest."""
        yield self
        if self.rest is not None:
            yield self.rest

    @property
    def searchable(self) -> bool:
        """Whether a search now could bring a kernel."""
        return isinstance(self.found, NoKernel) and self.found.searchable

    @property
    def negative(self) -> bool:
        """Whether a search was in vain."""
        return isinstance(self.found, NoKernel) and self.found.negative

    @property
    def wanted(self) -> Offer | None:
        """What is to be searched, all of it before its rest."""
        if self.searchable:
            return self
        return self.rest if self.negative and self.rest and self.rest.searchable else None

    @property
    def ways(self) -> dict[str, Replacement]:
        """See `splice.choose`."""
        return {o.key.digest: Replacement(o.region, o.canonical, o.key.op_key) for o in self.both}


def reports(offer: Offer, used: Sequence[Replacement]) -> list[RegionReport]:
    """Of a region, and of its rest where that is what is searched or used."""
    found, rest = [_report(offer)], offer.rest
    if rest and (offer.negative or any(own.region is rest.region for own in used)):
        found.append(replace(_report(rest), beside=True))
    return found


def _report(offer: Offer) -> RegionReport:
    task = offer.canonical.task.digest
    if isinstance(offer.found, NoKernel):
        status = NEGATIVE if offer.found.negative else MISS if offer.found.searchable else LEFT
        return describe(offer.region, status, offer.found.reason, task=task)
    record = offer.found.record
    speed = record.evidence.get("speedup")
    median = finite(speed.get("median")) if isinstance(speed, dict) else None
    return describe(
        offer.region,
        DROPPED if offer.dropped else HIT,
        offer.dropped,
        task=task,
        label=record.label,
        speedup=median,
        low=lower_bound(record),
        high=finite(speed.get("high")) if isinstance(speed, dict) else None,
        error_ratio=finite(record.evidence.get("error_ratio")),
    )
