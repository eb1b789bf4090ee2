"""What produces the values of a scatter alone, such as the messages along a graph's edges: gathered rows, scaled.

Inductor makes such values where it adds them up. So their producers belong to the scatter's region, whose kernels make
them too (see `codegen.cuda.scatter`), and to no other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch.fx import Node

from cuda_agent_backend.codegen.ir.printer import STORAGE_TYPES
from cuda_agent_backend.graph.edit import is_tensor, name_of, shape_of
from cuda_agent_backend.operators.back_to_back import is_pointwise
from cuda_agent_backend.operators.kinds import Kind
from cuda_agent_backend.operators.scatters import scatter_operands
from cuda_agent_backend.operators.strided_matrices import is_readable

ROWS = ("index", "_unsafe_index", "index_select", "embedding", "gather")
"""Operators that read what indices name."""
CHEAP = (
    "add", "sub", "mul", "div", "neg", "abs", "relu", "where", "maximum", "minimum", "clone", "convert_element_type",
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not",
)  # fmt: skip
"""What is done anew for each value where several are made of one number; anything else is done once, before."""
FUSED = (Kind.COMPUTE, Kind.VIEW, Kind.RANDOM, Kind.VANISHING)
"""What kernels make together with what they read."""
SMALL = 2
"""How many times smaller than the values what is read beside them may be, whatever makes it."""
MOST_READ = 8
"""Tensors that the messages of one scatter are made of."""


def scatter_producers(nodes: Sequence[Node], kinds: Mapping[Node, Kind]) -> set[Node]:
    """All that is made for the values of scatters on cuda alone; ``nodes`` in graph order."""
    found: set[Node] = set()
    for node in nodes:
        if kinds[node] is Kind.SCATTER:
            made = _made_for(node, nodes, kinds)
            given = {r for n in made for r in n.all_input_nodes if r not in made}
            read = [r for r in given if kinds[r] is not Kind.CONSTANT]
            if len(read) <= MOST_READ and all(_is_readable(r, node) for r in given):
                found |= made
    return found


def _is_readable(node: Node, scatter: Node) -> bool:
    if not is_tensor(node):
        return False
    value, device = node.meta["val"], scatter.meta["val"].device
    return value.dtype in STORAGE_TYPES and is_readable(value, device)


def _made_for(scatter: Node, nodes: Sequence[Node], kinds: Mapping[Node, Kind]) -> set[Node]:
    form = scatter_operands(scatter)
    assert form is not None
    if form.source is form.into:
        return set()
    shape = shape_of(form.source)
    possible: set[Node] = set()

    def leads_on(user: Node) -> bool:
        """What rows are read from is a table, made once, and not for each row."""
        return user is scatter or (user in possible and name_of(user) not in ROWS)

    for node in reversed(nodes):
        aimed = scatter not in node.users or node is form.source
        needed = node.users and aimed and all(map(leads_on, node.users))
        if needed and _is_by_element(node, shape, kinds):
            possible.add(node)
    found: set[Node] = set()
    for node in nodes:
        follows = not found.isdisjoint(node.all_input_nodes)
        begins = kinds[node] is Kind.COMPUTE  # views of what is there are as well made outside
        there = (r in found or _is_there(r, shape, possible, kinds) for r in node.all_input_nodes)
        if node in possible and (follows or begins) and (name_of(node) in ROWS or all(there)):
            found.add(node)
    for node in reversed(nodes):
        if node in found and not all(u in found or u is scatter for u in node.users):
            found.remove(node)
    return found


def _is_there(
    node: Node, shape: tuple[int, ...], possible: set[Node], kinds: Mapping[Node, Kind]
) -> bool:
    """Whether a value is in memory in any case, or small. What a product or another kernel makes is better made into
    messages there, as two products that gate each other are, or the last step of a norm."""
    while kinds[node] is Kind.VIEW and possible.issuperset(node.users) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    if kinds[node] not in (*FUSED, Kind.PRODUCT):
        return True
    others = (u for u in node.users if u not in possible)
    if any(name_of(u) in ROWS or kinds.get(u) not in FUSED for u in others):
        return True
    return is_tensor(node) and SMALL * math.prod(shape_of(node)) <= math.prod(shape)


def _is_by_element(node: Node, shape: tuple[int, ...], kinds: Mapping[Node, Kind]) -> bool:
    """Whether each element is made by itself, of a few others. ``shape``: of the values, of which there may be more."""
    if not is_tensor(node) or node.meta["val"].dtype not in STORAGE_TYPES:
        return False
    if kinds[node] is Kind.VIEW:
        return True
    once = math.prod(shape_of(node)) >= math.prod(shape) or name_of(node) in CHEAP
    made = (once and is_pointwise(node)) or name_of(node) in ROWS
    return made and kinds[node] is Kind.COMPUTE
