"""Before step 1 of the pass: whether the graph's convolutions keep eager's layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import config
from torch.fx import Graph

from cuda_agent_backend.acceptance.digests import layouts_digest
from cuda_agent_backend.graph.canonical import graph_digest
from cuda_agent_backend.graph.layouts import keep_eagers, optimised
from cuda_agent_backend.hook.compilation import Compilation
from cuda_agent_backend.hook.whole_graph import Subject, known_decision, measure
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.search.budget import layouts_share
from cuda_agent_backend.search.durations import ACCEPTANCE


def choose_layouts(
    graph: Graph, regions: Sequence[Region], compilation: Compilation
) -> dict[str, Any]:
    """Keep eager's layouts where the graph was measured to be faster with them; what was measured.

    regions: of the graph in the layouts that Inductor chooses. Not for training, where the layouts of a forward graph
    are those of its backward graph's inputs.
    """
    if compilation.options.acceptance == "trust" or config.freezing or not optimised(graph):
        return {}
    if all(region.reason is not None for region in regions):
        return {}
    device = _device(graph)
    name = layouts_digest(graph_digest(graph), device, compilation.options.plain_inductor)
    decision = known_decision(compilation, name, ())
    if not decision and compilation.measurer is not None:
        subject = Subject(graph, name, eager_layouts=True)
        seconds = layouts_share(compilation.left_s, compilation.durations.took(ACCEPTANCE))
        if not seconds:
            return {}
        decision = measure(compilation, subject, (), seconds)
    if isinstance(decision, str):
        return {}
    if decision.get("eager_layouts"):
        keep_eagers()
    return decision


def _device(graph: Graph) -> str:
    values = (node.meta.get("val") for node in graph.nodes)
    return next(value.device.type for value in values if isinstance(value, torch.Tensor))
