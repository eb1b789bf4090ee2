"""A whole graph as a task to be measured, with the real inputs it was called with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph

from cuda_agent_backend.graph.canonical import NotATask, linear
from cuda_agent_backend.operators.kinds import Kind, kind_of
from cuda_agent_backend.runtime.tensor_files import record
from kernel_cache import KernelKey
from kernel_cache.fields import Fields
from kernel_cache.record import key_from
from sandbox import scratch
from sandbox.task.task import Task


@dataclass(frozen=True)
class WholeGraph:
    """A graph to be measured. name: its own in the acceptance table. keys: of the kernels that it could use.

    inputs: a folder with real inputs of it, "" if there is none. eager_layouts: its convolutions keep eager's layouts,
    with the kernels and without. static_inputs: which inputs are parameters, where the graph may be replayed; that is
    then measured, too; None where it may not. origins: of its operators (see `graph.origins`).

    Without kernels and without replay it is eager's layouts that are measured, against those that Inductor chooses.
    """

    name: str
    graph: Task
    keys: tuple[KernelKey, ...] = ()
    inputs: str = ""
    eager_layouts: bool = False
    static_inputs: tuple[int, ...] | None = None
    origins: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "name": self.name,
            "graph": self.graph.to_json(),
            "kernels": [key.to_fields() for key in self.keys],
            "inputs": self.inputs,
            "eager_layouts": self.eager_layouts,
            "static_inputs": self.static_inputs,
            "origins": self.origins,
        }


@contextmanager
def real_inputs(graph: Task, examples: Sequence[Any]) -> Iterator[str]:
    """A folder with what a graph is called with, for as long as it is measured; "" where `record` makes none."""
    with ExitStack() as stack:
        folder = ""
        with suppress(OSError):
            place = stack.enter_context(scratch.folder("inputs"))
            with unset_fake_temporarily():
                folder = record(Path(place) / "graph", examples, graph.inputs)
        yield folder


def graph_task(graph: Graph) -> Task | NotATask:
    """A whole graph as a task: what its mutations would store is an output instead."""
    kinds: dict[torch.fx.Node, Kind] = {}
    inputs, body, outputs = [], [], []
    targets = set()
    for node in graph.nodes:
        kind = kinds[node] = kind_of(node, kinds)
        if node.op == "placeholder":
            inputs.append(node)
        elif node.op == "output":
            outputs += [n for n in node.all_input_nodes if kinds[n] is not Kind.SOURCE]
        elif kind is Kind.MUTATION:
            if node.target is not torch.ops.aten.copy_.default:
                return NotATask(f"{node.target} changes its inputs")
            outputs.append(node.args[1])
        elif node.op != "get_attr":
            body.append(node)
        if isinstance(value := node.meta.get("val"), torch.Tensor):
            targets.add(value.device.type)
    if len(targets) != 1:
        return NotATask(f"it uses {len(targets)} kinds of devices")
    wanted = [
        n
        for n in dict.fromkeys(outputs)
        if isinstance(n.meta.get("val"), torch.Tensor) and kinds[n] is not Kind.MUTATION
    ]
    return linear(body, inputs, wanted, targets.pop())


def keys_of(request: Mapping[str, Any]) -> list[KernelKey]:
    """The kernels that the JSON of a `Whole` names."""
    return [key_from(Fields("request.kernels", fields)) for fields in request["kernels"]]
