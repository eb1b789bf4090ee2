"""What a condition says of the indices where it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy

from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value

AT_LEAST: dict[str, Callable[[sympy.Expr, sympy.Expr], sympy.Expr]] = {
    "lt": lambda a, b: b - a - 1,
    "le": lambda a, b: b - a,
    "gt": lambda a, b: a - b - 1,
    "ge": lambda a, b: a - b,
}
"""Comparisons as something that is not negative."""


def not_negative(body: Body, condition: Value, before: Sequence[Instruction]) -> list[sympy.Expr]:
    """Index expressions that are not negative where ``condition``, made in ``body`` or ``before`` it, holds."""
    made = {i.result: i for i in (*before, *body.instructions)}

    def index(operand: object) -> sympy.Expr | None:
        i = made.get(operand) if isinstance(operand, Value) else None
        if i is not None and i.op == "constant" and str(i.operands[0]).lstrip("-").isdigit():
            return sympy.Integer(str(i.operands[0]))
        return i.index if i is not None and i.op == "index_expr" else None

    def of(value: object) -> list[sympy.Expr]:
        i = made.get(value) if isinstance(value, Value) else None
        if i is None:
            return []
        if i.op in ("logical_and", "bitwise_and", "and_"):
            return [fact for o in i.operands for fact in of(o)]
        if i.op not in AT_LEAST:
            return []
        a, b = (index(o) for o in i.operands)
        return [] if a is None or b is None else [sympy.expand(AT_LEAST[i.op](a, b))]

    return of(condition)
