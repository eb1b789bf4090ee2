"""Step 2 of the pass: from regions to candidates, with what the kernel cache knows of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cuda_agent_backend.graph.canonical import NotATask
from cuda_agent_backend.hook.compilation import Compilation
from cuda_agent_backend.partition.candidates import CandidateRegion, candidate_of
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.runtime.kernels import Hit, NoKernel
from kernel_cache import KernelKey


@dataclass(frozen=True)
class Candidates:
    """The regions of a graph, each as a candidate or with the reason why it is none, in the graph's order.

    known: by key digest, the kernel of a candidate or of its rest, or why there is none.
    """

    places: tuple[tuple[Region, CandidateRegion | NotATask], ...]
    known: Mapping[str, Hit | NoKernel]

    @property
    def wholes(self) -> list[CandidateRegion]:
        """The candidates without their rests."""
        return [found for _, found in self.places if isinstance(found, CandidateRegion)]

    @property
    def all(self) -> list[CandidateRegion]:
        """The candidates, each followed by its rest."""
        return [one for whole in self.wholes for one in whole.both]

    @property
    def hits(self) -> list[CandidateRegion]:
        """Those of `all` with a kernel to use."""
        return [one for one in self.all if isinstance(self.known[one.key.digest], Hit)]

    @property
    def keys(self) -> list[KernelKey]:
        """The keys of `hits`, each once, in the order by which a decision on the graph knows them."""
        return sorted({hit.key for hit in self.hits}, key=lambda key: key.digest)

    def searchable(self, candidate: CandidateRegion) -> bool:
        """Whether a search now could bring a kernel."""
        found = self.known[candidate.key.digest]
        return isinstance(found, NoKernel) and found.searchable

    def negative(self, candidate: CandidateRegion) -> bool:
        """Whether a search was in vain."""
        found = self.known[candidate.key.digest]
        return isinstance(found, NoKernel) and found.negative

    def to_search(self, candidate: CandidateRegion) -> CandidateRegion | None:
        """What of it is to be searched, all of it before its rest."""
        if self.searchable(candidate):
            return candidate
        rest = candidate.rest
        return rest if rest and self.negative(candidate) and self.searchable(rest) else None


def look_up(regions: Iterable[Region], compilation: Compilation) -> Candidates:
    """Ask the cache about all regions; each key once."""
    places = tuple((region, candidate_of(region)) for region in regions)
    keys = {c.key.digest: c.key for c in Candidates(places, {}).all}
    return Candidates(places, {digest: compilation.find(key) for digest, key in keys.items()})
