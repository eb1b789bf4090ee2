"""Loops of maps in the order in which what they read was made: what follows a product may then be done in its tiles.

Shuffled channels or pixels, or heads that are joined again, are read across the loops that made them: one loop of the
map has parts of two of the product's. Cut into these parts and put into the product's order, the map's loops are the
product's, and only its stores, and what else it reads, lie across them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import sympy
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from cuda_agent_backend.codegen.analysis.gemm import cut_sizes
from cuda_agent_backend.codegen.ir.indices import coefficient, simplify, with_indices
from cuda_agent_backend.codegen.ir.kernel import Dim
from cuda_agent_backend.codegen.ir.loops import loops_of_parts
from cuda_agent_backend.codegen.ir.region import Stage


def in_order_of_producers(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """``stages`` with maps that read all that one before them made, each element once, in the order of its elements."""
    points: dict[str, int] = {}
    result = []
    for stage in stages:
        result.append(_as_made(stage, points) if stage.kind == "map" else stage)
        points |= {s.buffer: _points(stage.outer) for s in stage.stores if stage.kind != "scan"}
    return tuple(result)


def _points(dims: Sequence[Dim]) -> int:
    return math.prod(size for _, size in dims)


def _as_made(stage: Stage, points: dict[str, int]) -> Stage:
    """A map in the order of the first buffer of as many elements that it reads otherwise."""
    for load in stage.body.loads():
        if load.index is None or points.get(load.buffer or "") != _points(stage.outer):
            continue
        changed = _in_order(*_cut(stage, load.index))
        if changed is not None and changed.outer != stage.outer:
            return changed
    return stage


def _cut(stage: Stage, index: sympy.Expr) -> tuple[Stage, sympy.Expr]:
    """``stage`` with loops cut where ``index`` takes their points apart, and that index over its loops."""
    index = simplify(index, stage.outer)
    cuts = {symbol: {1, size} for symbol, size in stage.outer}
    for part in index.atoms(FloorDiv, ModularIndexing):
        base, divisor, *modulus = part.args
        ends = (divisor, *(divisor * m for m in modulus))
        if base in cuts and all(end.is_Integer for end in ends):
            cuts[base] |= {int(end) for end in ends}
    sizes = {symbol: cut_sizes(sorted(cuts[symbol])) for symbol, _ in stage.outer}
    loops, change = loops_of_parts(
        {s: sizes[s] for s, n in stage.outer if len(sizes[s]) > 1 and math.prod(sizes[s]) == n}
    )
    outer = [own for dim in stage.outer for own in loops.get(dim[0], (dim,))]
    stores = tuple(
        replace(s, index=simplify(s.index.xreplace(change), outer)) for s in stage.stores
    )
    body = with_indices(stage.body, change, outer)
    cut = replace(stage, outer=tuple(outer), body=body, stores=stores)
    return cut, simplify(index.xreplace(change), outer)


def _in_order(stage: Stage, index: sympy.Expr) -> Stage | None:
    """``stage`` with its loops from the largest step of ``index`` to the smallest; None where not all have one."""
    steps = {symbol: coefficient(index, symbol) for symbol, _ in stage.outer}
    if any(not step or step < 0 for step in steps.values()):
        return None
    return replace(stage, outer=tuple(sorted(stage.outer, key=lambda d: -(steps[d[0]] or 0))))
