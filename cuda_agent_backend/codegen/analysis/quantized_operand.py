"""Operands of sums of products that are integers of 8 bits: ``(code - zero) * scale``, as quantised weights are stored.

A scale that all terms of a sum share multiplies the sum instead, so that what is left of the operand is its codes: in
memory a quarter of the numbers that they stand for, and exact in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch

from cuda_agent_backend.codegen.ir.ssa import GATHER, Body, Instruction, Value, number_of, pruned

CODES = (torch.int8, torch.uint8)
LARGEST = 256
"""Up to which bfloat16 holds all integers."""

Made = dict[Value, Instruction]


def codes_of(
    value: Instruction, made: Made, inner: set[sympy.Symbol]
) -> tuple[Instruction, int, Body | None] | None:
    """The load of the codes that ``value`` is made of, their zero, and their scale; None where it is made otherwise.

    ``made``: the instructions of the loop body; ``inner``: the loops over terms.
    """
    scales: list[Value] = []
    while value.op == "mul":
        apart = _apart(value, made, inner)
        if apart is None:
            return None
        value = made[apart[0]]
        scales.append(apart[1])
    found = _codes(value, made)
    if found is None:
        return None
    load, zero = found
    scale = _product(scales, made)
    if load.index is None or not _symbols(scale) <= load.index.free_symbols:
        return None
    return load, zero, scale


def fits(dtype: torch.dtype, zero: int) -> bool:
    """Whether one bfloat16 number holds each code less ``zero``."""
    if dtype not in CODES:
        return False
    info = torch.iinfo(dtype)
    return max(abs(info.min - zero), abs(info.max - zero)) <= LARGEST


def _apart(value: Instruction, made: Made, inner: set[sympy.Symbol]) -> tuple[Value, Value] | None:
    """The operand of a product that varies with the terms, and the one that does not."""
    for own, other in (value.operands, value.operands[::-1]):
        if not isinstance(own, Value) or not isinstance(other, Value):
            return None
        if _is_fixed(other, made, inner) and not _is_fixed(own, made, inner):
            return own, other
    return None


def _is_fixed(value: Value, made: Made, inner: set[sympy.Symbol]) -> bool:
    """Whether ``value`` is worked out from memory and constants by what is the same for all terms."""
    needed = _closure(value, made).instructions
    if any(i.body is not None or i.op in ("local", GATHER) for i in needed):
        return False
    return not any(i.index is not None and i.index.free_symbols & inner for i in needed)


def _closure(value: Value, made: Made) -> Body:
    return pruned(Body(list(made.values()), (value,)))


def _product(scales: list[Value], made: Made) -> Body | None:
    """A body that multiplies ``scales``; None where there are none."""
    if not scales:
        return None
    steps, result = list(made.values()), scales[0]
    fresh = 1 + max(i.result.number for i in steps)
    for number, other in enumerate(scales[1:], fresh):
        steps.append(Instruction(Value(number), "mul", (result, other)))
        result = Value(number)
    return pruned(Body(steps, (result,)))


def _symbols(body: Body | None) -> set[sympy.Symbol]:
    instructions: Iterator[Instruction] = body.walk() if body is not None else iter(())
    return {s for i in instructions if i.index is not None for s in i.index.free_symbols}


def _codes(value: Instruction, made: Made) -> tuple[Instruction, int] | None:
    """A load that becomes a number, less an integer before or after that, and the integer."""
    value, zero = _less(value, made)
    if value.op != "to_dtype" or value.dtype != torch.float32:
        return None
    value, before = _less(_operand(value, made), made)
    if value.op == "to_dtype" and value.dtype in (torch.int16, torch.int32, torch.int64):
        value = _operand(value, made)
    elif before:
        return None  # of 8 bits, which wrap around
    total = zero + before
    return (value, int(total)) if value.op == "load" and total.is_integer() else None


def _operand(value: Instruction, made: Made) -> Instruction:
    return made[value.operands[0]]


def _less(value: Instruction, made: Made) -> tuple[Instruction, float]:
    """What a constant is taken from, and the constant; ``value`` itself and 0 where there is none."""
    if value.op not in ("sub", "add") or not all(isinstance(o, Value) for o in value.operands):
        return value, 0.0
    own, other = (made[o] for o in value.operands)
    if value.op == "add" and own.op == "constant":
        own, other = other, own
    if other.op != "constant":
        return value, 0.0
    number = number_of(other.operands[0])
    return own, number if value.op == "sub" else -number
