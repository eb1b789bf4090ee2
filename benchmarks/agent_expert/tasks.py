"""From a practice file to the task that the agent gets: the way of any model, on a device that need not be there."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.coverage import PRACTICE, Covered, _graphs
from cuda_agent_backend.canonical import Canonical, canonical
from cuda_agent_backend.layouts import inductor_layouts
from cuda_agent_backend.options import parse
from cuda_agent_backend.partition import partition
from cuda_agent_backend.settings import Settings
from sandbox.task import Task


class NotOneTask(ValueError):
    """The practice file is not one region that is a task."""


def task_of(name: str) -> Task:
    """The task of a practice file, by path without suffix. Raises `NotOneTask`.

    Tensors hold no memory. Where torch does not trace for cuda here, it is traced on the cpu and moved.
    """
    options = replace(parse(Settings.from_environment(), None, None), min_bytes=0)
    found: list[Task] = []
    for graph in _graphs(PRACTICE / f"{name}.py", options, Covered(name)):
        with inductor_layouts(graph):
            for region in partition(graph):
                form = canonical(region.nodes, region.outputs, region.target)
                if region.reason or not isinstance(form, Canonical):
                    raise NotOneTask(f"{name}: {region.reason or form.reason}")
                found.append(form.task)
    if len(found) != 1:
        raise NotOneTask(f"{name}: {len(found)} regions")
    return found[0]
