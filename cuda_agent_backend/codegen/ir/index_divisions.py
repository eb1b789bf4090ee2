"""Divisions and remainders in indices that the ranges of their loops decide.

Torch's own simplification (`SizeVarAllocator.simplify_with_ranges`) decides more of them from release to release: what
2.11 leaves keeps an index from being linear, and so reads of it from being vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import sympy
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

Sizes = Mapping[sympy.Symbol, int]
"""Loops by their variables, each from 0 to below its size."""


def decided(expr: sympy.Expr, sizes: Sizes) -> sympy.Expr:
    """``expr``, equal to it at every point of the loops."""

    def floor(base: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
        return _floor(base, divisor, sizes)

    def remainder(base: sympy.Expr, divisor: sympy.Expr, modulus: sympy.Expr) -> sympy.Expr:
        return _remainder(base, divisor, modulus, sizes)

    return expr.replace(FloorDiv, floor).replace(ModularIndexing, remainder)


def from_zero(
    expr: sympy.Expr,
    sizes: Sizes,
    is_not_below: Callable[[sympy.Expr], bool] = lambda dividend: False,
) -> sympy.Expr:
    """``expr``, equal to it at every point of the loops, with no division or remainder of what is below zero at some.

    Kernels divide as C does, on a GPU without a sign, which rounds down what is zero or more only. A dividend of which
    nothing is known, as of a product of loops, stays as it is, and so does one of which ``is_not_below`` says that it
    is zero or more wherever ``expr`` is used.
    """

    # A dividend that is raised within another one may give that one another form, which is looked at anew.
    while (raised := _raised(expr, sizes, is_not_below)) != expr:
        expr = raised
    return expr


def _raised(
    expr: sympy.Expr, sizes: Sizes, is_not_below: Callable[[sympy.Expr], bool]
) -> sympy.Expr:
    def below_zero(base: sympy.Expr, divisor: sympy.Expr) -> int:
        below = _below_zero(base, divisor, sizes)
        return 0 if below and is_not_below(base) else below

    def floor(base: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
        below = below_zero(base, divisor)
        if not below:
            return FloorDiv(base, divisor)
        raised = base + below * divisor
        if raised.as_coeff_Add()[0] % divisor:
            return FloorDiv(raised, divisor) - below
        # Whole multiples of the divisor would be taken out again: an odd number of halves is none.
        return FloorDiv(sympy.expand(2 * raised + 1), 2 * divisor) - below

    def remainder(base: sympy.Expr, divisor: sympy.Expr, modulus: sympy.Expr) -> sympy.Expr:
        below = below_zero(base, divisor * modulus)
        return ModularIndexing(base + below * divisor * modulus, divisor, modulus)

    return expr.replace(FloorDiv, floor).replace(ModularIndexing, remainder)


def _below_zero(base: sympy.Expr, divisor: sympy.Expr, sizes: Sizes) -> int:
    """How many times a divisor has to be added to ``base`` until it is nowhere below zero."""
    ends = _ends(base, sizes) if _is_positive(divisor) else None
    return 0 if ends is None else max(0, -(ends[0] // int(divisor)))


def _floor(base: sympy.Expr, divisor: sympy.Expr, sizes: Sizes) -> sympy.Expr:
    if not _is_positive(divisor):
        return FloorDiv(base, divisor)
    ends = _ends(base, sizes)
    if ends is not None and ends[0] // divisor == ends[1] // divisor:
        return sympy.Integer(ends[0] // divisor)
    if isinstance(base, ModularIndexing):
        inner, by, modulus = base.args
        if _is_positive(by) and _is_positive(modulus) and modulus % divisor == 0:
            return _remainder(inner, by * divisor, modulus // divisor, sizes)
    base, divisor = _coarser(base, divisor, sizes)
    return FloorDiv(base, divisor)


def _remainder(
    base: sympy.Expr, divisor: sympy.Expr, modulus: sympy.Expr, sizes: Sizes
) -> sympy.Expr:
    if not (_is_positive(divisor) and _is_positive(modulus)):
        return ModularIndexing(base, divisor, modulus)
    ends = _ends(base, sizes)
    if ends is not None:
        first, last = (end // (divisor * modulus) for end in ends)
        if first == last:
            return _floor(base, divisor, sizes) - first * modulus
    base, divisor = _coarser(base, divisor, sizes)
    return ModularIndexing(base, divisor, modulus)


def _coarser(base: sympy.Expr, divisor: sympy.Expr, sizes: Sizes) -> tuple[sympy.Expr, sympy.Expr]:
    """The same quotient, rounded down, of fewer terms: those that are together less than what divides all others."""
    terms = base.as_coefficients_dict()
    if not all(factor.is_Integer for factor in terms.values()):
        return base, divisor
    for unit in sorted({math.gcd(int(f), int(divisor)) for f in terms.values()} - {1}):
        rest = sum(factor * term for term, factor in terms.items() if factor % unit)
        ends = _ends(sympy.sympify(rest), sizes)
        if ends is not None and ends[0] >= 0 and ends[1] < unit:
            return sympy.expand((base - rest) / unit), divisor // unit
    return base, divisor


def _is_positive(expr: sympy.Expr) -> bool:
    return bool(expr.is_Integer and expr > 0)


def _ends(expr: sympy.Expr, sizes: Sizes) -> tuple[int, int] | None:
    """Bounds of an expression; None where nothing is known of a part."""
    low = high = 0
    for term, factor in expr.as_coefficients_dict().items():
        own = _ends_of_term(term, sizes)
        if own is None or not factor.is_Integer:
            return None
        scaled = [int(factor) * end for end in own]
        low, high = low + min(scaled), high + max(scaled)
    return low, high


def _ends_of_term(term: sympy.Expr, sizes: Sizes) -> tuple[int, int] | None:
    if term == 1:
        return 1, 1
    if term in sizes:
        return 0, sizes[term] - 1
    if isinstance(term, ModularIndexing) and _is_positive(term.args[2]):
        return 0, int(term.args[2]) - 1
    if isinstance(term, FloorDiv) and _is_positive(term.args[1]):
        inner = _ends(term.args[0], sizes)
        return inner and (inner[0] // int(term.args[1]), inner[1] // int(term.args[1]))
    return None
