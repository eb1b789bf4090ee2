"""Scatters, and sums put at indices: what they read, and for which there are kernels here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.fx import Node

from cuda_agent_backend.graph.edit import argument, dtype_of, is_tensor, name_of, shape_of

VIEWS_OF_AN_INDEX = (
    torch.ops.aten.unsqueeze.default,
    torch.ops.aten.expand.default,
    torch.ops.aten.permute.default,
)
"""Views that a region of a scatter takes in."""


SCATTERS = ("scatter_add", "scatter_reduce")


MASKED_PUT = "_unsafe_masked_index_put_accumulate"
"""What the gradient of a table of embeddings is: rows at its padding are left out."""


PUTS = ("index_put", "_unsafe_index_put", MASKED_PUT)
"""Scatters of whole slices, by what an index along one dimension names, where they add."""


@dataclass(frozen=True)
class ScatterOperands:
    """What a scatter reads, and along which dimension.

    spread: how many dimensions of the source stand for that one; a put has those of its index there. wraps: whether an
    index below zero counts from the end. mask: where it is false, nothing goes anywhere.
    """

    into: Node
    index: Node
    source: Node
    dim: int
    how: str
    spread: int = 1
    wraps: bool = False
    mask: Node | None = None


def scatter_operands(node: Node) -> ScatterOperands | None:
    """What a scatter reads, be there a sketch for it or not; None of anything else, as a put by several indices."""
    name = name_of(node)
    if name in SCATTERS:
        into, index, source = (argument(node, key) for key in ("self", "index", "src"))
        if not all(is_tensor(x) for x in (into, index, source)) or not shape_of(into):
            return None
        how = "sum" if name == "scatter_add" else str(argument(node, "reduce"))
        return ScatterOperands(
            into, index, source, argument(node, "dim") % len(shape_of(into)), how
        )
    if name not in PUTS or (name != MASKED_PUT and argument(node, "accumulate") is not True):
        return None
    into, indices, source = (argument(node, key) for key in ("self", "indices", "values"))
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(given) != 1 or not all(is_tensor(x) for x in (into, given[0][1], source)):
        return None
    ((dim, index),) = given
    mask = argument(node, "mask") if name == MASKED_PUT else None
    return ScatterOperands(into, index, source, dim, "sum", len(shape_of(index)), True, mask)


def is_scatter(node: Node) -> bool:
    """Whether a node is a scatter for which there are sketches: float32 of fixed size, values where the index names a
    place, results in any order of additions."""
    found = scatter_operands(node)
    if found is None or torch.are_deterministic_algorithms_enabled():
        return False
    into, index, source = found.into, found.index, found.source
    floats = (node, into, source)
    places = (torch.int32, torch.int64)
    if any(dtype_of(x) != torch.float32 for x in floats) or dtype_of(index) not in places:
        return False
    if found.how not in ("sum", "amax", "amin"):
        return False
    if name_of(node) == "scatter_reduce" and argument(node, "include_self") is not True:
        return False
    constants = [argument(x, "fill_value") for x in (into, source) if name_of(x) == "full"]
    return _is_whole(found) and all(
        isinstance(x, int | float) and math.isfinite(x) for x in constants
    )


def _is_whole(found: ScatterOperands) -> bool:
    """Whether values go to all that lies beside a scatter's dimension, and each has a place of its own in the index."""
    into, index, source = map(shape_of, (found.into, found.index, found.source))
    before, behind = into[: found.dim], into[found.dim + 1 :]
    if found.mask is not None and shape_of(found.mask) != (*index, *(1 for _ in behind)):
        return False
    if found.wraps:
        return bool(index) and source == (*before, *index, *behind)
    return index == source and (*index[: found.dim], *index[found.dim + 1 :]) == (*before, *behind)
