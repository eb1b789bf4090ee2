"""Reductions over few points, such as those of a window, as maps that combine one point after the other."""

from __future__ import annotations

import itertools
from dataclasses import replace

import sympy

from cuda_agent_backend.codegen.ir.kernel import Kernel, RowStage
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value, numbered_from

MOST_POINTS = 64
"""As many as a thread has registers for beside what else it holds."""
COMBINED = {"sum": "add", "max": "maximum", "min": "minimum"}


def unrolled(kernel: Kernel) -> Kernel:
    """``kernel`` without loops, where all that it has are reductions over few points; else as it is."""
    short = all(
        s.kind == "reduce" and s.combine in COMBINED and s.points <= MOST_POINTS
        for s in kernel.stages
        if s.inner
    )
    nested = any(i.body is not None for s in kernel.stages for i in s.body.instructions)
    if not short or nested:
        return kernel
    stages = tuple(_in_order(s) if s.inner else s for s in kernel.stages)
    return replace(kernel, stages=stages)


def _in_order(stage: RowStage) -> RowStage:
    found: list[Instruction] = []
    totals: list[Value] = []
    symbols = [symbol for symbol, _ in stage.inner]
    for place in itertools.product(*(range(size) for _, size in stage.inner)):
        at = dict(zip(symbols, map(sympy.Integer, place), strict=True))
        body = numbered_from(_next(found), stage.body).substitute(at)
        found += body.instructions
        (value,) = body.results
        if totals:
            operands = (totals[-1], value)
            found.append(Instruction(Value(_next(found)), COMBINED[stage.combine], operands))
            value = found[-1].result
        totals.append(value)
    return replace(stage, kind="map", combine="", inner=(), body=Body(found, (totals[-1],)))


def _next(instructions: list[Instruction]) -> int:
    return 1 + max((i.result.number for i in instructions), default=-1)
