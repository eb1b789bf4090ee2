"""Puts kernels into a graph that was rebuilt from its task."""

from __future__ import annotations

import torch

from cuda_agent_backend.graph.layouts import inductor_layouts
from cuda_agent_backend.partition.candidates import CandidateRegion, candidate_of
from cuda_agent_backend.partition.regions import partition
from cuda_agent_backend.partition.splice import choose, splice


def insert_kernels(module: torch.fx.GraphModule, kernels: frozenset[str]) -> frozenset[str]:
    """Splice the kernels (key digests, bound already) wherever their regions are; returns those that found no place.

    The kernel of what is beside a product has a place also where one for the whole region is used.
    """
    with inductor_layouts(module.graph):
        found = [candidate_of(region) for region in partition(module.graph)]
        places = [one.replacements for one in found if isinstance(one, CandidateRegion)]
        splice(module.graph, choose(places, kernels))
    module.recompile()
    return kernels - {kernel for place in places for kernel in place}
