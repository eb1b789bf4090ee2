"""Prints stage bodies for a tile of results: what several of them read is read once, in words, and is in registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import sympy

from cuda_agent_backend.codegen.cuda.common.lane_printer import (
    LanePrinter,
)
from cuda_agent_backend.codegen.cuda.common.sizes import WORD_BYTES
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.facts import AT_LEAST
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES, Printer, c_index
from cuda_agent_backend.codegen.ir.ssa import Instruction

Ranges = dict[sympy.Symbol, tuple[int, int]]
"""First and last value of loop variables."""


def bounds(expr: sympy.Expr, ranges: Ranges) -> tuple[int, int] | None:
    """Least and greatest value of a linear expression; None for any other."""
    low = high = 0
    for term, factor in expr.as_coefficients_dict().items():
        if not factor.is_Integer or not (term == 1 or term in ranges):
            return None
        ends = [int(factor) * v for v in (ranges[term] if term != 1 else (1, 1))]
        low, high = low + min(ends), high + max(ends)
    return low, high


@dataclass
class _Word:
    """Neighbouring elements that are read together. ``sure``: something reads it whatever the masks say."""

    name: str
    buffer: str
    start: sympy.Expr
    unit: int
    used: set[int] = field(default_factory=set)
    sure: bool = False

    def lines(self, pointer: str, extent: int, ctype: str, ranges: Ranges) -> list[str]:
        size, first = 1, min(self.used)
        while first // size != max(self.used) // size:
            size *= 2
        first = first // size * size
        at = sympy.expand(self.start + first)
        ends = bounds(at, ranges)
        text = c_index(at)
        if not self.sure and (ends is None or ends[0] < 0 or ends[1] + size > extent):
            text = f"ca::imax(ca::imin({text}, {extent - size}), 0)"  # a mask hides what is read
        if size == 1:
            return [f"const {ctype} {self.name}e{first} = ca::widen({pointer}[{text}]);"]
        read = f"const auto {self.name} = ca::load<{size}>({pointer} + {text});"
        picked = [
            f"const {ctype} {self.name}e{n} = {self.name}.v[{n - first}];"
            for n in sorted(self.used)
        ]
        return [read, *picked]


@dataclass
class TilePrinter(LanePrinter):
    """Prints for ``width`` lanes from a multiple of ``width`` on; ``ranges`` say where in the loops that may be."""

    ranges: Ranges = field(default_factory=dict)
    extent_of: Callable[[str], int] = lambda b: 0
    conditions: list[sympy.Expr] = field(default_factory=list)
    """What comparisons want to be not negative."""
    _words: dict[tuple[str, sympy.Expr, int], _Word] = field(default_factory=dict)

    def reads(self) -> list[str]:
        """Statements that read what the printed ones use."""
        return [
            line
            for word in self._words.values()
            for line in word.lines(
                self.pointer(word.buffer),
                self.extent_of(word.buffer),
                COMPUTE_TYPES[self.dtype_of(word.buffer)],
                self.ranges,
            )
        ]

    def _masked(self, i: Instruction, prefix: str, mask: str | None) -> list[str]:
        """No branches: what windows share is read once."""
        return Printer._masked(self, i, prefix, mask)

    def _expression(self, i: Instruction, prefix: str, mask: str | None) -> str:
        if i.op in AT_LEAST:
            self._follow(i, prefix)
            a, b = (self.indices.get(self._operand(o, prefix)) for o in i.operands)
            if a is not None and b is not None:
                wanted = sympy.expand(AT_LEAST[i.op](a, b))
                if bounds(wanted, self.ranges) is not None:
                    return self._compared(wanted)
        return super()._expression(i, prefix, mask)

    def _compared(self, wanted: sympy.Expr) -> str:
        assert self.lane is not None
        self.conditions.append(wanted)
        factor = int(wanted.coeff(self.lane))
        lanes = [self._not_negative(wanted + factor * n, factor) for n in range(self.width)]
        if len(set(lanes)) == 1:
            return f"ca::splat<bool, L>({lanes[0]})"
        return f"ca::vec<bool, L>{{{{{', '.join(lanes)}}}}}"

    def _not_negative(self, wanted: sympy.Expr, factor: int) -> str:
        ends = bounds(wanted, self.ranges)
        assert ends is not None and self.lane is not None
        if ends[0] >= 0 or ends[1] < 0:
            return str(ends[0] >= 0).lower()
        if wanted.free_symbols == {self.lane}:
            # the same text for all that is the same at multiples of the width
            rest, each = int(wanted.as_coeff_Add()[0]), abs(factor) * self.width
            if factor > 0:
                return f"({self.lane} >= {ceildiv(-rest, each) * self.width})"
            return f"({self.lane} <= {rest // each * self.width})"
        return f"({c_index(wanted)} >= 0)"

    def _load(self, i: Instruction, mask: str | None) -> str:
        assert i.buffer is not None and i.index is not None and self.lane is not None
        step = coefficient(i.index, self.lane)
        if step is None:
            return super()._load(i, mask)
        ctype = COMPUTE_TYPES[self.dtype_of(i.buffer)]
        distance, rest = i.index.as_coeff_Add()
        unit = self._aligned_unit(i.buffer, rest)
        count = self.width if step else 1
        cells = [
            self._cell(i.buffer, rest, int(distance) + step * n, unit, mask is None)
            for n in range(count)
        ]
        if not step:
            return f"ca::splat<{ctype}, L>({cells[0]})"
        return f"ca::vec<{ctype}, L>{{{{{', '.join(cells)}}}}}"

    def _cell(self, buffer: str, rest: sympy.Expr, distance: int, unit: int, sure: bool) -> str:
        number, element = divmod(distance, unit)
        key = (buffer, rest, number)
        if key not in self._words:
            name = f"c{len(self._words)}"
            self._words[key] = _Word(name, buffer, rest + number * unit, unit)
        word = self._words[key]
        word.used.add(element)
        word.sure |= sure
        return f"{word.name}e{element}"

    def _aligned_unit(self, buffer: str, rest: sympy.Expr) -> int:
        """Elements of the widest words that start at ``rest``."""
        unit = WORD_BYTES // self.dtype_of(buffer).itemsize
        factors = [
            int(factor) * (self.width if term == self.lane else 1)
            for term, factor in rest.as_coefficients_dict().items()
        ]
        while unit > 1 and any(n % unit for n in (*factors, self.extent_of(buffer))):
            unit //= 2
        return unit
