"""A rolled graph in three: what is computed before the loop, the loop, and what is computed behind it."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from unittest.mock import patch

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch.fx import Graph, Node

from cuda_agent_backend.codegen.cuda.reroll.form import Part, StepLoop, StepState
from cuda_agent_backend.codegen.cuda.reroll.graph import RolledGraph, State
from cuda_agent_backend.codegen.cuda.reroll.lanes import Lanes
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.lowering.lower import lower
from cuda_agent_backend.graph.canonical import NotATask, linear, tensor_spec
from cuda_agent_backend.graph.edit import Editor, argument, aten, is_tensor, name_of, shape_of
from sandbox.task.specs import TensorSpec, contiguous_stride
from sandbox.task.task import Task

VIEWS = ("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "permute", "expand", "select", "slice", "split",
         "split_with_sizes", "unbind", "transpose", "t", "alias")  # fmt: skip
LIGHT = (*VIEWS, "full", "iota", "scalar_tensor", "constant_pad_nd", "cat", "rev", "convert_element_type")  # fmt: skip
"""What is done anew for each lane beside what torch calls pointwise."""
CHEAP = ("add", "sub", "mul", "neg", "where", "abs", "relu", "maximum", "minimum", "gt", "ge", "lt", "le", "eq", "ne",
         "logical_and", "logical_or", "logical_not", "clone", *LIGHT)  # fmt: skip
"""What is sooner done anew for each lane than written once and read."""


class LoopSplit:
    """Takes the rewritten graph apart: what depends on a state, and light work around, is the loop."""

    def __init__(self, task: Task, graph: Graph, found: RolledGraph) -> None:
        self.task, self.graph, self.found = task, graph, found
        self.given = [state.given for state in found.states]
        inputs = [n for n in graph.nodes if n.op == "placeholder" and n not in self.given]
        self.names = {node: f"in{n}" for n, node in enumerate(inputs)}
        """What lies in memory when the loop begins: inputs, and what is stored before it."""
        made = zip(graph.output_node().args[0], task.output_specs, strict=True)  # type: ignore[arg-type]
        whole = [_with_own_steps(node, spec) for node, spec in made]
        self.results: list[Node] = [node for node, _ in whole]
        self.specs = [spec for _, spec in whole]
        """As the results lie in memory."""
        self.dependent = _dependent(graph, set(self.given))
        self.costly = _costly(graph)
        self.stored: list[Node] = []

    def form(self, *, apart: bool) -> StepLoop:
        """The task as a loop. apart: whether what reads the loop's results is computed behind it, from memory."""
        found, results = self.found, [n for n in self.results if n in self.dependent]
        inputs = list(self.names)
        for number, node in enumerate(self.results):
            if node not in self.dependent:
                self._store(node, f"out{number}")
        initial = [self._initial(state) for state in found.states]
        made = [state.made for state in found.states]
        own = list(found.results) if apart else results
        loop = self._taken([*own, *made], set(self.given))
        behind = self._taken(results, set(own)) if apart else set[Node]()
        called = {n: f"out{self.results.index(n)}" for n in results}
        memory = self.names | ({n: f"joined{i}" for i, n in enumerate(own)} if apart else called)
        read = _read(loop, self.names)
        with _for_lanes():
            region = lower(self._task(loop, [*read, *self.given], [*own, *made]))
        states = tuple(
            StepState(given, to, region.buffers[given].dtype, *start)
            for given, to, start in zip(
                region.inputs[len(read) :], region.outputs[len(own) :], initial, strict=True
            )
        )
        lanes, reduced, stages = Lanes(region, states, found.steps).found()
        buffers = (*region.inputs[: len(read)], *region.outputs[: len(own)])
        names = {b: memory[n] for b, n in zip(buffers, (*read, *own), strict=True)}
        before = self._part(_ancestors(self.stored), inputs, self.stored, memory)
        after = self._part(behind, list(memory), results, memory | called) if apart else None
        between = [*self.stored, *(own if apart else ())]
        kept = {
            memory[n]: tensor_spec(n.meta["val"])
            for n in between
            if not memory[n].startswith("out")
        }
        return StepLoop(
            self.task, found.steps, found.backward, lanes, reduced, stages, states, region, names, before, after, kept
        )  # fmt: skip

    def _part(
        self,
        nodes: Collection[Node],
        known: Iterable[Node],
        outputs: Sequence[Node],
        memory: Mapping[Node, str],
    ) -> Part | None:
        """What makes ``outputs`` of what is known; None where there are none."""
        if not outputs:
            return None
        body = {n for n in nodes if n.op == "call_function"}
        inputs = _read(body, known)
        if not inputs:
            raise Unsupported("a loop with constants that are computed beside it")
        task = self._task(body, inputs, outputs)
        return Part(task, tuple(memory[n] for n in inputs), tuple(memory[n] for n in outputs))

    def _initial(self, state: State) -> tuple[str | float, TensorSpec]:
        node, spec = state.initial, tensor_spec(state.initial.meta["val"])
        value = _constant(node)
        if isinstance(value, bool | int | float):
            return value, spec
        if node in self.names:
            return self.names[node], spec
        if node in self.dependent:
            raise Unsupported("a loop that begins with what it makes")
        if is_tensor(node):
            node = Editor(self.graph, self.graph.output_node()).call(aten.clone.default, node)
            self._store(node)
        return self.names[node], tensor_spec(node.meta["val"])

    def _store(self, node: Node, name: str = "") -> None:
        if not is_tensor(node):
            raise Unsupported("a loop that reads what is no tensor")
        if node not in self.names:
            self.stored.append(node)
            self.names[node] = name or f"kept{len(self.stored)}"

    def _taken(self, outputs: Sequence[Node], known: set[Node]) -> set[Node]:
        """What makes the outputs of what is known and of what lies in memory; more is stored there where it should be
        computed before the loop."""
        found, waiting = set[Node](), list(outputs)
        while waiting:
            node = waiting.pop()
            if node in found:
                continue
            found.add(node)
            for read in node.all_input_nodes:
                at_hand = read in known or read in self.names
                if not at_hand and not self._cut(node, read, found):
                    waiting.append(read)
        return found

    def _cut(self, node: Node, read: Node, found: set[Node]) -> bool:
        """Whether what ``node`` reads is computed before the loop; views of it are not."""
        if read in self.dependent:
            return False
        fewer = _size(read) < _size(node) and self.costly[read]
        if _is_light(read) and not fewer:
            return False
        while _is_view(read):
            found.add(read)
            (read,) = read.all_input_nodes
            if read in self.names:
                return True
        self._store(read)
        return True

    def _task(self, nodes: Iterable[Node], inputs: Sequence[Node], outputs: Sequence[Node]) -> Task:
        own = set(nodes)
        body = [n for n in self.graph.nodes if n in own]
        made = linear(body, inputs, outputs, "cpu")
        if isinstance(made, NotATask):
            raise Unsupported(made.reason)
        wanted = dict(zip(self.results, self.specs, strict=True))
        specs = tuple(wanted.get(n, s) for n, s in zip(outputs, made.output_specs, strict=True))
        return replace(made, target=self.task.target, output_specs=specs)


def _with_own_steps(node: Node, spec: TensorSpec) -> tuple[Node, TensorSpec]:
    """A result whose steps torch joined with another dimension, as it was before, and how it lies in memory then.

    Lanes go through it as they do through what is read. Other results stay as they are.
    """
    joins = name_of(node) in ("view", "reshape") and spec.stride == contiguous_stride(spec.shape)
    if not joins or name_of(node.args[0]) != "permute":
        return node, spec
    source = node.all_input_nodes[0]
    shape = shape_of(source)
    return source, TensorSpec(spec.dtype, shape, contiguous_stride(shape))


def _dependent(graph: Graph, given: set[Node]) -> set[Node]:
    found = set(given)
    for node in graph.nodes:
        if any(read in found for read in node.all_input_nodes):
            found.add(node)
    return found - given


def _ancestors(nodes: Iterable[Node]) -> set[Node]:
    found = set(nodes)
    waiting = list(found)
    while waiting:
        for read in waiting.pop().all_input_nodes:
            if read not in found:
                found.add(read)
                waiting.append(read)
    return found


def _read(nodes: Collection[Node], known: Iterable[Node]) -> list[Node]:
    """What of the known is read by ``nodes``."""
    return [n for n in known if any(user in nodes for user in n.users)]


def _constant(node: Node) -> object:
    """The number that all elements are; None where they are not known."""
    while name_of(node) in (*VIEWS, "clone"):
        node = node.all_input_nodes[0]
    return argument(node, "fill_value") if name_of(node) == "full" else None


def _is_view(node: Node) -> bool:
    return node.target is operator.getitem or name_of(node) in VIEWS


def _is_light(node: Node) -> bool:
    """Whether it is done for each element by itself."""
    if node.target is operator.getitem:
        return _is_light(node.all_input_nodes[0])
    if name_of(node) in LIGHT:
        return True
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _costly(graph: Graph) -> dict[Node, bool]:
    """Whether something costly goes into a node."""
    found: dict[Node, bool] = {}
    for node in graph.nodes:
        own = node.op == "call_function" and node.target is not operator.getitem
        costly = own and name_of(node) not in CHEAP
        found[node] = costly or any(found[read] for read in node.all_input_nodes)
    return found


def _size(node: Node) -> int:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, torch.Tensor) else 0


@contextlib.contextmanager
def _for_lanes() -> Iterator[None]:
    """Inductor keeps results of exponentials and the like that are reused on the cpu, where lanes have them in
    registers, and writes short reductions out, which would read other lanes."""
    whole = inductor_config.patch(unroll_reductions_threshold=1)
    with patch.object(ir, "is_cpu", lambda _: False), whole:
        yield
