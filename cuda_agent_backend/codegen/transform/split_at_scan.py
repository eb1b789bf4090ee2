"""Loops longer than the scan that they read, in parts: one along the scan, and what lies before and behind it.

A running sum with a zero before it has an element more than its row. In one loop none of its elements lies where those
of the scan do; in parts all but one do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy
import torch

from cuda_agent_backend.codegen.ir.facts import not_negative
from cuda_agent_backend.codegen.ir.indices import (
    coefficient,
    never_negative,
    simplify,
    with_indices,
)
from cuda_agent_backend.codegen.ir.kernel import Dim
from cuda_agent_backend.codegen.ir.region import Stage
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction


def with_loops_split_at_scans(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """``stages`` with maps that are longer than a scan in parts, where those beside it do not read it."""
    scans = {s.buffer: stage for stage in stages if stage.kind == "scan" for s in stage.stores}
    return tuple(part for stage in stages for part in _parts(stage, scans))


def _parts(stage: Stage, scans: Mapping[str, Stage]) -> tuple[Stage, ...]:
    if stage.kind != "map":
        return (stage,)
    for load in stage.body.loads():
        scan = scans.get(load.buffer or "")
        found = _along(stage, load, scan) if scan is not None and load.index is not None else None
        if scan is not None and found is not None:
            return _cut(stage, found[0], found[1], scan)
    return (stage,)


def _along(stage: Stage, load: Instruction, scan: Stage) -> tuple[Dim, int] | None:
    """The loop that runs along a ``scan`` of fewer points, and at which of its points the scan begins."""
    if len(scan.inner) != 1 or load.index is None:
        return None
    ((along, points),) = scan.inner
    step = coefficient(scan.stores[0].index, along)
    index = simplify(load.index, stage.outer)
    first = -index.xreplace({symbol: sympy.S.Zero for symbol, _ in stage.outer})
    for symbol, size in stage.outer:
        if step and coefficient(index, symbol) == step and first.is_Integer and first % step == 0:
            begin = int(first) // step
            if 0 <= begin <= size - points < size - 1 and points < size:
                return (symbol, size), begin
    return None


def _cut(stage: Stage, loop: Dim, begin: int, scan: Stage) -> tuple[Stage, ...]:
    """The part along the scan first, so that it follows the scan; ``stage`` as it is where another part reads that."""
    symbol, size = loop
    ((_, points),) = scan.inner
    end = begin + points
    made = {s.buffer: scan.dtype for s in scan.stores}
    beside = [
        _without(part_of_stage(stage, symbol, low, high), made)
        for low, high in ((0, begin), (end, size))
        if low < high
    ]
    if any(part.reads() & made.keys() for part in beside):
        return (stage,)
    return (part_of_stage(stage, symbol, begin, end), *beside)


def part_of_stage(stage: Stage, symbol: sympy.Symbol, low: int, high: int) -> Stage:
    """``stage`` at the points from ``low`` up to ``high`` of one loop."""
    single = high - low == 1
    change: dict[sympy.Symbol, sympy.Expr] = {
        symbol: sympy.Integer(low) if single else symbol + low
    }
    outer = tuple(
        (s, high - low if s == symbol else n)
        for s, n in stage.outer
        if not (single and s == symbol)
    )
    return replace(
        stage,
        name=f"{stage.name}_{low}",
        outer=outer,
        body=with_indices(stage.body, change, outer),
        stores=tuple(
            replace(s, index=simplify(s.index.xreplace(change), outer)) for s in stage.stores
        ),
    )


def _without(stage: Stage, made: Mapping[str, torch.dtype]) -> Stage:
    """``stage`` without reads of what is ``made`` that its masks never let happen."""

    def one(body: Body, before: Sequence[Instruction], never: bool) -> Body:
        around = (*before, *body.instructions)
        result = []
        for i in body.instructions:
            if i.body is not None:
                facts = not_negative(body, i.operands[0], before)
                off = never or any(never_negative(-1 - fact, stage.outer) for fact in facts)
                i = replace(i, body=one(i.body, around, off))
            elif never and i.op == "load" and i.buffer is not None and i.buffer in made:
                i = Instruction(i.result, "constant", ("0",), made[i.buffer])
            result.append(i)
        return Body(result, body.results)

    return replace(stage, body=one(stage.body, (), False))
