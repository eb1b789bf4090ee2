"""What a kernel for a region may save, estimated from the graph alone: no code is compiled and nothing is timed."""

from __future__ import annotations

import math

from torch.fx import Node

from cuda_agent_backend.graph.convolution_grad import is_gradient
from cuda_agent_backend.graph.edit import argument, shape_of
from cuda_agent_backend.operators.kinds import Kind, kind_of, kind_of_lasting
from cuda_agent_backend.operators.products import product_sizes
from cuda_agent_backend.operators.views import is_copy, is_zero_padding
from cuda_agent_backend.partition.analysis import STARTING_A_LEVEL
from cuda_agent_backend.partition.node_values import is_selection, size_in_bytes
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.rewrite.vanishing import vanishes_within

SLACK = 0.1
"""The part of a region's least traffic that may be saved where Inductor moves no byte too many."""
PRODUCT_SLACK = 0.2
SORT_PASSES = 8.0
"""How often a library's sort moves its bytes, to the nearest handful: measured, it takes 14 times the least traffic."""
MULTIPLICATIONS_PER_BYTE = 5
"""How many multiplications a cpu's core makes in the time in which it moves a byte, to the nearest handful."""
STEP_BYTES = 20_000_000
"""What could be moved while a library does a step of a recurrent layer, some 10 microseconds, mostly of waiting."""


def saving(region: Region) -> float:
    """What a kernel may save, in bytes that could be moved in that time: to order searches by, and no more.

    It is what Inductor moves beyond the least, a little of that least, and a part of what matrix products take.
    0 where sizes are not known.
    """
    estimate = room(region)
    if estimate is None:
        return 0.0
    kinds = _kinds(region)
    work = sum(_saved_multiplications(node, kinds[node]) for node in region.nodes)
    waits = sum(STEP_BYTES * _steps(node, kinds[node]) for node in region.nodes)
    return region.moved * (estimate - 1.0 + SLACK) + work / MULTIPLICATIONS_PER_BYTE + waits


def _kinds(region: Region) -> dict[Node, Kind]:
    kinds: dict[Node, Kind] = dict.fromkeys(region.inputs, Kind.SOURCE)
    for node in region.nodes:
        kinds[node] = kind_of(node, kinds)
        is_whole = kinds[node] is not Kind.VANISHING or vanishes_within(
            node, region.nodes, region.outputs
        )
        if not is_whole:
            kinds[node] = kind_of_lasting(node)
    return kinds


def _saved_multiplications(node: Node, kind: Kind) -> float:
    """A part of those of a matrix product or an attention, all of a product that a rewrite does away with."""
    if kind is Kind.VANISHING:
        return _multiplications(node, kind)
    if kind is Kind.RECURRENT or kind not in STARTING_A_LEVEL:
        return 0
    return PRODUCT_SLACK * _multiplications(node, kind)


def _steps(node: Node, kind: Kind) -> int:
    """Of a recurrent layer, those of all layers one after the other; 0 for any other node."""
    if kind is not Kind.RECURRENT or is_selection(node):
        return 0
    first = argument(node, "batch_first")
    steps = shape_of(argument(node, "x"))[1 if first else 0]
    return int(steps * argument(node, "num_layers"))


def _multiplications(node: Node, kind: Kind) -> int:
    """Those of a matrix product, a convolution, its gradient or an attention, 0 for a selection from it."""
    if is_selection(node) and not is_gradient(node):
        return 0
    if kind is Kind.ATTENTION:
        query, key = (node.args[i].meta["val"].shape for i in (0, 1))  # type: ignore[union-attr]
        return int(2 * math.prod(query) * key[-2])
    return int(math.prod(product_sizes(node)))


def room(region: Region) -> float | None:
    """Estimated bytes that Inductor's kernels move over those that one kernel must, None where sizes are not known.

    Inductor starts another kernel, or another pass over its data, after each reduction that later values depend on;
    what is needed in several passes is read in each of them. An estimate from the graph alone: caches may hide it.
    """
    if region.reason or not region.moved:
        return None
    if any(kind is Kind.SORT for kind in _kinds(region).values()):
        return SORT_PASSES
    stage: dict[Node, int] = dict.fromkeys(region.inputs, 0)
    reads: dict[Node, set[int]] = {}
    for node in region.nodes:
        stage[node] = max(
            (stage[read] + _reduces(read) for read in node.all_input_nodes), default=0
        )
        for read in node.all_input_nodes:
            if read in region.inputs or stage[read] != stage[node]:
                reads.setdefault(read, set()).add(stage[node])
    moved = sum(map(size_in_bytes, region.outputs)) + _copied(region)
    for read, stages in reads.items():
        moved += len(stages) * min(size_in_bytes(read), _cheapest(read, region))
    return max(1.0, moved / region.moved)


def _copied(region: Region) -> int:
    """Bytes of the copies that Inductor makes for products: each is written and read."""
    kinds, needed, moved = _kinds(region), set[Node](), 0
    for node in reversed(region.nodes):
        if node in needed and (is_copy(node) or is_zero_padding(node)):
            moved += 2 * size_in_bytes(node)
        if node in needed or kinds[node] is Kind.PRODUCT:
            needed |= set(node.all_input_nodes)
    return moved


def _cheapest(node: Node, region: Region) -> int:
    """What it costs to have a value in a later pass: reading it, or reading anew what it is made of."""
    inputs = set(region.inputs)
    waiting, seen = [node], {node}
    total = 0
    while waiting:
        current = waiting.pop()
        if current in inputs or _reduces(current):
            total += size_in_bytes(current)
            continue
        for read in current.all_input_nodes:
            if read not in seen:
                seen.add(read)
                waiting.append(read)
    return total


def _reduces(node: Node) -> bool:
    name = str(node.target).split(".")[1] if str(node.target).count(".") >= 2 else ""
    return name in {"sum", "mean", "amax", "amin", "max", "min", "var_mean", "var", "prod"} | {
        "argmax",
        "argmin",
        "any",
        "all",
        "cumsum",
        "cumprod",
        "logcumsumexp",
    }
