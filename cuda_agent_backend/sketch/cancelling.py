"""Sums whose terms are weighed by numbers of their place that have both signs, such as an expected row of a map.

Where what is weighed is equal all over, as when a network has just begun to learn, such a sum is zero: its terms cancel
in pairs. Eager mode may add them up in an order that leaves nothing. Another order, in float32, leaves rounding errors
that no multiple of eager's error allows. So these sums are kept in double, where some thousand terms of like size are
exact in any order.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import sympy
import torch
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from cuda_agent_backend.sketch.nest import Dim, Kernel, RowStage
from cuda_agent_backend.sketch.ssa import Instruction, Value, number_of
from cuda_agent_backend.sketch.valuetype import TRUTH_OPERATIONS

WIDE_SUM = "wide_sum"
"""How such a stage combines: a sum in double."""
Range = tuple[float, float]
ANY: Range = (-math.inf, math.inf)
ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}
SCALING = ("truediv", "neg", "to_dtype", "identity")
"""Operations that leave their first operand's terms what they are, but for a factor."""
DATA = ("load", "local", "gather", "place", "place_expr", "masked")


def mark_cancelling(kernel: Kernel) -> Kernel:
    """Have sums of float32 that may cancel (see above) added up in double."""
    stages = kernel.stages
    maps = {t.buffer: s for s in stages if s.kind == "map" for t in s.local_stores}
    marked = tuple(
        replace(s, combine=WIDE_SUM)
        if s.combine == "sum" and s.dtype == torch.float32 and _cancels(s, kernel.outer, maps)
        else s
        for s in stages
    )
    return replace(kernel, stages=marked)


def _cancels(stage: RowStage, outer: tuple[Dim, ...], maps: Mapping[str, RowStage]) -> bool:
    """Whether a stage's value is something times a number of its place that has both signs."""
    reader = _Reader.of(stage, outer)
    for found in reader.factors(stage.body.results[0]):
        maker = maps.get(found.buffer or "") if found.op == "local" else None
        if maker is not None and _cancels(maker, outer, maps):
            return True
        if found.op == "mul" and any(map(reader.has_both_signs, found.operands)):
            return True
    return False


@dataclass(frozen=True)
class _Reader:
    """Reads the body of one stage."""

    made: Mapping[Value, Instruction]
    sizes: Mapping[sympy.Symbol, int]

    @staticmethod
    def of(stage: RowStage, outer: tuple[Dim, ...]) -> _Reader:
        made = {i.result: i for i in stage.body.instructions}
        return _Reader(made, dict((*outer, *stage.inner)))

    def factors(self, of: object) -> list[Instruction]:
        """The instructions of which a value is the product, products themselves included."""
        i = self.made.get(of) if isinstance(of, Value) else None
        if i is None:
            return []
        through = i.operands if i.op == "mul" else i.operands[:1] if i.op in SCALING else ()
        return [i, *(found for operand in through for found in self.factors(operand))]

    def has_both_signs(self, of: object) -> bool:
        """Whether a value is a number of its place alone, and may be above and below zero."""
        if self._reads_data(of):
            return False
        low, high = self._range(of)
        return low < 0 < high

    def _reads_data(self, of: object) -> bool:
        i = self.made.get(of) if isinstance(of, Value) else None
        return i is not None and (i.op in DATA or any(map(self._reads_data, i.operands)))

    def _range(self, of: object) -> Range:
        """What a value surely lies within."""
        i = self.made.get(of) if isinstance(of, Value) else None
        if i is None:
            return ANY
        if i.op == "constant":
            number = number_of(i.operands[0])
            return (number, number) if math.isfinite(number) else ANY
        if i.op == "index_expr" and i.index is not None:
            return self._of_index(i.index)
        if i.op in TRUTH_OPERATIONS:
            return (0.0, 1.0)
        if i.op in ("to_dtype", "identity"):
            return self._range(i.operands[0])
        if i.op == "where":
            yes, no = map(self._range, i.operands[1:])
            return min(yes[0], no[0]), max(yes[1], no[1])
        if i.op in ARITHMETIC:
            corners = itertools.product(*map(self._range, i.operands))
            ends = [ARITHMETIC[i.op](a, b) for a, b in corners]
            return ANY if any(map(math.isnan, ends)) else (min(ends), max(ends))
        return ANY

    def _of_index(self, index: sympy.Expr) -> Range:
        sizes = {
            s: ValueRanges(0, self.sizes[s] - 1) for s in index.free_symbols if s in self.sizes
        }
        if len(sizes) < len(index.free_symbols):
            return ANY
        found = bound_sympy(index, sizes)
        return float(found.lower), float(found.upper)
