"""Outputs of a model that hold positions: which others than eager's are right, by the rules of the judge."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cuda_agent_backend.bench.traced import given_of, traced
from cuda_agent_backend.graph.canonical import NotATask, linear
from sandbox.accuracy.oracle import PositionRule, exact_operands, position_rules, run_oracle
from sandbox.accuracy.positions import PositionCheck
from sandbox.graph.build import build_graph
from sandbox.task.task import Task

log = logging.getLogger(__name__)


class Positions:
    """Of one model. Where it has no graph of which that could be known, integers are to be equal to eager's."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._found: _Rules | None = None
        self._looked = False

    def checks(
        self, inputs: Sequence[Any], outputs: Sequence[Tensor]
    ) -> Mapping[int, PositionCheck]:
        """What outputs that hold positions are checked by, by output number. outputs: for these inputs, on the device
        where they are to be checked.

        Where positions point into what is computed, the graph is computed in float64 as a whole for that, which may
        raise torch.OutOfMemoryError.
        """
        if all(tensor.dtype is not torch.int64 for tensor in outputs):
            return {}
        if not self._looked:
            self._found, self._looked = _rules_of(self._model, inputs), True
        if self._found is None:
            return {}
        device = outputs[0].device
        return self._found.checks([x.to(device) for x in given_of(self._model, inputs)])


@dataclass(frozen=True)
class _Rules:
    """Of one model, whose graph is the task's."""

    task: Task
    module: torch.fx.GraphModule
    rules: Mapping[int, PositionRule]

    def checks(self, given: Sequence[Tensor]) -> dict[int, PositionCheck]:
        with torch.no_grad():
            operands = exact_operands(self.task, self.module, given)
        if operands is None:
            operands = run_oracle(self.task, self.module, given).operands
        return {number: rule.check(operands[number]) for number, rule in self.rules.items()}


def _rules_of(model: nn.Module, inputs: Sequence[Any]) -> _Rules | None:
    """None without any, and where there is no graph."""
    try:
        graph = traced(model, inputs).graph
        outputs = list(graph.find_nodes(op="output")[0].args[0])
        body = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
        target = outputs[0].meta["val"].device.type
        task = linear(body, graph.find_nodes(op="placeholder"), outputs, target)
        if isinstance(task, NotATask):
            raise ValueError(task.reason)
        rules = position_rules(task)
        return _Rules(task, build_graph(task), rules) if rules else None
    except Exception as error:
        log.warning("integers are held to eager's: %s: %s", type(error).__name__, error)
        return None
