"""The random numbers of a graph, drawn as by Inductor's code, for eager and the oracle to compute with the same ones.

By one seed, Inductor's code draws the same numbers whatever it is fused with. Eager's operators draw others.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch.fx import Graph, GraphModule, Node

from cuda_agent_backend.partition.regions import Analysis

NAME = "drawn_{}"


def only_draws(module: GraphModule) -> GraphModule | None:
    """A copy cut down to what is drawn in the graph (see `drawn`) and read by the rest; None where nothing is."""
    if not _read(module.graph):
        return None
    graph = copy.deepcopy(module.graph)
    (output,) = graph.find_nodes(op="output")
    output.args = (tuple(_read(graph)),)
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    return GraphModule(module, graph)


def read_from_buffers(module: GraphModule) -> None:
    """Let the rest of the graph read what `fill` puts there. What drew it stays: positions of nodes have a meaning."""
    for number, node in enumerate(_read(module.graph)):
        module.register_buffer(NAME.format(number), None)
        with module.graph.inserting_after(node):
            given = module.graph.get_attr(NAME.format(number))
        given.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(given)
    module.recompile()


def fill(module: GraphModule, values: Sequence[torch.Tensor]) -> None:
    """values: those of `only_draws`."""
    for number, value in enumerate(values):
        setattr(module, NAME.format(number), value)


def _read(graph: Graph) -> list[Node]:
    """What is drawn and read by something that is not, in graph order."""
    drawn = Analysis(graph).drawn
    return [node for node in graph.nodes if node in drawn and not drawn.issuperset(node.users)]
