"""What would happen to a model, region by region, and why. Never searches, compiles no kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cuda_agent_backend.codegen import bugs
from cuda_agent_backend.graph.layouts import choosing, inductor_layouts
from cuda_agent_backend.hook.kernel_pass import KernelPass
from cuda_agent_backend.partition.estimate import room
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.partition.regions import partition
from cuda_agent_backend.partition.report import LEFT, GraphReport, RegionReport, describe
from cuda_agent_backend.runtime.kernels import open_kernels
from cuda_agent_backend.tools.capture import capture
from cuda_agent_backend.tools.warm import options_from
from kernel_cache import CacheUnavailable
from sandbox.timing.device_lock import DeviceLock


@dataclass(frozen=True)
class Explanation:
    """The graphs of a model and what is known of their regions. `problem`: why the cache could not be asked, or ""."""

    graphs: tuple[GraphReport, ...]
    problem: str = ""

    @property
    def bugs(self) -> dict[str, str]:
        """By task digest, the bugs of the code generator that keep regions from a kernel."""
        regions = (region for graph in self.graphs for region in graph.regions)
        searched = {r.task: r.reason for r in regions if bugs.REASON in r.reason}
        return searched | {bug.task: bug.reason for bug in bugs.found()}

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "bugs": self.bugs}


def explain(
    model: Callable[..., Any],
    *inputs: Any,
    training: bool = False,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    lock: DeviceLock | None = None,
) -> Explanation:
    """Regions of a model's graphs with their status and reason, and an estimate of the room for improvement.

    Runs the model once (see `warm.warm`). lock: by which that takes turns on the device. Raises `SettingsError` or
    `OptionError` on a wrong wish, and whatever the model raises.
    """
    wishes = replace(options_from(mode, options), search="cached")
    captured = capture(model, inputs, wishes, training=training, lock=lock)
    kernels = open_kernels(wishes.cache_dir, wishes.native_dir)
    reports: list[GraphReport] = []

    def estimate(regions: Sequence[Region], report: GraphReport) -> None:
        reports.append(replace(report, regions=tuple(_estimated(report.regions, regions))))

    for found in captured:
        if isinstance(kernels, CacheUnavailable):
            graph = found.module.graph
            with inductor_layouts(graph):
                regions = partition(graph, min_bytes=wishes.min_bytes)
                estimate(regions, _without_cache(regions, str(kernels)))
        else:
            with choosing(wishes.plain_inductor):
                hook = KernelPass(
                    wishes, kernels, observe=estimate, static_inputs=found.static_inputs
                )
                hook(found.module.graph, is_inference=not training)
    problem = str(kernels) if isinstance(kernels, CacheUnavailable) else ""
    return Explanation(tuple(reports), problem)


def _estimated(
    reports: Sequence[RegionReport], regions: Sequence[Region]
) -> Iterator[RegionReport]:
    """The reports of a graph's regions with what room there is."""
    wholes, current = iter(regions), None
    for report in reports:
        current = current.rest if current and report.beside else next(wholes)
        yield replace(report, room=room(current) if current else None)


def _without_cache(regions: Sequence[Region], problem: str) -> GraphReport:
    found = [describe(region, LEFT, region.reason or problem) for region in regions]
    return GraphReport("", "forward", tuple(found))
