"""Constants that scale operands of matrix products: part of the product's region, where they cost nothing.

``2 * x @ w`` as it stands writes ``2 * x`` and reads it again. The kernel scales the sums instead (`hoist_scale`). So
the multiplication belongs to the region of each product that needs it, as copies do (`operators.copies`), together
with views and copies on the way. A multiplication whose result the operator before it can store is left to that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.fx import Node

from cuda_agent_backend.codegen.analysis.gemm import is_moderate
from cuda_agent_backend.graph.edit import dtype_of, is_tensor, name_of, number, shape_of
from cuda_agent_backend.graph.matrix_product import PRODUCTS
from cuda_agent_backend.operators.copies import lines_stay, matrix_of, stored_so
from cuda_agent_backend.operators.kinds import Kind
from cuda_agent_backend.operators.views import is_copy


def scaled_operands(nodes: Sequence[Node], kinds: Mapping[Node, Kind]) -> set[Node]:
    """Multiplications by constants that only products on cuda need, and what moves their results.

    ``nodes``: in graph order.
    """
    moving: set[Node] = set()
    found: set[Node] = set()
    for node in reversed(nodes):
        leads = bool(node.users) and all(u in moving or _takes(u, node, kinds) for u in node.users)
        if leads and _moves(node, kinds):
            moving.add(node)
        elif leads and _pays(node, moving, kinds):
            found.add(node)
    for node in nodes:
        if node in moving and not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _pays(node: Node, moving: set[Node], kinds: Mapping[Node, Kind]) -> bool:
    """Whether ``node`` scales what lies in memory as a kernel reads it well."""
    source = _source(node, kinds)
    if source is None or stored_so(source, kinds):
        return False
    return lines_stay(source, matrix_of(node, moving))


def _moves(node: Node, kinds: Mapping[Node, Kind]) -> bool:
    return kinds[node] is Kind.VIEW or (kinds[node] is Kind.COMPUTE and is_copy(node))


def _takes(user: Node, node: Node, kinds: Mapping[Node, Kind]) -> bool:
    """Whether ``user`` is a product of numbers of float32 on cuda with ``node`` for a factor, and for nothing else."""
    if kinds[user] is not Kind.PRODUCT or name_of(user) not in PRODUCTS:
        return False
    value, addend = user.meta["val"], user.args[:-2]
    on_cuda = value.device.type == "cuda" and value.dtype == torch.float32
    return on_cuda and node not in addend and node in user.args[-2:]


def _source(node: Node, kinds: Mapping[Node, Kind]) -> Node | None:
    """What ``node`` is a constant multiple of; None where it is something else."""
    if name_of(node) != "mul" or kinds[node] is not Kind.COMPUTE or node.kwargs:
        return None
    for own, other in (node.args, node.args[::-1]):
        if not isinstance(own, Node) or not is_tensor(own) or dtype_of(own) != torch.float32:
            continue
        constant = _constant(other, kinds)
        if constant is not None and is_moderate(constant) and shape_of(own) == shape_of(node):
            return own
    return None


def _constant(value: object, kinds: Mapping[Node, Kind]) -> float | None:
    """A finite number, as it is or as a tensor of it."""
    if isinstance(value, Node) and kinds[value] is Kind.CONSTANT and name_of(value) == "full":
        value = value.args[1]
    return number(value)
