"""Loops in the order of the scans that they read: a scan from the end is a scan whose results are stored from the end.

Reversing, scanning and reversing again arrives as a scan over a reversed row and a loop that reads what it made from
the end. As the loop's points may be met in any order, it may go along the scan and store from the end instead, and then
it is part of the scan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy

from cuda_agent_backend.sketch.lower import ARG_REDUCTIONS, LoweredRegion, Stage
from cuda_agent_backend.sketch.nest import Dim, Kernel, coefficient, group, simplify, with_indices


def grouped(region: LoweredRegion) -> tuple[Kernel, ...]:
    """The region's kernels, loops in the order of scans where that takes fewer.

    Raises:
        Unsupported: a single stage fits no kernel.
    """
    found = group(region)
    stages = along_scans(region.stages)
    if len(found) == 1 or stages == region.stages:
        return found
    other = group(replace(region, stages=stages))
    return other if len(other) < len(found) else found


def along_scans(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """``stages``, those turned round that read what a scan makes from its end."""
    made = {s.buffer for stage in stages if stage.kind == "scan" for s in stage.stores}
    return tuple(_turned(stage, _backward(stage, made)) for stage in stages)


def _backward(stage: Stage, made: set[str]) -> list[Dim]:
    """Loops of ``stage`` that run from the end of what is ``made``, wherever they run along it."""
    if stage.kind == "scan" or stage.combine in ARG_REDUCTIONS:
        return []
    loops = (*stage.outer, *stage.inner)
    reads = [
        simplify(i.index, loops)
        for i in stage.body.loads()
        if i.buffer in made and i.index is not None
    ]
    steps = {dim: [coefficient(index, dim[0]) for index in reads] for dim in loops}
    return [dim for dim, own in steps.items() if own and all(s is not None and s < 0 for s in own)]


def _turned(stage: Stage, backward: list[Dim]) -> Stage:
    """The same stage with the loops ``backward`` from their end."""
    if not backward:
        return stage
    change: Mapping[sympy.Symbol, sympy.Expr] = {s: n - 1 - s for s, n in backward}
    loops = (*stage.outer, *stage.inner)
    stores = (replace(s, index=simplify(s.index.xreplace(change), loops)) for s in stage.stores)
    body = with_indices(stage.body, dict(change), loops)
    return replace(stage, body=body, stores=tuple(stores))
