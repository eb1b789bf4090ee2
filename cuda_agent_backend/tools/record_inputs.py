"""Interprets a post-grad graph on real tensors, and writes down the real inputs of its tasks."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node

from cuda_agent_backend import log
from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.graph.layouts import channels_last, choosing, inductor_layouts
from cuda_agent_backend.options import Options
from cuda_agent_backend.partition.regions import partition
from cuda_agent_backend.runtime.tensor_files import RECORD_LIMIT, record, save
from cuda_agent_backend.tools.captured_graph import CapturedGraph
from sandbox.accuracy.perturb_inputs import flat_storage
from sandbox.timing.device_lock import DeviceLock

Stride = tuple[int, ...]

HOST_SHARE = 0.5
"""Of the host's memory that is to be had, what copies of real inputs may take in all."""


def interpret(
    found: CapturedGraph,
    arguments: Sequence[Any],
    folder: Path | None,
    lock: DeviceLock,
    options: Options,
) -> Any:
    """Run a graph on real tensors, and the first time write down the inputs of its tasks."""
    if folder is None or found.recorded or found.inputs:
        with lock.shared():
            return _Recorder(found.module, {}).run(*arguments)
    with choosing(options.plain_inductor):
        forms = list(_forms_in_both_layouts(found.module.graph))
    wanted: dict[Node, set[Stride]] = defaultdict(set)
    for form in forms:
        for node, stride in _reads(form):
            wanted[node].add(stride)
    recorder = _Recorder(found.module, wanted)
    if forms:  # before the graph changes them
        found.inputs = record(folder / "graph", arguments)
    with lock.shared():
        result = recorder.run(*arguments)
    for form in forms:
        place = folder / form.task.digest[:16]
        if not place.exists() and all(read in recorder.kept for read in _reads(form)):
            try:
                save(place, [recorder.kept[read] for read in _reads(form)])
            except OSError as error:
                log.once("hook", f"a region is searched on drawn inputs alone: {error}")
                continue
            found.recorded[form.task.digest] = str(place.absolute())
    return result


def _forms_in_both_layouts(graph: Graph) -> Iterator[Canonical]:
    """In those that Inductor chooses and in eager's: which of them the graph will have is measured later."""
    with inductor_layouts(graph):
        found = list(canonical_forms(graph))
    yield from found
    if channels_last(graph):
        yield from canonical_forms(graph)


def _reads(form: Canonical) -> Iterator[tuple[Node, Stride]]:
    for node, spec in zip(form.inputs, form.task.inputs, strict=True):
        yield node, spec.stride


def canonical_forms(graph: Graph) -> Iterator[Canonical]:
    every = (one for region in partition(graph) for one in (region, region.rest) if one)
    for region in every:
        form = None if region.reason else canonical(region.nodes, region.outputs, region.target)
        if isinstance(form, Canonical):
            size = sum(spec.extent * spec.itemsize for spec in form.task.inputs)
            if size <= RECORD_LIMIT:
                yield form


class _Recorder(Interpreter):
    """Interprets a graph and keeps copies of some values as they were when they were made."""

    def __init__(self, module: GraphModule, wanted: Mapping[Node, set[Stride]]) -> None:
        super().__init__(module)
        self.wanted = wanted
        self.kept: dict[tuple[Node, Stride], torch.Tensor] = {}
        self._left = int(HOST_SHARE * _host_memory())

    def run_node(self, n: Node) -> Any:
        """Run a node and keep its value if it is wanted, with the strides that are wanted."""
        value = super().run_node(n)
        for stride in self.wanted.get(n, ()):
            try:
                self._keep(n, value.detach(), stride)
            except (MemoryError, RuntimeError) as error:
                log.once("hook", f"some regions are searched on drawn inputs alone: {error}")
        return value

    def _keep(self, n: Node, value: torch.Tensor, stride: Stride) -> None:
        """On the host: a network's values in both layouts may not fit beside the network. Raises MemoryError where they
        do not fit there either, RuntimeError where torch finds no memory."""
        as_it_is = tuple(value.stride()) == stride
        if not as_it_is and 0 in stride:
            return
        line = flat_storage(value) if as_it_is else value
        size = line.numel() * line.element_size()
        if size > self._left:
            raise MemoryError(
                f"copies of real inputs would take more than {HOST_SHARE:.0%} of what the host has"
            )
        if as_it_is:
            self.kept[n, stride] = line.to("cpu", copy=True).as_strided(value.shape, stride)
        else:
            laid_out = torch.empty_strided(value.shape, stride, dtype=value.dtype)
            self.kept[n, stride] = laid_out.copy_(value)
        self._left -= size


def _host_memory() -> int:
    """Bytes of the host's memory that can be had without swapping; all where the system does not say."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        line = next(one for one in lines if one.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    return sys.maxsize
