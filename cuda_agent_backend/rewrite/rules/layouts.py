"""Permutations one after another are one, and none where they cancel; likewise changes of shape. Copies are dropped.

They move values and change none. On their own they save no work, since our kernels read through all of them; other
rules see more where they are gone.
"""

from __future__ import annotations

from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import (
    Editor,
    argument,
    aten,
    calls,
    is_view,
    name_of,
    replace,
    shape_of,
    unviewed,
)
from cuda_agent_backend.rewrite.rule import Rule


def _order(node: Node) -> list[int]:
    rank = len(shape_of(node))
    return [d % rank for d in argument(node, "dims")]


def _permuted(graph: Graph, node: Node) -> Node | None:
    source, order = argument(node, "self"), _order(node)
    if order == sorted(order):
        found: Node = source
        return found
    if name_of(source) != "permute":
        return None
    inner = _order(source)
    at = Editor(graph, node)
    return at.call(aten.permute.default, argument(source, "self"), [inner[d] for d in order])


def _viewed(graph: Graph, node: Node) -> Node | None:
    source = unviewed(node)
    if shape_of(source) == shape_of(node):
        found: Node = source
        return found
    return Editor(graph, node).shaped(source, shape_of(node)) if is_view(node.args[0]) else None


def apply(graph: Graph) -> bool:
    changed = False
    for node in calls(
        graph, "permute", "clone", "view", "reshape", "_unsafe_view", "unsqueeze", "squeeze"
    ):
        if not node.users:
            continue
        found: Node | None = None
        if name_of(node) == "permute":
            found = _permuted(graph, node)
        elif name_of(node) == "clone":
            found = argument(node, "self")
        elif is_view(node):
            found = _viewed(graph, node)
        if found is not None:
            replace(node, found)
            changed = True
    return changed


RULE = Rule("layouts", apply, exact=True)
