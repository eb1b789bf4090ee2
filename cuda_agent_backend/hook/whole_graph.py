"""What is known or measured of a whole graph, for its layouts and for its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import Graph

from cuda_agent_backend import log
from cuda_agent_backend.acceptance.digests import kernel_set_digest
from cuda_agent_backend.acceptance.whole_graph import WholeGraph, graph_task, real_inputs
from cuda_agent_backend.graph.canonical import NotATask
from cuda_agent_backend.graph.origins import origins
from cuda_agent_backend.hook.compilation import MORE_TIME, Compilation
from cuda_agent_backend.search.budget import enough_to_measure
from kernel_cache import CacheUnavailable, Corrupt, KernelKey

LEAST_MEASUREMENT_S = 1.0
"""In less, no process that measures is even up."""


@dataclass(frozen=True)
class Subject:
    """A graph under measurement. name: its own in the acceptance table.

    eager_layouts, static_inputs: see `WholeGraph`.
    """

    graph: Graph
    name: str
    eager_layouts: bool = False
    static_inputs: tuple[int, ...] | None = None

    def with_kernels(self, keys: Sequence[KernelKey]) -> WholeGraph | NotATask:
        """The graph to be measured with these kernels, or why it cannot be."""
        task = graph_task(self.graph)
        if isinstance(task, NotATask):
            return task
        known = origins(self.graph)
        layouts, static_inputs = self.eager_layouts, self.static_inputs
        return WholeGraph(self.name, task, tuple(keys), "", layouts, static_inputs, known)


def is_backward(graph: Graph) -> bool:
    """Whether a post-grad graph is that of a backward pass."""
    return any(node.op == "placeholder" and "tangents" in node.name for node in graph.nodes)


def known_decision(
    compilation: Compilation, name: str, keys: Sequence[KernelKey]
) -> dict[str, Any] | str:
    """What is known of a graph with these kernels, "" if nothing, or why that cannot be read."""
    known = compilation.kernels.cache.get_acceptance(name, kernel_set_digest(keys))
    if isinstance(known, Corrupt | CacheUnavailable):
        log.once("cache", f"left to Inductor: {known}")
        compilation.outdate()
    return known if isinstance(known, dict) else str(known or "")


def measure(
    compilation: Compilation, subject: Subject, keys: Sequence[KernelKey], budget_s: float
) -> dict[str, Any] | str:
    """Have a graph measured with these kernels; the decision, or why there is none.

    What is not decided within the time is measured by a later process, which torch's caches must not keep from it.
    """
    if compilation.measurer is None:
        return "the whole graph was not measured with it; warm the model first"
    whole = subject.with_kernels(keys)
    if isinstance(whole, NotATask):
        return f"the whole graph cannot be measured: {whole.reason}"
    if budget_s < LEAST_MEASUREMENT_S:
        compilation.outdate()
        return "the time was up before the whole graph was measured"
    place = f"{subject.name}:{kernel_set_digest(keys)}"
    _, too_few_s = compilation.durations.read().cut.get(place, (0.0, 0.0))
    if not compilation.options.patient and not enough_to_measure(budget_s, too_few_s):
        return f"measuring the whole graph takes more than {too_few_s:.0f} s: {MORE_TIME}"
    examples = () if is_backward(subject.graph) else compilation.examples
    with real_inputs(whole.graph, examples) as folder:
        inputs = compilation.inputs or folder
        found = compilation.measurer.accept(replace(whole, inputs=inputs), budget_s)
    if not isinstance(known_decision(compilation, subject.name, keys), dict):
        compilation.outdate()
        if compilation.deadline.is_up:
            compilation.durations.note_cut(place, budget_s)
    return found
