"""The walk of the pass over one graph: steps in order, each taking what the one before gives, none going back.

graph -> regions -> candidates -> found -> accepted -> report and spliced graph
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Graph

from cuda_agent_backend import log
from cuda_agent_backend.acceptance.digests import whole_graph_digest
from cuda_agent_backend.acceptance.whole_graph import WholeGraph
from cuda_agent_backend.graph.canonical import graph_digest
from cuda_agent_backend.graph.layouts import inductor_layouts
from cuda_agent_backend.hook.accept import accept
from cuda_agent_backend.hook.compilation import Compilation
from cuda_agent_backend.hook.layouts import choose_layouts
from cuda_agent_backend.hook.lookup import Candidates, look_up
from cuda_agent_backend.hook.reports import region_reports
from cuda_agent_backend.hook.search import search
from cuda_agent_backend.hook.whole_graph import Subject, is_backward
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.partition.regions import partition
from cuda_agent_backend.partition.report import GraphReport
from cuda_agent_backend.partition.splice import splice

Observe = Callable[[Sequence[Region], GraphReport], None]
"""Is told of the regions of a graph before it is changed, in the layouts that were chosen."""


def walk(
    graph: Graph,
    compilation: Compilation,
    static_inputs: tuple[int, ...] | None,
    may_choose_layouts: bool,
    observe: Observe | None = None,
) -> tuple[GraphReport, WholeGraph | None]:
    """Put kernels into a graph; what became of its regions, and what is to be measured after a background search.

    static_inputs: which inputs are parameters, None where the graph is not to be replayed.
    """
    started = time.perf_counter()
    with inductor_layouts(graph):
        regions = partition(graph, min_bytes=compilation.options.min_bytes)
    layouts: dict[str, Any] = {}
    if may_choose_layouts:
        layouts = choose_layouts(graph, regions, compilation)
    with inductor_layouts(graph):
        if layouts.get("eager_layouts"):  # other strides make other regions
            regions = partition(graph, min_bytes=compilation.options.min_bytes)
        return _from_regions(graph, regions, layouts, compilation, static_inputs, started, observe)


def _from_regions(
    graph: Graph,
    regions: Sequence[Region],
    layouts: dict[str, Any],
    compilation: Compilation,
    static_inputs: tuple[int, ...] | None,
    started: float,
    observe: Observe | None,
) -> tuple[GraphReport, WholeGraph | None]:
    digest = graph_digest(graph) if regions or static_inputs is not None else ""
    eagers = bool(layouts.get("eager_layouts"))
    name = whole_graph_digest(digest, compilation.options.plain_inductor, static_inputs, eagers)
    subject = Subject(graph, name, eagers, static_inputs)
    forced = compilation.options.force
    candidates = _forced(regions, forced) if forced else look_up(regions, compilation)
    found = search(candidates, subject, compilation)
    accepted = accept(found.candidates, subject, compilation)
    report = GraphReport(
        digest,
        "backward" if is_backward(graph) else "forward",
        tuple(region_reports(accepted)),
        dict(accepted.decision),
        time.perf_counter() - started,
        layouts,
    )
    if observe:
        observe(regions, report)
    if accepted.replacements:
        splice(graph, accepted.replacements)
    log.logger("hook").info("%s, in %.0f ms", report.summary(), 1e3 * report.seconds)
    return report, found.later


def _forced(regions: Sequence[Region], count: int) -> Candidates:
    # imports all kernel families, which no user's process needs
    from cuda_agent_backend.hook.forced import force

    return force(regions, count)
