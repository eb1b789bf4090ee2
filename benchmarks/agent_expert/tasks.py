"""From a practice file to the task that the agent gets: the way of any model, with a device or without one."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.agent_expert.cpu import FUNCTIONS
from benchmarks.cases import Function
from benchmarks.coverage import PRACTICE
from benchmarks.regions import Offered, offered
from benchmarks.tracing import Wishes, task_of, trace
from cuda_agent_backend.bench.built_task import BuiltTask, Place, build
from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.graph.layouts import inductor_layouts
from cuda_agent_backend.options import Options
from cuda_agent_backend.partition.regions import partition
from cuda_agent_backend.tools.warm import options_from
from sandbox.task.task import Task


class NotOneTask(ValueError):
    """The practice file is not one region that is a task."""


def offered_here(name: str, target: str) -> Offered:
    """The task of a play on a device that is there, and what eager mode runs in its place. Raises `NotOneTask`."""
    found = offered(_Practice(name, target), _options())  # type: ignore[arg-type]
    if isinstance(found, str) or found.regions != 1:
        raise NotOneTask(f"{name}: {found}")
    return found


def task_without_device(name: str) -> Task:
    """The task of a practice file for cuda, on tensors that hold no memory. Raises `NotOneTask`.

    Where torch without CUDA does not trace it on cuda, it is traced on the cpu and moved.
    """
    found: list[Task] = []
    for graph in trace(task_of(PRACTICE / f"{name}.py"), _options(), Wishes()).graphs:
        with inductor_layouts(graph):
            for region in partition(graph):
                form = canonical(region.nodes, region.outputs, region.target)
                if region.reason or not isinstance(form, Canonical):
                    raise NotOneTask(f"{name}: {region.reason or form.reason}")
                found.append(form.task)
    if len(found) != 1:
        raise NotOneTask(f"{name}: {len(found)} regions")
    return found[0]


def _options() -> Options:
    return replace(options_from(None, None), search="cached", min_bytes=0)


class _Practice:
    """A play's model as a case of `benchmarks.regions`."""

    def __init__(self, name: str, target: str) -> None:
        self.name, self.target = name, target

    def make(self) -> tuple[torch.nn.Module, list[torch.Tensor]]:
        """The model and its inputs."""
        if self.name in FUNCTIONS:
            function, shape = FUNCTIONS[self.name]
            return Function(function), [torch.randn(shape)]
        built = build(PRACTICE / f"{self.name}.py", Place(self.target, torch.float32), 0)
        if not isinstance(built, BuiltTask):
            raise NotOneTask(f"{self.name}: {built}")
        return built.model, list(built.draw(0))
