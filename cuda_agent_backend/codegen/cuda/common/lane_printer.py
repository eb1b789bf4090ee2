"""Prints loop bodies for several lanes of a thread: what every CUDA family that prints expressions needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from cuda_agent_backend.codegen.cuda.common.sizes import WORD_BYTES
from cuda_agent_backend.codegen.ir.facts import AT_LEAST
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.printer import Printer, as_double, c_place, is_double
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.ssa import (
    Body,
    Instruction,
    Value,
    number_of,
    place_symbol,
)

FEW_INSTRUCTIONS = 4
"""Of a masked body, up to which a single element of it is computed whether it is wanted or not."""
DEFINITION, VALUE = re.compile(r"auto (\w+) = (.*);"), re.compile(r"\bs\d+v\d+\b")
QUARTERS = (1, 3, 5, 6)
"""Quarters of an exponent with which a power is a product of roots: with others that errs by more than the library."""

LOGISTIC = {("exp", "-x"): "exp(-x)", ("add", "exp(-x)"): "1 + exp(-x)"}
"""What an operation (a sum: with 1) makes of a form: so Inductor writes a division by which SiLU and gates are done."""

DIVISIONS = ("truediv", "div", "divide_row", "reciprocal")
USUAL = (2.0**-100, 2.0**100)
"""Sizes of a number by which a product with its inverse is corrected to the quotient."""


def local_reader(made: Mapping[str, str]) -> Callable[[Instruction], str]:
    """Reads arrays of a pointwise kernel by the values that stages before made of them."""

    def local(i: Instruction) -> str:
        if i.buffer is None or i.buffer not in made:
            raise Unsupported("a pointwise kernel with an array read out of order")
        return made[i.buffer]

    return local


def is_aligned(index: sympy.Expr, lane: sympy.Symbol, step: int, width: int, unit: int) -> bool:
    """Whether ``index`` (``step`` per lane) starts at a multiple of ``unit`` when the lane is one of ``width``."""
    rest = sympy.expand(index - step * lane)
    if step < 0:
        rest = sympy.expand(rest - (width - 1))
    return all(
        int(c) % unit == 0 if c.is_Integer else False for c in rest.as_coefficients_dict().values()
    )


@dataclass
class LanePrinter(Printer):
    """Prints for ``width`` lanes; knows which accesses are aligned.

    ``kept``: what to print for a load that is at hand. ``once``: memory that the whole kernel reads once.
    """

    width: int = 1
    kept: Callable[[Instruction], str | None] = lambda i: None
    once: frozenset[str] = frozenset()
    uniform: set[str] = field(default_factory=set)
    """Names of values that are the same in all lanes."""
    alike: set[str] = field(default_factory=set)
    """Names of truths that are the same in all lanes of a vector, which starts at a multiple of its width."""
    indices: dict[str, sympy.Expr] = field(default_factory=dict)
    """Names of values that are indices, and constants."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Names of constants of float32."""
    logistic: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Names of values that are one of `LOGISTIC` of x in float32, each with that form and the name of x."""
    named: dict[str, str] | None = None
    """Names of values by what they are, where all bodies are printed into one scope: equal ones are worked out once."""
    _same: dict[str, str] = field(default_factory=dict)

    def lines(self, body: Body, prefix: str = "v", mask: str | None = None) -> list[str]:
        self._mark(body, prefix)
        lines = super().lines(body, prefix, mask)
        return lines if self.named is None or mask is not None else self._shared(lines, self.named)

    def _shared(self, lines: Sequence[str], named: dict[str, str]) -> list[str]:
        """The lines with values that have a name already called by it; within a branch they are left as they are.

        Compilers see through this themselves, but not where a function has a branch of its own.
        """
        out, depth = [], 0
        for line in lines:
            found = None if depth else DEFINITION.fullmatch(line)
            depth += line.endswith("{") - (line.strip() == "});")
            if found is not None:
                name, value = found.groups()
                value = VALUE.sub(lambda m: self._same.get(m[0], m[0]), value)
                known = named.setdefault(value, name)
                if known != name:
                    self._same[name] = known
                line = f"auto {name} = {known if known != name else value};"
            out.append(line)
        return out

    def _mark(self, body: Body, prefix: str) -> None:
        for i in body.instructions:
            if i.body is not None:
                self._mark(i.body, prefix)
            needed = [o for o in i.operands if isinstance(o, Value)]
            needed += i.body.results if i.body is not None else ()
            across = self.lane is not None and i.index is not None and i.index.has(self.lane)
            same = all(f"{prefix}{o.number}" in self.uniform for o in needed)
            if same and not across and i.op != "local":
                self.uniform.add(f"{prefix}{i.result.number}")

    def _gather(self, i: Instruction, prefix: str, mask: str | None) -> str:
        """A vector where only the lane tells the elements apart, as in a row of a table."""
        assert i.buffer is not None and i.index is not None
        names = [self._operand(o, prefix) for o in i.operands]
        step = None if self.lane is None else coefficient(i.index, self.lane)
        same = all(name in self.uniform for name in names)
        if mask is None and self.width == 1:
            distance, rest = i.index.as_coeff_Add()
            at = self._gathered(replace(i, index=rest), prefix)
            return f"ca::gather<L>({self.pointer(i.buffer)}, {at}, {distance})"
        if mask is not None or not same or step not in (0, 1):
            return super()._gather(i, prefix, mask)
        assert self.lane is not None
        first = {place_symbol(n): sympy.Symbol(f"{name}.v[0]") for n, name in enumerate(names)}
        at = self.address(i.buffer, i.index.xreplace(first))
        if step == 0:
            return f"ca::broadcast<L>({at})"
        aligned = is_aligned(i.index, self.lane, 1, self.width, self.unit(i.buffer))
        return f"ca::load{'' if aligned else '_unaligned'}<L>({at})"

    def _masked(self, i: Instruction, prefix: str, mask: str | None) -> list[str]:
        """A branch where a vector is wanted whole or not at all: its loads are plain ones, and work is left out."""
        assert i.body is not None
        name, own = f"{prefix}{i.result.number}", self._operand(i.operands[0], prefix)
        short = self.width == 1 and len(list(i.body.walk())) <= FEW_INSTRUCTIONS
        if (
            short
            or mask is not None
            or not is_double(i.operands[1])
            or not (self.width == 1 or {own} & (self.alike | self.uniform))
        ):
            return super()._masked(i, prefix, mask)
        inner = super().lines(i.body, prefix)
        result = f"{prefix}{i.body.results[0].number}"
        return [
            f"auto {name} = ca::when<L>({own}, {as_double(i.operands[1])}, [&] {{",
            *inner,
            f"  return {result};",
            "});",
        ]

    def _follow(self, i: Instruction, prefix: str) -> None:
        """Note what is known of an instruction's value."""
        name = f"{prefix}{i.result.number}"
        self.numbers.pop(name, None)
        self.logistic.pop(name, None)
        given = [self._operand(o, prefix) for o in i.operands]
        if i.op == "index_expr" and i.index is not None:
            self.indices[name] = i.index
            if i.index.is_Integer and i.dtype == torch.float32:  # a count, by which a mean divides
                self.numbers[name] = float(i.index)
        elif i.op == "constant" and i.dtype is not None and not i.dtype.is_floating_point:
            if str(i.operands[0]).lstrip("-").isdigit():
                self.indices[name] = sympy.Integer(str(i.operands[0]))
        elif i.op == "constant" and i.dtype == torch.float32:
            self.numbers[name] = number_of(i.operands[0])
        elif i.op in AT_LEAST and all(g in self.indices for g in given):
            if self._is_alike(sympy.expand(AT_LEAST[i.op](*(self.indices[g] for g in given)))):
                self.alike.add(name)
        elif i.op.startswith("logical_") and all(g in self.alike | self.uniform for g in given):
            self.alike.add(name)
        elif (form := self._logistic_form(i.op, given)) is not None:
            self.logistic[name] = form

    def _logistic_form(self, op: str, given: Sequence[str]) -> tuple[str, str] | None:
        """How far an instruction is on the way to 1 + exp(-x), and the name of x."""
        if op == "neg":
            return "-x", given[0]
        if op == "add":
            given = [name for name in given if self.numbers.get(name) != 1.0]
        if len(given) != 1 or given[0] not in self.logistic:
            return None
        before, x = self.logistic[given[0]]
        after = LOGISTIC.get((op, before))
        return None if after is None else (after, x)

    def _division(self, op: str, given: Sequence[str]) -> str | None:
        """A division by 1 + exp(-x) or by a number without the slow routine of a rounded one, and its branch."""
        (*above, below), number = given, self.numbers.get(given[-1], 0.0)
        form, x = self.logistic.get(below, ("", ""))
        if form == "1 + exp(-x)" and op != "divide_row":
            alone = not above or self.numbers.get(above[0]) == 1.0
            return f"ca::sigmoid({x})" if alone else f"ca::over_logistic({above[0]}, {x})"
        if above and USUAL[0] <= abs(number) <= USUAL[1]:
            return f"ca::divide_by({above[0]}, float({number!r}), float({1 / number!r}))"
        return None

    def _is_alike(self, wanted: sympy.Expr) -> bool:
        """Whether ``wanted`` is negative in all lanes of a vector or in none."""
        step = 0 if self.lane is None else coefficient(wanted, self.lane)
        if step not in (0, 1, -1) or self.lane is None:
            return step == 0
        rest = sympy.expand(wanted - step * self.lane + int(step == -1))
        factors = rest.as_coefficients_dict().values()
        return all(c.is_Integer and int(c) % self.width == 0 for c in factors)

    def _expression(self, i: Instruction, prefix: str, mask: str | None) -> str:
        self._follow(i, prefix)
        given = [self._operand(o, prefix) for o in i.operands]
        if i.op in DIVISIONS and (text := self._division(i.op, given)) is not None:
            return text
        if i.op == "divide_row":
            return f"ca::divide_row({', '.join(given)})"
        if i.op == "pow":
            base, exponent = given
            quarters = 4 * self.numbers.get(exponent, 0.0)
            if quarters in QUARTERS:
                return f"ca::pow_quarters<{int(quarters)}>({base})"
        return super()._expression(i, prefix, mask)

    def load_text(self, buffer: str, index: sympy.Expr) -> str:
        """The load of ``buffer`` at ``index``, from memory."""
        return LanePrinter(
            self.lane, self.pointer, self.local, self.dtype_of, "", self.width, once=self.once
        )._load(Instruction(Value(0), "load", buffer=buffer, index=index), None)

    def address(self, buffer: str, index: sympy.Expr) -> str:
        """Constants last: what differs by them shares an address, and they are part of the access."""
        distance, rest = index.as_coeff_Add()
        if not distance or not rest:
            return super().address(buffer, index)
        return f"{self.pointer(buffer)} + {c_place(rest)} + {distance}"

    def unit(self, buffer: str) -> int:
        """Elements of a buffer that one access reads at once, and that must be aligned for it."""
        return max(1, min(self.width, WORD_BYTES // self.dtype_of(buffer).itemsize))

    def _load(self, i: Instruction, mask: str | None) -> str:
        assert i.buffer is not None and i.index is not None
        if mask is None:
            at_hand = self.kept(i)
            if at_hand is not None:
                return at_hand
            step = 0 if self.lane is None else coefficient(i.index, self.lane)
            once = "_once" if i.buffer in self.once else ""
            if once and self.width == 1 and step in (0, 1):
                return f"ca::load_once<L>({self.address(i.buffer, i.index)})"
            if self.lane is not None and self.width > 1 and step in (1, -1):
                aligned = is_aligned(i.index, self.lane, step, self.width, self.unit(i.buffer))
                at = self.address(i.buffer, i.index)
                if step == -1:
                    return (
                        f"ca::load_reversed<L>({at})"
                        if aligned
                        else f"ca::load_strided<L>({at}, -1)"
                    )
                return f"ca::load{once if aligned else '_unaligned'}<L>({at})"
        return super()._load(i, mask)

    def store(self, buffer: str, index: sympy.Expr, value: str, *, stream: bool = False) -> str:
        step = 0 if self.lane is None else coefficient(index, self.lane)
        if self.lane is not None and self.width > 1 and step in (1, -1):
            aligned = is_aligned(index, self.lane, step, self.width, self.unit(buffer))
            at = self.address(buffer, index)
            if not aligned:
                return f"ca::store_strided<L>({at}, {step}, {value});"
            if step == -1:
                return f"ca::store_reversed<L>({at}, {value});"
        return super().store(buffer, index, value, stream=stream)


def memory_printer(
    region: LoweredRegion,
    local: Callable[[Instruction], str],
    lane: sympy.Symbol | None = None,
    width: int = 1,
    **more: Any,
) -> LanePrinter:
    """Of a kernel whose parameters are the region's buffers by their names, each after ``m_``; lines are not indented.

    more: as of `LanePrinter`.
    """
    buffers = region.buffers
    return LanePrinter(
        lane, lambda b: f"m_{b}", local, lambda b: buffers[b].dtype, "", width, **more
    )
