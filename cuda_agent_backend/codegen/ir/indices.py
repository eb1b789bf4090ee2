"""Arithmetic of indices over loops: simplify them, take them apart, bound them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import sympy
from torch._inductor.sizevars import SizeVarAllocator
from torch.utils._sympy.functions import FloorDiv, Identity, ModularIndexing

from cuda_agent_backend.codegen.ir.facts import not_negative
from cuda_agent_backend.codegen.ir.index_divisions import decided, from_zero
from cuda_agent_backend.codegen.ir.kernel import Dim
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction


def simplify(expr: sympy.Expr, ranges: Iterable[Dim]) -> sympy.Expr:
    """``expr`` with divisions and remainders removed where the ranges allow it."""
    return _simplified(expr, tuple(ranges))


@functools.lru_cache(maxsize=1 << 16)
def _simplified(expr: sympy.Expr, ranges: tuple[Dim, ...]) -> sympy.Expr:
    """Every schedule of a kernel asks for the same, and loops written out ask thousands of times."""
    plain = sympy.expand(expr.replace(Identity, lambda inner: inner))
    if not plain.has(FloorDiv, ModularIndexing):
        return plain
    found = sympy.expand(SizeVarAllocator().simplify_with_ranges(plain, dict(ranges)))
    if not found.has(FloorDiv, ModularIndexing):
        return found
    return sympy.expand(decided(found, dict(ranges)))


def with_dividends_from_zero(body: Body, ranges: Sequence[Dim]) -> Body:
    """``body`` with no index that divides what is below zero, over the loops ``ranges``; see `from_zero`.

    Under a mask a dividend may be below zero where the mask does not hold: nothing is read there.
    """
    sizes = dict(ranges)

    def of(body: Body, known: Sequence[sympy.Expr], before: Sequence[Instruction]) -> Body:
        around = (*before, *body.instructions)

        def one(i: Instruction) -> Instruction:
            if i.body is not None:
                facts = (*known, *not_negative(body, i.operands[0], before))
                return replace(i, body=of(i.body, facts, around))
            if i.index is None or not i.index.has(FloorDiv, ModularIndexing):
                return i
            index = from_zero(i.index, sizes, lambda base: never_negative(base, ranges, known))
            return replace(i, index=index)

        return Body([one(i) for i in body.instructions], body.results)

    return of(body, (), ())


def row_major(dims: Iterable[Dim]) -> sympy.Expr:
    """The number of a point of the loops, in their order."""
    number: sympy.Expr = sympy.S.Zero
    for symbol, size in dims:
        number = number * size + symbol
    return sympy.expand(number)


def coefficient(expr: sympy.Expr, symbol: sympy.Symbol) -> int | None:
    """Constant ``c`` with ``expr = c * symbol + rest`` and ``rest`` free of it; None where not linear."""
    if symbol not in expr.free_symbols:
        return 0
    linear = expr.coeff(symbol, 1)
    if not linear.is_Integer or symbol in (expr - linear * symbol).expand().free_symbols:
        return None
    return int(linear)


def with_indices(body: Body, change: dict[sympy.Symbol, sympy.Expr], ranges: Sequence[Dim]) -> Body:
    """``body`` with variables replaced in every index, simplified over the loops ``ranges``."""

    def one(b: Body) -> Body:
        instructions = [
            replace(
                i,
                index=simplify(i.index.xreplace(change), ranges) if i.index is not None else None,
                body=one(i.body) if i.body is not None else None,
            )
            for i in b.instructions
        ]
        return Body(instructions, b.results)

    return one(body)


def _least(expr: sympy.Expr, ranges: Iterable[Dim]) -> int | None:
    """The least that ``expr`` is within its loops; None where it is not linear in them."""
    total, rest = 0, expr
    for symbol, size in ranges:
        c = coefficient(expr, symbol)
        if c is None:
            return None
        total += min(0, c * (size - 1))
        rest = rest - c * symbol
    constant = sympy.expand(rest)
    return total + int(constant) if constant.is_Integer else None


def never_negative(
    expr: sympy.Expr, ranges: Sequence[Dim], known: Sequence[sympy.Expr] = (), steps: int = 3
) -> bool:
    """Whether ``expr`` is nowhere less than zero, given that nothing in ``known`` is.

    ``steps``: multiples of what is known that may be taken off until the loops alone say so.
    """
    least = _least(expr, ranges)
    if least is not None and least >= 0:
        return True
    for fact, (symbol, _) in itertools.product(known if steps else (), ranges):
        whole, part = coefficient(expr, symbol), coefficient(fact, symbol)
        if whole and part and whole % part == 0 and whole // part > 0:
            rest = sympy.expand(expr - whole // part * fact)
            if never_negative(rest, ranges, known, steps - 1):
                return True
    return False


def stays_within(index: sympy.Expr, size: int, ranges: Sequence[Dim]) -> bool:
    """Whether ``index`` surely names one of ``size`` elements at every point of its loops."""
    return all(never_negative(e, ranges) for e in (index, size - 1 - index))
