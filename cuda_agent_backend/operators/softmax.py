"""A softmax along rows that is written out, as torch does it for attention or Inductor for GPUs."""

from __future__ import annotations

import operator

from torch.fx import Node

from cuda_agent_backend.graph.edit import (
    argument,
    is_zero,
    name_of,
    shape_of,
)
from cuda_agent_backend.operators.look_through import Chain
from cuda_agent_backend.operators.masked_operands import (
    MINUS_INFINITY,
)


def softmax_of(node: Node, chain: Chain) -> tuple[Node, bool] | None:
    """The scores of which ``node`` is the softmax along the last dimension, and whether rows of masked keys are 0."""
    guard, weights = None, node
    if name_of(node) == "where":
        guard, zero, weights = (argument(node, name) for name in ("condition", "self", "other"))
        if not is_zero(zero) or not isinstance(weights, Node):
            return None
    raised, total = _operands(weights, "div")
    shifted, _ = _operands(raised, "exp")
    scores, highest = _operands(shifted, "sub")
    if scores is None:
        return None
    joined = _joined(highest, total, scores)
    apart = _along_rows(total, "sum", raised) and _along_rows(highest, "amax", scores)
    if joined is None and not apart:
        return None
    passed = [] if guard is None else _guarding(guard, scores)
    if passed is None:
        return None
    taken = (node, weights, raised, total, shifted, highest, joined, *passed)
    chain.inner |= {n for n in taken if n is not None}
    return scores, guard is not None


def _operands(node: Node | None, name: str) -> tuple[Node | None, Node | None]:
    """Up to two operands of a call of that name, None where there is none or another call."""
    if node is None or name_of(node) != name or node.kwargs:
        return None, None
    first, second, *_ = (*node.args, None)
    return (
        first if isinstance(first, Node) else None,
        second if isinstance(second, Node) else None,
    )


def _along_rows(node: Node | None, name: str, of: Node | None) -> bool:
    """Whether a node reduces the last dimension of another one and keeps it."""
    if node is None or name_of(node) != name or node.args[0] is not of:
        return False
    dims, rank = argument(node, "dim"), len(shape_of(node))
    listed = [dims] if isinstance(dims, int) else list(dims or ())
    kept, dtype = argument(node, "keepdim"), argument(node, "dtype")
    return kept is True and dtype is None and [d % rank for d in listed] == [rank - 1]


def _joined(highest: Node | None, total: Node | None, scores: Node) -> Node | None:
    """The operator that gives both maximum and sum of the scores' rows, as Inductor writes a softmax on GPUs."""
    both = [n for n in (highest, total) if n is not None and n.target is operator.getitem]
    if [n.args[1] for n in both] != [0, 1] or both[0].args[0] is not both[1].args[0]:
        return None
    joined = both[0].all_input_nodes[0]
    read, dim, *_ = (*joined.args, None, None)
    online = "prepare_softmax_online" in str(joined.target)
    return joined if online and read is scores and dim in (-1, len(shape_of(scores)) - 1) else None


def _guarding(guard: object, scores: Node) -> list[Node] | None:
    """The nodes of ``not any(not scores == -inf)`` along rows; None where that is something else."""
    passed: list[Node] = []
    for name in ("logical_not", "any", "logical_not", "eq"):
        if not isinstance(guard, Node) or name_of(guard) != name:
            return None
        passed.append(guard)
        guard = guard.args[0]
    _, reduced, hidden, compared = passed
    right = guard is scores and compared.args[1] == MINUS_INFINITY
    return passed if right and _along_rows(reduced, "any", hidden) else None
