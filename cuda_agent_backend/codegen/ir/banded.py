"""Which elements of a computed matrix are zero whatever it is computed from: those beside a band, as of a triangle.

Element (row, column) may differ from zero where ``low <= column - row <= high``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import sympy
import torch

from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value, number_of

FAR = 1 << 40
"""A bound that bounds nothing."""
MOST = 1 << 30
"""Of a bound that a block's numbers reach."""
WIDE = (torch.int32, torch.int64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, *WIDE)
AND = ("and_", "logical_and", "bitwise_and")
NOT = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


@dataclass(frozen=True)
class Band:
    """sure: elements beside the band are zeros; else they are NaN where what a mask multiplies is not finite."""

    low: int = -FAR
    high: int = FAR
    sure: bool = True

    @property
    def bounds(self) -> bool:
        return self.low > -FAR or self.high < FAR

    @property
    def turned(self) -> Band:
        """That of the transposed matrix."""
        return Band(-self.high, -self.low, self.sure)

    def both(self, other: Band) -> Band:
        """Where both may differ from zero."""
        return Band(max(self.low, other.low), min(self.high, other.high), self.sure and other.sure)

    def either(self, other: Band) -> Band:
        """At least where one of them may."""
        return Band(min(self.low, other.low), max(self.high, other.high), self.sure and other.sure)


ALL = Band()
NONE = Band(FAR, -FAR)


@dataclass(frozen=True)
class _Reader:
    """Reads what a body computes of a matrix with so many rows and columns, which it numbers by these symbols."""

    made: Mapping[Value, Instruction]
    row: sympy.Symbol
    column: sympy.Symbol
    size: int
    needed: Mapping[str, Band] = field(default_factory=dict)

    def value(self, of: object) -> Band:
        i = self.made.get(of) if isinstance(of, Value) else None
        if i is None:
            return ALL
        if i.op == "constant":
            return NONE if number_of(i.operands[0]) == 0.0 else ALL
        if i.op == "neg":
            return self.value(i.operands[0])
        if i.op == "to_dtype" and i.dtype is not None:
            # a NaN as an integer may be any number
            inner = self.value(i.operands[0]) if i.dtype.is_floating_point else ALL
            return inner.both(self.condition(i.operands[0], True))
        if i.op == "where":
            condition, yes, no = i.operands
            kept = self.condition(condition, True).both(self.value(yes))
            return kept.either(self.condition(condition, False).both(self.value(no)))
        if i.op in ("add", "sub"):
            return self.value(i.operands[0]).either(self.value(i.operands[1]))
        if i.op == "mul":
            found = self.value(i.operands[0]).both(self.value(i.operands[1]))
            return replace(found, sure=False) if found.bounds else ALL
        return ALL

    def need(self, of: object) -> Band:
        """Where a value depends on what ``local`` values are made of."""
        i = self.made.get(of) if isinstance(of, Value) else None
        if i is None:
            return NONE
        if i.op == "local" and i.buffer is not None:
            return self.needed.get(i.buffer, ALL)
        if i.body is not None:
            return ALL
        if i.op == "where":
            condition, yes, no = i.operands
            kept = self.condition(condition, True).both(self.need(yes))
            other = self.condition(condition, False).both(self.need(no))
            return kept.either(other).either(self.need(condition))
        found = NONE
        for operand in i.operands:
            found = found.either(self.need(operand))
        return found

    def condition(self, of: object, truth: bool) -> Band:
        """Where a condition may be ``truth``."""
        i = self.made.get(of) if isinstance(of, Value) else None
        if i is None:
            return ALL
        if i.op == "constant":
            return NONE if number_of(i.operands[0]) == float(not truth) else ALL
        if i.op == "to_dtype" and i.dtype == torch.bool:
            return self.condition(i.operands[0], truth)
        if i.op == "logical_not":
            return self.condition(i.operands[0], not truth)
        if i.op in AND:
            a, b = (self.condition(o, truth) for o in i.operands)
            return a.both(b) if truth else a.either(b)
        return self._comparison(i, truth) if i.op in NOT else ALL

    def _comparison(self, i: Instruction, truth: bool) -> Band:
        a, b = (self._index(o) for o in i.operands)
        if a is None or b is None:
            return ALL
        step = self._difference(sympy.expand(a - b))
        if step is None:
            return ALL
        sign, offset = step  # sign * (column - row) + offset, compared with 0
        return _COMPARED[i.op if truth else NOT[i.op]](sign, -sign * offset)

    def _difference(self, expr: sympy.Expr) -> tuple[int, int] | None:
        for sign in (1, -1):
            offset = sympy.expand(expr - sign * (self.column - self.row))
            if offset.is_Integer:
                return sign, int(offset)
        return None

    def _index(self, of: object) -> sympy.Expr | None:
        """As a number that no dtype cuts off: differences are those of wide ones."""
        i = self.made.get(of) if isinstance(of, Value) else None
        if i is None:
            return None
        if i.op == "constant":
            known = number_of(i.operands[0])
            return sympy.Integer(int(known)) if known.is_integer() else None
        if i.op == "index_expr" and i.dtype in INTEGERS:
            simple = i.index in (self.row, self.column) and self.size <= torch.iinfo(i.dtype).max
            return i.index if i.dtype in WIDE or simple else None
        if i.op not in ("add", "sub") or not all(map(self._is_wide, i.operands)):
            return None
        a, b = (self._index(o) for o in i.operands)
        if a is None or b is None:
            return None
        return a + b if i.op == "add" else a - b

    def _is_wide(self, of: object) -> bool:
        i = self.made.get(of) if isinstance(of, Value) else None
        return i is not None and (i.op in ("add", "sub") or i.dtype in WIDE)


def _at_most(sign: int, bound: int) -> Band:
    """``sign * difference <= sign * bound``."""
    return Band(high=bound) if sign > 0 else Band(low=bound)


def _at_least(sign: int, bound: int) -> Band:
    return _at_most(-sign, bound)


_COMPARED: dict[str, Callable[[int, int], Band]] = {
    "le": _at_most,
    "lt": lambda sign, bound: _at_most(sign, bound - sign),
    "ge": _at_least,
    "gt": lambda sign, bound: _at_least(sign, bound + sign),
    "eq": lambda sign, bound: Band(bound, bound),
    "ne": lambda sign, bound: ALL,
}


Dim = tuple[sympy.Symbol, int]


def band_of(body: Body, row: Dim, column: Dim) -> Band | None:
    """The band of what ``body`` computes over these loops, beside which all is zero; None where nothing is known."""
    found = _reader(body, row, column).value(body.results[0])
    if found.low >= MOST or found.high <= -MOST:
        return None  # all of it is zero, which is no use to a product
    low, high = found.low if found.low > -MOST else -FAR, found.high if found.high < MOST else FAR
    reached = replace(found, low=low, high=high)
    return reached if reached.bounds else None


def need_of(body: Body, row: Dim, column: Dim, needed: Mapping[str, Band]) -> Band:
    """Where what ``body`` computes depends on sums: its locals do so where ``needed`` says, or everywhere."""
    return _reader(body, row, column, needed).need(body.results[0])


def _reader(body: Body, row: Dim, column: Dim, needed: Mapping[str, Band] | None = None) -> _Reader:
    made = {i.result: i for i in body.instructions}
    return _Reader(made, row[0], column[0], max(row[1], column[1]), needed or {})
