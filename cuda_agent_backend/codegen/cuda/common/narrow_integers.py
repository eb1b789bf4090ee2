"""64-bit integers in a kernel's bodies that 32 bits hold: a GPU multiplies, compares and converts those several times
faster.

Which do is followed from the loops' sizes, through floating-point arithmetic as well, for an interpolation computes
its places in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import sympy
import torch
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from cuda_agent_backend.codegen.ir.kernel import Kernel, RowStage
from cuda_agent_backend.codegen.ir.ssa import (
    COMPARISONS,
    PLACE,
    PLACE_EXPR,
    Body,
    Instruction,
    Value,
)

MOST = 1 << 30
"""Greatest amount of an integer that counts as small: sums and differences of two still fit 32 bits."""
SLACK = 2.0**-20
"""Share by which a floating-point result may differ from the exact one, contractions included."""
Ends = tuple[float, float]
Joined = Callable[[Ends, Ends], Ends]


def _products(a: Ends, b: Ends) -> Ends:
    products = [x * y for x in a for y in b]
    return min(products), max(products)


_BINARY: dict[str, Joined] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _products,
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
}
_ROUNDED: dict[str, Callable[[float], float]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
}
_FOLLOWED = (torch.int32, torch.int64, torch.float32, torch.float64)
_SELECTING = ("maximum", "minimum", "where", "identity")
_TAKES_ANY = (*COMPARISONS, PLACE, PLACE_EXPR, "to_dtype", "masked")
"""Operations whose result is the same for either width of their operands."""


class _Intervals:
    """Least and greatest of a body's numbers, where that is known: none of these is NaN or infinite."""

    def __init__(self, loops: Mapping[sympy.Symbol, int]) -> None:
        self.of: dict[Value, Ends] = {}
        self.whole: set[Value] = set()
        self._loops = {s: ValueRanges(0, n - 1) for s, n in loops.items()}

    def add(self, i: Instruction) -> None:
        """Follow one instruction."""
        values = [o for o in i.operands if isinstance(o, Value)]
        ends = self._ends(i, values)
        if ends is None:
            return
        whole = (
            not i.dtype.is_floating_point if i.dtype is not None else self._stays_whole(i, values)
        )
        if not whole and i.op not in (*_SELECTING, *_ROUNDED):
            slack = SLACK * max(map(abs, ends))
            ends = ends[0] - slack, ends[1] + slack
        if max(map(abs, ends)) < 2.0**62:
            self.of[i.result] = ends
            if whole:
                self.whole.add(i.result)

    def _stays_whole(self, i: Instruction, values: list[Value]) -> bool:
        return all(v in self.whole for v in (values[1:] if i.op == "where" else values))

    def _ends(self, i: Instruction, values: list[Value]) -> Ends | None:
        if i.op != PLACE and i.dtype is not None and i.dtype not in _FOLLOWED:
            return None
        if i.op == "index_expr" and i.index is not None:
            return self._of_index(i.index)
        if i.op == "constant":
            number = float({"True": "1", "False": "0"}.get(i.operands[0], i.operands[0]))
            return (number, number) if math.isfinite(number) else None
        if i.op == PLACE:
            return 0, i.operands[1] - 1
        if len(values) < len(i.operands):
            return None
        given = [self.of.get(v) for v in (values[1:] if i.op == "where" else values)]
        known = [ends for ends in given if ends is not None]
        if not known or len(known) < len(given):
            return None
        if i.op in _BINARY and len(known) == 2:
            return _BINARY[i.op](known[0], known[1])
        if i.op == "where":
            return min(low for low, _ in known), max(high for _, high in known)
        if i.op in _ROUNDED:
            return _ROUNDED[i.op](known[0][0]), _ROUNDED[i.op](known[0][1])
        if i.op == "identity":
            return known[0]
        if i.op == "to_dtype" and i.dtype is not None:
            whole = not i.dtype.is_floating_point
            return (math.trunc(known[0][0]), math.trunc(known[0][1])) if whole else known[0]
        return None

    def _of_index(self, index: sympy.Expr) -> Ends | None:
        if not index.free_symbols <= self._loops.keys():
            return None
        found = bound_sympy(index, self._loops)
        if not (found.lower.is_Integer and found.upper.is_Integer):
            return None
        return int(found.lower), int(found.upper)

    def small(self, v: Value) -> bool:
        """Whether a value is an integer that 32 bits hold."""
        return v in self.whole and max(map(abs, self.of[v])) <= MOST


def _users(body: Body) -> dict[Value, list[Instruction]]:
    users: dict[Value, list[Instruction]] = {}
    for i in body.walk():
        for o in i.operands:
            if isinstance(o, Value):
                users.setdefault(o, []).append(i)
    return users


def _place(i: Instruction, ends: Mapping[Value, Ends]) -> Instruction:
    """A place without the check and the count from the end that its value does not need."""
    x, size, check, wraps = i.operands
    low, high = ends.get(x, (-math.inf, math.inf))
    inside = (-size if wraps else 0) <= low and high < size
    return replace(i, operands=(x, size, check and not inside, wraps and low < 0))


def narrow_body_integers(body: Body, loops: Mapping[sympy.Symbol, int], wide: bool) -> Body:
    """``body`` with integers that 32 bits hold made so. ``wide``: places are part of 64-bit indices and stay so."""
    found = _Intervals(loops)
    for i in body.walk():
        found.add(i)
    users = _users(body)

    def one(i: Instruction, results: tuple[Value, ...]) -> Instruction:
        if i.body is not None:
            return replace(i, body=inside(i.body))
        if i.op == PLACE:
            return replace(_place(i, found.of), dtype=None if wide else torch.int32)
        if i.dtype != torch.int64 or i.op not in ("index_expr", "constant", "to_dtype"):
            return i
        if not found.small(i.result) or i.result in results:
            return i
        if i.op == "to_dtype" and i.operands[0] not in found.of:
            return i
        fits = (u.op in _TAKES_ANY or found.small(u.result) for u in users.get(i.result, ()))
        return replace(i, dtype=torch.int32) if all(fits) else i

    def inside(part: Body) -> Body:
        return Body([one(i, part.results) for i in part.instructions], part.results)

    return inside(body)


def narrow_integers(kernel: Kernel, wide: bool) -> Kernel:
    """The kernel with narrow integers where they do. ``wide``: its indices need 64 bits."""

    def one(stage: RowStage) -> RowStage:
        loops = dict((*kernel.outer, *stage.inner))
        return replace(stage, body=narrow_body_integers(stage.body, loops, wide))

    return replace(kernel, stages=tuple(map(one, kernel.stages)))
