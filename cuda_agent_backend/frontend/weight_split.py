"""What depends on weights alone: which part of a graph that is, and the graph cut in two along it."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node

from cuda_agent_backend.operators.kinds import Kind, kind_of

FUSED = (Kind.SOURCE, Kind.VIEW, Kind.CONSTANT, Kind.COMPUTE)
"""What reads its operands as it goes: a value that only these use is not in memory."""
NAMESPACES = ("aten", "prims")
UNDEFINED = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


@dataclass(frozen=True)
class Split:
    """A graph in two. weights: takes the inputs with the numbers ``taken``, returns ``values``, a list.

    rest: takes all inputs of the graph, and then those values. values: fake tensors.
    """

    weights: GraphModule
    taken: tuple[int, ...]
    rest: GraphModule
    values: tuple[Tensor, ...]

    def compute(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """The values for these weights, in memory of their own, with the strides for which the rest is compiled."""
        with torch.inference_mode(False), torch.no_grad():
            pairs = zip(self.weights(*weights), self.values, strict=True)
            return [_strided(value, wanted.stride()) for value, wanted in pairs]


def split_off_weights(gm: GraphModule, static_inputs: Collection[int]) -> Split | None:
    """Cut what only the inputs of these numbers, and constants, go into; None where that is nothing worth keeping.

    gm: a graph of ATen operators with fake values, as AOTAutograd gives it to Inductor.
    """
    graph = gm.graph
    inputs = graph.find_nodes(op="placeholder")
    sources = _sources(graph, {inputs[number] for number in static_inputs})
    kept = _worth_keeping(graph, sources)
    ends = [node for node in kept if any(user not in kept for user in node.users)]
    if not ends:
        return None
    used = set().union(*(sources[node] for node in ends))
    taken = [number for number, node in enumerate(inputs) if node in used]
    weights = _graph_of(gm, [inputs[number] for number in taken], kept, ends)
    rest = _rest_of(gm, set(kept), ends)
    values = tuple(node.meta["val"] for node in ends)
    return Split(weights, tuple(taken), rest, values)


def _sources(graph: Graph, weights: set[Node]) -> dict[Node, set[Node]]:
    """The weights and constants that go into each node, of nodes into which nothing else goes."""
    changed = {
        arg for node in graph.nodes if _changes_something(node) for arg in node.all_input_nodes
    }
    found: dict[Node, set[Node]] = {}
    for node in graph.nodes:
        if (node in weights or node.op == "get_attr") and node not in changed:
            if isinstance(node.meta.get("val"), Tensor):
                found[node] = {node}
        elif _is_pure(node) and all(arg in found for arg in node.all_input_nodes):
            found[node] = set().union(*(found[arg] for arg in node.all_input_nodes))
    return found


def _changes_something(node: Node) -> bool:
    target = node.target
    if node.op != "call_function" or target is operator.getitem:
        return False
    return not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable


def _is_pure(node: Node) -> bool:
    """Whether it gives the same values each time, and does nothing else."""
    target = node.target
    if node.op != "call_function":
        return False
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in NAMESPACES:
        return False
    name = target.overloadpacket.__name__
    seeded = torch.Tag.nondeterministic_seeded in target.tags
    return not (target._schema.is_mutable or seeded or name in UNDEFINED)


def _worth_keeping(graph: Graph, sources: Mapping[Node, set[Node]]) -> list[Node]:
    """The nodes to cut off, in order: as far as their ends are values that are computed, and worth their memory."""
    kinds: dict[Node, Kind] = {}
    for node in graph.nodes:
        kinds[node] = kind_of(node, kinds)
    computed: dict[Node, bool] = {}
    for node, own in sources.items():
        through = any(computed[arg] for arg in node.all_input_nodes)
        computed[node] = through if node in own or _looks(node, kinds) else bool(own)
    kept = {node: None for node in sources if computed[node]}
    for node in reversed(list(kept)):
        users = [user for user in node.users if user not in kept]
        if users and not _is_worth_it(node, users, sources[node], kinds):
            del kept[node]
    return list(kept)


def _looks(node: Node, kinds: Mapping[Node, Kind]) -> bool:
    """Whether it is a part or a view of what it is given."""
    return node.target is operator.getitem or kinds[node] is Kind.VIEW


def _is_worth_it(
    node: Node, users: Sequence[Node], weights: Collection[Node], kinds: Mapping[Node, Kind]
) -> bool:
    """Whether to keep a value: it has to be in memory anyway, or is no larger than what it is computed from.

    Never what the graph returns, or a view of it: that is the caller's, who may write to it.
    """
    value = node.meta.get("val")
    if type(value) is not FakeTensor or not _is_fixed(value):
        return False
    if any(_is_returned(user, kinds) for user in users):
        return False
    if any(kinds[user] not in FUSED for user in users):
        return True
    return bytes_of(value) <= sum(bytes_of(weight.meta["val"]) for weight in weights)


def _is_returned(user: Node, kinds: Mapping[Node, Kind]) -> bool:
    if user.op == "output":
        return True
    return _looks(user, kinds) and any(_is_returned(next_one, kinds) for next_one in user.users)


def _is_fixed(value: Tensor) -> bool:
    return all(type(number) is int for number in (*value.shape, *value.stride()))


def bytes_of(value: Tensor) -> int:
    return math.prod(value.shape) * value.itemsize


def _graph_of(
    gm: GraphModule, inputs: Sequence[Node], nodes: Sequence[Node], ends: Sequence[Node]
) -> GraphModule:
    """The graph from these inputs to these ends."""
    graph, copies = Graph(), dict[Node, Node]()
    for node in inputs:
        copies[node] = graph.node_copy(node)

    def copy_of(node: Node) -> Node:
        if node not in copies:
            copies[node] = graph.node_copy(node, copy_of)
        return copies[node]

    graph.output([copy_of(node) for node in ends])
    return GraphModule(gm, graph)


def _rest_of(gm: GraphModule, without: Collection[Node], ends: Sequence[Node]) -> GraphModule:
    """The graph without these nodes, whose ends it takes as inputs."""
    graph, copies = Graph(), dict[Node, Node]()
    inputs = gm.graph.find_nodes(op="placeholder")
    for node in inputs:
        copies[node] = graph.node_copy(node)
    for number, node in enumerate(ends):
        copies[node] = graph.placeholder(f"prepacked_{number}")
        copies[node].meta.update(val=node.meta["val"])
    for node in gm.graph.nodes:
        if node not in copies and node not in without:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    made = GraphModule(gm, graph)
    made.meta.update(gm.meta)
    return made


def _strided(value: Tensor, stride: tuple[int, ...]) -> Tensor:
    if value.stride() == stride:
        return value
    made = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)
    return made.copy_(value)
