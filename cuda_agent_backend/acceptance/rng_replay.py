"""The random numbers of a graph, made by Inductor's code, for eager and the oracle to compute with the same ones.

From one seed, Inductor's code makes the same numbers whatever it is fused with. Eager's operators make others.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch.fx import Graph, GraphModule, Node

from cuda_agent_backend.partition.analysis import Analysis

BUFFER = "random_{}"


def random_subgraph(module: GraphModule) -> GraphModule | None:
    """A copy cut down to the random numbers of the graph (see `rng_nodes`) that the rest reads; None without any."""
    if not _read(module.graph):
        return None
    graph = copy.deepcopy(module.graph)
    (output,) = graph.find_nodes(op="output")
    output.args = (tuple(_read(graph)),)
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    return GraphModule(module, graph)


def read_random_from_buffers(module: GraphModule) -> None:
    """Let the rest of the graph read what `fill_buffers` puts there.

    The operators that made the numbers stay in the graph, since positions of nodes have a meaning.
    """
    for number, node in enumerate(_read(module.graph)):
        module.register_buffer(BUFFER.format(number), None)
        with module.graph.inserting_after(node):
            given = module.graph.get_attr(BUFFER.format(number))
        given.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(given)
    module.recompile()


def fill_buffers(module: GraphModule, values: Sequence[torch.Tensor]) -> None:
    """Set the values that the graph reads: what the `random_subgraph` returns."""
    for number, value in enumerate(values):
        setattr(module, BUFFER.format(number), value)


def _read(graph: Graph) -> list[Node]:
    """The random values that something else reads, in graph order."""
    random = Analysis(graph).random
    return [node for node in graph.nodes if node in random and not random.issuperset(node.users)]
