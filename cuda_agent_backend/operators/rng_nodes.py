"""What a graph makes of random numbers alone, such as the masks of dropouts.

Inductor draws them and kernels of ours read what was drawn: a byte for each element of a mask. Where a model learns,
the mask is kept for its backward in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch.fx import Node

from cuda_agent_backend.operators.kinds import Kind


def rng_nodes_of(
    nodes: Iterable[Node], kinds: Mapping[Node, Kind], fusible: Callable[[Node], bool]
) -> set[Node]:
    """Random numbers that nothing fusible decides, and what is made of them and constants as long as elements do not
    become wider: a mask, but not what it is converted to. nodes: in graph order."""
    found: set[Node] = set()
    for node in nodes:
        others = [n for n in node.all_input_nodes if n not in found]
        if kinds[node] is Kind.RANDOM:
            own = not any(map(fusible, others))
        else:
            own = fusible(node) and _is_as_narrow(node, found)
            own = own and all(kinds[n] is Kind.CONSTANT for n in others)
        if own:
            found.add(node)
    return found


def _is_as_narrow(node: Node, found: set[Node]) -> bool:
    """Whether a node reads what is drawn, and its elements take no more bytes."""
    reads = [_bytes(n) for n in node.all_input_nodes if n in found]
    return bool(reads) and 0 < _bytes(node) <= max(reads)


def _bytes(node: Node) -> int:
    value = node.meta.get("val")
    return value.element_size() if isinstance(value, torch.Tensor) else 0
