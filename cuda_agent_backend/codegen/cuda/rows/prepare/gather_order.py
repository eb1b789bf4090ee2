"""Rows made of rows of tables (gathers): when their indices are loaded, and which rows are worked on side by side."""

from __future__ import annotations

from dataclasses import replace

import sympy

from cuda_agent_backend.codegen.ir.kernel import Kernel, RowStage
from cuda_agent_backend.codegen.ir.ssa import GATHER, Body, Instruction, Value

LONG_ROW = 128
"""Elements of a row from which on neighbouring threads find enough neighbours in it alone."""


def gather_indices_first(body: Body) -> Body:
    """``body`` with what leads to the places of gathers at its start, loads before all else.

    A place is tested before it is used, and nothing is loaded ahead of a test: so all loads of places are under way
    before the first test, and all tests done before the first row.
    """
    makers = {i.result: i for i in body.instructions}
    wanted = [o for i in body.instructions if i.op == GATHER for o in i.operands]
    needed: set[Value] = set()
    while wanted:
        value = wanted.pop()
        if isinstance(value, Value) and value in makers and value not in needed:
            needed.add(value)
            wanted += makers[value].operands
    if not needed or any(makers[value].body is not None for value in needed):
        return body

    def turn(i: Instruction) -> int:
        if i.result not in needed:
            return 2
        return 0 if i.op == "load" and not i.operands else 1

    return Body(sorted(body.instructions, key=turn), body.results)


def order_rows_by_reuse(kernel: Kernel) -> Kernel:
    """``kernel`` with rows that read the same side by side: they find it in the L1 cache.

    Loops which most reads along the row do not depend on come last.
    """
    stages = [s for s in kernel.stages if s.points >= LONG_ROW]
    if len(kernel.outer) < 2 or not stages:
        return kernel
    shared = {symbol: 0 for symbol, _ in kernel.outer}
    for stage in stages:
        for symbols in _reads(stage):
            for symbol in shared.keys() - symbols:
                shared[symbol] += 1
    outer = tuple(sorted(kernel.outer, key=lambda dim: shared[dim[0]]))
    return replace(kernel, outer=outer)


def _reads(stage: RowStage) -> list[set[sympy.Symbol]]:
    """The loop variables that each read along the row depends on, through its place as well."""
    inner = {symbol for symbol, _ in stage.inner}
    known: dict[Value, set[sympy.Symbol]] = {}
    found = []
    for i in stage.body.instructions:
        own = set(i.index.free_symbols) if i.index is not None else set()
        for operand in i.operands:
            own |= known.get(operand, set()) if isinstance(operand, Value) else set()
        known[i.result] = own
        if i.op in ("load", GATHER) and own & inner:
            found.append(own)
    return found
