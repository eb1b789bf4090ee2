"""Differences of two products of the same factor, such as `a * b - a / c`, in which eager mode rounds both terms.

Where the terms are equal, eager leaves nothing. A compiler that merges one product with the subtraction rounds only the
other, and leaves its rounding error: no multiple of eager's error allows that. So these products are rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value

ROUNDED = "mul_rn"
"""A product that is not merged with what it is added to."""


def round_equal_terms(kernel: Kernel) -> Kernel:
    """Have the products of such differences rounded."""
    return replace(
        kernel, stages=tuple(replace(s, body=_rounded(s.body, {})) for s in kernel.stages)
    )


def _rounded(body: Body, around: dict[Value, Instruction]) -> Body:
    """around: by their results, instructions of what a body lies in."""
    made = {**around, **{i.result: i for i in body.instructions}}
    exact = {i.result for difference in body.instructions for i in _products(difference, made)}
    if not exact and all(i.body is None for i in body.instructions):
        return body
    return Body(
        [
            replace(
                i,
                op=ROUNDED if i.result in exact else i.op,
                body=_rounded(i.body, made) if i.body is not None else None,
            )
            for i in body.instructions
        ],
        body.results,
    )


def _products(i: Instruction, made: dict[Value, Instruction]) -> Iterator[Instruction]:
    """The products in a difference of two, or of one and a quotient, if they have a factor in common."""
    if i.op not in ("add", "sub") or not all(isinstance(o, Value) for o in i.operands):
        return
    left, right = (_Term(o, made) for o in i.operands)
    # A compiler that merges a product with its own subtraction would have to keep it as well.
    if left.instruction is right.instruction:
        return
    negative = left.negative != right.negative
    if negative != (i.op == "sub") and not left.factors.isdisjoint(right.factors):
        yield from (t.instruction for t in (left, right) if t.instruction.op == "mul")


class _Term:
    """A value as a product or a quotient: its factors, and whether signs were taken off. Without factors it is none."""

    def __init__(self, value: Value, made: dict[Value, Instruction]) -> None:
        self._made, self.negative = made, False
        self.instruction = made[self._unsigned(value)]
        number = {"mul": 2, "truediv": 1}.get(self.instruction.op, 0)
        factors = [o for o in self.instruction.operands[:number] if isinstance(o, Value)]
        self.factors = {self._unsigned(o) for o in factors if made[o].op != "constant"}

    def _unsigned(self, value: Value) -> Value:
        while self._made[value].op == "neg":
            (value,) = self._made[value].operands
            self.negative = not self.negative
        return value
