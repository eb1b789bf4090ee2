"""Sums and extremes over windows, joined row by row, so that windows that overlap share the rows of both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value

FEWEST_TAPS = 3
"""Elements of a buffer, at constant distances, from which on a result has a window."""


def join_taps_by_rows(body: Body) -> Body:
    """``body`` with sums and extremes of plain taps joined row by row of the window.

    Rows that several windows have are then joined once.
    """
    makers = {i.result: i for i in body.instructions}
    uses: dict[Value, int] = {}
    for v in (*(o for i in body.walk() for o in i.operands if isinstance(o, Value)), *body.results):
        uses[v] = uses.get(v, 0) + 1
    fresh = itertools.count(1 + max((i.result.number for i in body.walk()), default=-1))
    gone: set[Value] = set()
    out: list[Instruction] = []
    for i in reversed(body.instructions):
        if i.result in gone:
            continue
        if i.op not in ("add", "maximum", "minimum"):
            out.append(i)
            continue
        terms, joins = _joined(i, makers, uses)
        taps = [tap for t in terms if (tap := _tap(makers.get(t), makers)) is not None]
        places = [tap.index.as_coeff_Add() for tap in taps if tap.index is not None]
        same = {tap.buffer for tap in taps} | {rest for _, rest in places}
        if len(terms) < 2 * FEWEST_TAPS or len(places) != len(terms) or len(same) != 2:
            out.append(i)
            continue
        gone |= joins
        ordered = sorted(zip((int(n) for n, _ in places), terms, strict=True), key=lambda t: t[0])
        out += reversed(_in_runs(i, ordered, fresh))
    return Body(out[::-1], body.results)


def _joined(
    root: Instruction, makers: dict[Value, Instruction], uses: dict[Value, int]
) -> tuple[list[Value], set[Value]]:
    """What a chain of one operation joins, and the operations of the chain but the last."""
    terms: list[Value] = []
    joins: set[Value] = set()
    waiting = [root]
    while waiting:
        for o in waiting.pop().operands:
            maker = makers.get(o)
            if maker is not None and maker.op == root.op and uses[o] == 1:
                waiting.append(maker)
                joins.add(o)
            else:
                terms.append(o)
    return terms, joins


def _tap(i: Instruction | None, makers: dict[Value, Instruction]) -> Instruction | None:
    """The one load that ``i`` is, masked or converted."""
    while i is not None and i.op != "load":
        if i.op == "masked" and i.body is not None:
            makers = {n.result: n for n in i.body.instructions}
            i = makers.get(i.body.results[0])
        elif i.op in ("to_dtype", "identity"):
            i = makers.get(i.operands[0])
        else:
            return None
    return i


def _in_runs(
    root: Instruction, ordered: list[tuple[int, Value]], fresh: Iterator[int]
) -> list[Instruction]:
    """Joins of ``ordered`` taps: first those at even distances, then the runs."""
    out: list[Instruction] = []

    def join(values: list[Value]) -> Value:
        first, *rest = values
        for v in rest:
            out.append(replace(root, result=Value(next(fresh)), operands=(first, v)))
            first = out[-1].result
        return first

    step = min(b - a for (a, _), (b, _) in itertools.pairwise(ordered))
    runs = [[ordered[0][1]]]
    for (before, _), (at, value) in itertools.pairwise(ordered):
        if at - before == step:
            runs[-1].append(value)
        else:
            runs.append([value])
    join([join(run) for run in runs])
    out[-1] = replace(out[-1], result=root.result)
    return out
