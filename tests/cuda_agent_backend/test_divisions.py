"""Divisions and remainders that the ranges of loops decide: equal at every point, and fewer."""

from __future__ import annotations

import itertools
import operator

import pytest
import sympy
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from cuda_agent_backend.codegen.ir.index_divisions import decided, from_zero
from cuda_agent_backend.codegen.ir.indices import with_dividends_from_zero
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value

X, Y, Z = (sympy.Symbol(name, integer=True, nonnegative=True) for name in "xyz")
SIZES = {X: 4, Y: 5, Z: 8}


@pytest.mark.parametrize(
    ("expr", "want"),
    [
        (FloorDiv(5 * X + Y, 20), sympy.S.Zero),
        (FloorDiv(5 * X + Y + 40, 20), sympy.Integer(2)),
        (ModularIndexing(5 * X + Y, 1, 20), 5 * X + Y),
        (ModularIndexing(5 * X + Y + 20, 1, 20), 5 * X + Y),
        (FloorDiv(10 * X + Y, 20), FloorDiv(X, 2)),
        (ModularIndexing(10 * X + Z, 20, 2), FloorDiv(X, 2)),
        (ModularIndexing(40 * X + 10 * Y + Z, 20, 4), ModularIndexing(4 * X + Y, 2, 4)),
        (FloorDiv(ModularIndexing(100 * X + Y, 3, 12), 4), ModularIndexing(100 * X + Y, 12, 3)),
        (FloorDiv(8 * FloorDiv(5 * X + Y, 7) + Z, 8), FloorDiv(5 * X + Y, 7)),
        (FloorDiv(X - Y, 4), FloorDiv(X - Y, 4)),
        (FloorDiv(X * Y, 4), FloorDiv(X * Y, 4)),
        (FloorDiv(X, sympy.Symbol("s", integer=True, positive=True)), None),
    ],
)
def test_what_ranges_decide_is_left_out(expr: sympy.Expr, want: sympy.Expr | None) -> None:
    assert decided(expr, SIZES) == (expr if want is None else want)


IN_PYTHON = {"FloorDiv": operator.floordiv, "ModularIndexing": lambda x, by, n: x // by % n}
TERMS = st.lists(st.integers(-3, 24), min_size=3, max_size=3)
NUMBERS = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 10, 12, 20, 24, 40])


@given(TERMS, st.integers(0, 50), NUMBERS, NUMBERS, NUMBERS)
def test_it_is_equal_at_every_point(
    factors: list[int], offset: int, divisor: int, modulus: int, outer: int
) -> None:
    base = sum((f * s for f, s in zip(factors, SIZES, strict=True)), sympy.Integer(offset))
    inner = ModularIndexing(base, divisor, modulus)
    expressions = (
        FloorDiv(base, divisor),
        inner,
        FloorDiv(inner, outer),
        FloorDiv(outer * inner + X, outer),
        ModularIndexing(FloorDiv(base, divisor) * outer + Y, outer, modulus),
    )
    for expr in expressions:
        found = decided(expr, SIZES)
        before, after = (
            sympy.lambdify([*SIZES], one, modules=[IN_PYTHON]) for one in (expr, found)
        )
        for point in itertools.product(*map(range, SIZES.values())):
            assert before(*point) == after(*point), (expr, found, point)


FACTORS = st.integers(-3, 3)


@given(
    st.lists(st.integers(-9, 9), min_size=3, max_size=3),
    st.integers(-50, 50),
    NUMBERS,
    NUMBERS,
    st.tuples(FACTORS, FACTORS),
)
@example(
    [1, 0, 0], -5, 2, 2, (-3, -1)
)  # sympy takes whole twos out once the inner dividend is raised
def test_dividends_from_zero_give_the_same_and_are_nowhere_below_it(
    factors: list[int], offset: int, divisor: int, modulus: int, outside: tuple[int, int]
) -> None:
    several, others = outside
    base = sum((f * s for f, s in zip(factors, SIZES, strict=True)), sympy.Integer(offset))
    for expr in (
        FloorDiv(base, divisor),
        FloorDiv(several * FloorDiv(base, divisor) + others * X - 1, modulus),
        ModularIndexing(several * FloorDiv(base, divisor) + Y, modulus, 3),
        ModularIndexing(base, divisor, modulus),
    ):
        found = from_zero(expr, SIZES)
        dividends = [part.args[0] for part in found.atoms(FloorDiv, ModularIndexing)]
        before, after, least = (
            sympy.lambdify([*SIZES], one, modules=[IN_PYTHON])
            for one in (expr, found, sympy.Min(0, *dividends))
        )
        for point in itertools.product(*map(range, SIZES.values())):
            assert before(*point) == after(*point), (expr, found, point)
            assert least(*point) == 0, (expr, found, point)


@pytest.mark.parametrize("expr", [FloorDiv(X + 2, 3), ModularIndexing(X * Y - 5, 1, 3)])
def test_a_dividend_that_needs_nothing_or_of_which_nothing_is_known_stays(expr: sympy.Expr) -> None:
    assert from_zero(expr, SIZES) == expr


@pytest.mark.parametrize(
    ("comparison", "least", "stays"),
    [("ge", 1, True), ("gt", 0, True), ("ge", 0, False), ("lt", 1, False)],
)
def test_a_dividend_that_a_mask_keeps_from_below_zero_stays_under_it(
    comparison: str, least: int, stays: bool
) -> None:
    index = ModularIndexing(X - 1, 1, 3)

    def load(number: int) -> Instruction:
        return Instruction(Value(number), "load", buffer="b", index=index)

    masked = Body([load(4)], (Value(4),))
    body = Body([
        Instruction(Value(0), "index_expr", index=X),
        Instruction(Value(1), "constant", (str(least),)),
        Instruction(Value(2), comparison, (Value(0), Value(1))),
        load(3),
        Instruction(Value(5), "masked", (Value(2), "0.0"), body=masked),
    ], (Value(3), Value(5)))  # fmt: skip
    free, under = with_dividends_from_zero(body, tuple(SIZES.items())).loads()
    raised = ModularIndexing(X + 2, 1, 3)
    assert (free.index, under.index) == (raised, index if stays else raised)
