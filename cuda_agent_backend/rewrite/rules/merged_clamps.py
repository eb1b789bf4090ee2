"""A chain of clamps by constants is one clamp: min(max(x, a), b) with the bounds that follow from all of them.

With a <= b, a further max(., c) gives max(a, c) and max(b, c), a further min(., d) likewise. It holds for infinities,
and NaN passes through clamps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import Editor, argument, aten, calls, is_float, name_of, replace
from cuda_agent_backend.rewrite.rule import Rule

CLAMPS = ("clamp_min", "clamp_max", "clamp", "relu", "hardtanh")


@dataclass(frozen=True)
class Bounds:
    """Least and greatest result, and how many operators made them so."""

    low: float = -math.inf
    high: float = math.inf
    operators: int = 0

    def clamped(self, low: float | None, high: float | None) -> Bounds:
        """After one more clamp."""
        a, b = self.low, self.high
        if low is not None:
            a, b = max(a, low), max(b, low)
        if high is not None:
            a, b = min(a, high), min(b, high)
        return Bounds(a, b, self.operators + 1)

    @property
    def needed(self) -> int:
        """Operators that it takes."""
        return (self.low != -math.inf) + (self.high != math.inf)


def limits(node: Node) -> tuple[float | None, float | None] | None:
    """The constant bounds of a clamp; None for anything else."""
    match name_of(node):
        case "relu":
            return 0.0, None
        case "clamp_min":
            found = argument(node, "min"), None
        case "clamp_max":
            found = None, argument(node, "max")
        case "clamp":
            found = argument(node, "min"), argument(node, "max")
        case "hardtanh":
            found = argument(node, "min_val"), argument(node, "max_val")
        case _:
            return None
    plain = all(b is None or (isinstance(b, int | float) and not math.isnan(b)) for b in found)
    return found if plain else None


def chain_of(node: Node) -> tuple[Node, Bounds]:
    """What a chain of clamps ends with this one starts from, and their bounds together."""
    found = limits(node)
    if found is None or not is_float(node):
        return node, Bounds()
    source = argument(node, "self")
    if len(source.users) == 1:
        start, before = chain_of(source)
    else:
        start, before = source, Bounds()
    return start, before.clamped(*found)


def apply(graph: Graph) -> bool:
    changed = False
    for node in reversed(calls(graph, *CLAMPS)):
        start, bounds = chain_of(node)
        if not node.users or bounds.operators <= max(bounds.needed, 1):
            continue
        at, made = Editor(graph, node), start
        if bounds.low != -math.inf:
            made = at.call(aten.clamp_min.default, made, bounds.low)
        if bounds.high != math.inf:
            made = at.call(aten.clamp_max.default, made, bounds.high)
        replace(node, made)
        changed = True
    return changed


RULE = Rule("merged_clamps", apply, exact=True)
