"""Pointwise work between and after the products, as C++ functions of a place in a matrix and the values there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy

from cuda_agent_backend.codegen.cuda.attention.linear.hoist import shared_by_places
from cuda_agent_backend.codegen.cuda.attention.linear.match import (
    TOTAL,
    Pointwise,
)
from cuda_agent_backend.codegen.cuda.common.body_rewrites import share_divisors
from cuda_agent_backend.codegen.cuda.common.lane_printer import LanePrinter
from cuda_agent_backend.codegen.cuda.common.narrow_integers import narrow_body_integers
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction


@dataclass(frozen=True)
class PlaceFunction:
    """The text of one function.

    lines: its definition. numbers: what it reads that is the same at all places of a matrix. preparing: statements that
    work those out, once for a matrix.
    """

    lines: list[str]
    numbers: list[str]
    preparing: list[str]

    @staticmethod
    def of(
        name: str, values: str, what: Pointwise | None, otherwise: str, index: str
    ) -> PlaceFunction:
        """The function ``name``.

        values: declarations of its parameters that are values at the place. what: the work; None where there is none,
        and the function returns ``otherwise``. index: the type of an index.
        """
        head = f"  static CA_INLINE float {name}(const operands& given, int matrix, int row, int column, {values}) {{"
        if what is None:
            return PlaceFunction([head, f"    return {otherwise};", "  }"], [], [])
        (stage,) = what.region.stages
        names = dict(zip(what.region.inputs, what.inputs, strict=True))
        at_hand = {b: name for b, name in names.items() if isinstance(name, str)}
        body = narrow_body_integers(
            _at_hand(stage.body, at_hand), dict(stage.outer), index != "int"
        )
        shared = shared_by_places(
            body,
            [symbol for symbol, _ in stage.outer[-2:]],
            lambda b: what.region.buffers[b].dtype,
            f"given.{name}",
        )
        loops = _loops(stage.outer, index)
        # no division's slow routine, behind whose branch the other elements of a tile would wait
        rows = [symbol for symbol, _ in stage.outer]
        body = share_divisors(shared.body, {TOTAL, *shared.made}, rows)
        preparing = [
            line
            for number, made in shared.made.items()
            for line in ("    {", *loops[:-2], *_statements(what, made, f"{number} ="), "    }")
        ]
        return PlaceFunction(
            [head, *loops, *_statements(what, body, "return"), "  }"],
            [number.removeprefix("given.") for number in shared.made],
            preparing,
        )


def _statements(what: Pointwise, body: Body, result: str) -> list[str]:
    """Statements of a body. result: what its value is for, such as "return"."""
    names = dict(zip(what.region.inputs, what.inputs, strict=True))
    printer = LanePrinter(
        None,
        lambda b: f"given.in{names[b]}",
        lambda i: f"ca::splat<float, L>({i.buffer})",
        lambda b: what.region.buffers[b].dtype,
    )
    return [
        "    constexpr int L = 1;",
        *printer.lines(body),
        f"    {result} v{body.results[0].number}.v[0];",
    ]


def _at_hand(body: Body, names: Mapping[str, str]) -> Body:
    """The body with values that are at hand in the place of loads."""

    def one(i: Instruction) -> Instruction:
        if i.op == "load" and i.buffer is not None and i.buffer in names:
            return replace(i, op="local", buffer=names[i.buffer])
        return i if i.body is None else replace(i, body=_at_hand(i.body, names))

    return Body([one(i) for i in body.instructions], body.results)


def _loops(loops: tuple[tuple[sympy.Symbol, int], ...], index: str) -> list[str]:
    """The loops' variables of the number of the matrix and a place in it."""
    found, outer = list[str](), loops[:-2]
    for number, (symbol, size) in enumerate(outer):
        inner = math.prod(n for _, n in outer[number + 1 :])
        found.append(f"    const {index} {symbol} = ca::imod(ca::idiv(matrix, {inner}), {size});")
    for (symbol, _), place in zip(loops[-2:], ("row", "column"), strict=True):
        found.append(f"    const {index} {symbol} = {place};")
    return found
