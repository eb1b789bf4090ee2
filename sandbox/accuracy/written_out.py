"""A task's graph with operators that give several results written out as one operator for each.

Eager's own operators disagree about what is not finite: with one infinity in a column, ``var_mean`` says that the mean
is NaN, and ``mean`` says infinity. Where ``var_mean`` makes a NaN, what ``mean`` makes is right as well. Both are
computed here, in float64, from the task alone; nothing that a candidate does reaches them.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def written_out(module: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    """A copy of a task's module in which variance and mean are operators of their own; None where it has none of
    both together."""
    import torch
    from torch.fx import GraphModule

    aten = torch.ops.aten
    if not module.graph.find_nodes(op="call_function", target=aten.var_mean.correction):
        return None
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    result = graph.graph_copy(module.graph, copies)
    graph.output(result)
    for node in graph.find_nodes(op="call_function", target=aten.var_mean.correction):
        _split(graph, node)
    graph.eliminate_dead_code()
    return GraphModule(module, graph)


def _split(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    import torch

    aten = torch.ops.aten
    x = node.args[0]
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    keepdim = bool(node.kwargs.get("keepdim", False))
    for reader in list(node.users):
        if reader.target is not operator.getitem:
            continue
        with graph.inserting_before(reader):
            if reader.args[1] == 0:
                made = graph.call_function(aten.var.correction, node.args, dict(node.kwargs))
            else:
                made = graph.call_function(aten.mean.dim, (x, dim, keepdim))
        made.meta = dict(reader.meta)
        reader.replace_all_uses_with(made)
        graph.erase_node(reader)
