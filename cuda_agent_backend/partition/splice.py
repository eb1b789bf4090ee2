"""Put one operator call in the place of a region."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch.fx import Graph, Node

from cuda_agent_backend import log
from cuda_agent_backend.graph.canonical import Canonical
from cuda_agent_backend.graph.convolution_grad import only_needed
from cuda_agent_backend.graph.inductor_lowering import carry_task, give_lowering
from cuda_agent_backend.partition.region import Region


@dataclass(frozen=True)
class Replacement:
    """A region, how it lies in its task, and the number of the kernel that computes it."""

    region: Region
    canonical: Canonical
    op_key: int


def choose(
    ways: Iterable[Mapping[str, Replacement]], kernels: Collection[str]
) -> list[Replacement]:
    """What to put in with some kernels (key digests): at most one way for each region.

    ways: for each region by kernel, first that for all of it, then that for what is beside its product.
    """
    firsts = (next((own for name, own in way.items() if name in kernels), None) for way in ways)
    return [found for found in firsts if found is not None]


def splice(graph: Graph, replacements: Sequence[Replacement]) -> None:
    """Replace every region, sort and lint the graph.

    The kernels must be bound: fake values are computed from their plans. If anything fails, the graph is put back as
    it was and the exception passes. If only what the kernels leave without use cannot be taken out, that is logged and
    stays: it costs time at most.
    """
    from torch._inductor.pattern_matcher import stable_topological_sort

    swapped: list[tuple[Node, Node, list[Node]]] = []
    added: list[Node] = []
    try:
        for replacement in replacements:
            _insert(graph, replacement, swapped, added)
        stable_topological_sort(graph)
        graph.lint()
    except BaseException:
        _put_back(graph, swapped, added)
        raise
    try:
        _take_out_unused(graph, replacements)
    except Exception as error:
        log.once("splice", f"what no one uses stays in a graph: {type(error).__name__}: {error}")


def _take_out_unused(graph: Graph, replacements: Sequence[Replacement]) -> None:
    inside = {node for replacement in replacements for node in replacement.region.nodes}
    for node in reversed(list(graph.nodes)):
        if node in inside and not node.users:
            graph.erase_node(node)
    only_needed(graph)


def _insert(
    graph: Graph,
    replacement: Replacement,
    swapped: list[tuple[Node, Node, list[Node]]],
    added: list[Node],
) -> None:
    outputs = replacement.canonical.outputs
    # What another region gave is its kernel's by now; the region's own node would keep it all alive.
    instead = {node: result for node, result, _ in swapped}
    inputs = [instead.get(node, node) for node in replacement.canonical.inputs]
    with graph.inserting_after(replacement.region.nodes[-1]):
        call = _call(graph, replacement.op_key, inputs, [group[0] for group in outputs])
    carry_task(replacement.op_key, replacement.canonical.task)
    added.append(call)
    results = [call]
    if len(outputs) > 1:
        results = []
        last = call
        for index, group in enumerate(outputs):
            with graph.inserting_after(last):
                last = graph.call_function(operator.getitem, (call, index))
            last.meta["val"] = group[0].meta["val"]
            added.append(last)
            results.append(last)
    for result, group in zip(results, outputs, strict=True):
        for node in group:
            swapped.append((node, result, list(node.users)))
            node.replace_all_uses_with(result)


def _call(graph: Graph, op_key: int, inputs: Sequence[Node], outputs: Sequence[Node]) -> Node:
    from sandbox.launcher import op_for

    op = op_for(len(inputs), len(outputs))
    give_lowering(op)
    call = graph.call_function(op, (op_key, *inputs))
    values = tuple(output.meta["val"] for output in outputs)
    call.meta["val"] = values[0] if len(values) == 1 else values
    # Without it Inductor ignores the strides that the operator needs.
    call.meta["eager_input_vals"] = ((op_key, *(node.meta["val"] for node in inputs)), {})
    for name in ("stack_trace", "nn_module_stack"):
        if name in outputs[0].meta:
            call.meta[name] = outputs[0].meta[name]
    return call


def _put_back(
    graph: Graph, swapped: Sequence[tuple[Node, Node, list[Node]]], added: Sequence[Node]
) -> None:
    """Undo replacements, last first."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    for node, result, users in reversed(swapped):
        for user in users:
            user.replace_input_with(result, node)
    for node in reversed(added):
        graph.erase_node(node)
    with contextlib.suppress(AssertionError):
        stable_topological_sort(graph)
