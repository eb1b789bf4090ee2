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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import sympy
import torch
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, RowStage
from cuda_agent_backend.codegen.ir.ssa import Instruction, Value, number_of
from cuda_agent_backend.codegen.ir.value_types import TRUTH_OPERATIONS

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
    waiting, seen = [stage], {stage.name}
    while waiting:
        current = waiting.pop()
        reader = _Reader(current, outer)
        for found in reader.factors(current.body.results[0]):
            maker = maps.get(found.buffer or "") if found.op == "local" else None
            if maker is not None and maker.name not in seen:
                seen.add(maker.name)
                waiting.append(maker)
            if found.op == "mul" and any(map(reader.has_both_signs, found.operands)):
                return True
    return False


class _Reader:
    """Reads the body of one stage. Each value is looked at once: bodies share what they use often."""

    def __init__(self, stage: RowStage, outer: tuple[Dim, ...]) -> None:
        self._made = {i.result: i for i in stage.body.instructions}
        self._sizes = dict((*outer, *stage.inner))
        self._data: set[Value] = set()
        """What is read from memory, or made of that."""
        self._ranges: dict[Value, Range] = {}
        for i in stage.body.instructions:
            if i.op in DATA or any(o in self._data for o in i.operands if isinstance(o, Value)):
                self._data.add(i.result)
            else:
                self._ranges[i.result] = self._range(i)

    def factors(self, of: object) -> Iterator[Instruction]:
        """The instructions of which a value is the product, products themselves included."""
        waiting, seen = [of], set()
        while waiting:
            value = waiting.pop()
            i = self._made.get(value) if isinstance(value, Value) else None
            if i is None or i.result in seen:
                continue
            seen.add(i.result)
            yield i
            waiting += i.operands if i.op == "mul" else i.operands[:1] if i.op in SCALING else ()

    def has_both_signs(self, of: object) -> bool:
        """Whether a value is a number of its place alone, and may be above and below zero."""
        low, high = self._ranges.get(of, (0.0, 0.0)) if isinstance(of, Value) else (0.0, 0.0)
        return low < 0 < high

    def _range(self, i: Instruction) -> Range:
        """What an instruction's value surely lies within."""
        if i.op == "constant":
            number = number_of(i.operands[0])
            return (number, number) if math.isfinite(number) else ANY
        if i.op == "index_expr" and i.index is not None:
            return self._of_index(i.index)
        if i.op in TRUTH_OPERATIONS:
            return (0.0, 1.0)
        given = [self._ranges.get(o, ANY) for o in i.operands if isinstance(o, Value)]
        if i.op in ("to_dtype", "identity"):
            return given[0]
        if i.op == "where":
            (_, yes, no) = given
            return min(yes[0], no[0]), max(yes[1], no[1])
        if i.op in ARITHMETIC:
            ends = [ARITHMETIC[i.op](a, b) for a, b in itertools.product(*given)]
            return ANY if any(map(math.isnan, ends)) else (min(ends), max(ends))
        return ANY

    def _of_index(self, index: sympy.Expr) -> Range:
        sizes = {
            s: ValueRanges(0, self._sizes[s] - 1) for s in index.free_symbols if s in self._sizes
        }
        if len(sizes) < len(index.free_symbols):
            return ANY
        found = bound_sympy(index, sizes)
        return float(found.lower), float(found.upper)
