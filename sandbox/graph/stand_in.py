"""A task's operators, one by one, in the place of a kernel for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandbox.graph.build import build_graph
from sandbox.launcher.ops import allocate, fit
from sandbox.task.task import Task


class StandIn:
    """Computes what a kernel of the task would, in the same layouts. Raises `TaskError` where this torch cannot."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._graph = build_graph(task)

    def __call__(self, *inputs: Tensor) -> Any:
        """The outputs, each in memory of its own. Raises RuntimeError on inputs that the kernel does not take."""
        device = inputs[0].device
        with torch.no_grad(), torch._C._DisableAutocast():
            given = [
                fit(value, spec, number, device, self._task.target, 1)
                for number, (value, spec) in enumerate(zip(inputs, self._task.inputs, strict=True))
            ]
            found = self._graph(*given)
            results = [
                allocate(spec, device).copy_(value)
                for value, spec in zip(found, self._task.output_specs, strict=True)
            ]
        return results[0] if len(results) == 1 else tuple(results)
