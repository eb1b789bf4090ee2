"""Which types the operators of a loop body meet, and whether the printed code means there what Inductor means.

Inductor converts whole numbers before a function of real numbers is called on them. Where a body does not, C++ has
another meaning for it (`7 / 2` is 3), or none, and the source would not compile: such a body is refused here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from cuda_agent_backend.codegen.ir import special_functions as special
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES, HALVES, OPERATIONS
from cuda_agent_backend.codegen.ir.ssa import (
    COMPARISONS,
    FLOAT_BITS,
    GATHER,
    PLACE,
    PLACE_EXPR,
    Body,
    Instruction,
    Value,
    whole_number_of,
)
from cuda_agent_backend.codegen.ir.value_types import TRUTH_OPERATIONS

LOGICAL = frozenset(["logical_and", "logical_or", "logical_not", "logical_xor"])
ANY = frozenset(["isnan", "isinf", "signbit", "sign", "add", "mul", "maximum", "minimum", "where"])
NUMBERS = frozenset(
    ["mul_rn", "sub", "neg", "abs", "fmod", "mod", "remainder", "square", "relu", "floor", "ceil", "trunc",
     "round", "pow"]
)  # fmt: skip
BITS = frozenset(
    ["and_", "or_", "xor", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "invert"]
)
WHOLE = frozenset(["floordiv", "truncdiv", "bitwise_left_shift", "bitwise_right_shift"])
MEET = frozenset(
    [*COMPARISONS, *LOGICAL, "add", "sub", "mul", "truediv", "div", "div_rn", "maximum", "minimum", "where"]
)  # fmt: skip
"""Operators whose operands may be of two types, which both preludes bring together."""
TRAPS = {
    "fmod": "safe_fmod",
    "mod": "safe_fmod",
    "remainder": "safe_remainder",
    "floordiv": "safe_floordiv",
    "truncdiv": "safe_truncdiv",
}
"""Quotients of whole numbers, during which a processor may trap and of which C++ leaves some open, and what does not
(`cpu/whole.h`, `cuda/common/whole.cuh`)."""
ORDERS = {"lt": "safe_lt", "le": "safe_le", "gt": "safe_gt", "ge": "safe_ge"}
"""Truths in order, of which vector lanes hold the greater one as -1, and what minds that."""
SAFE = frozenset([*TRAPS.values(), *ORDERS.values()])
SAFE_PREFIX, SAFE_MARK = "safe_", "CA_QUOTIENT"
"""What their names begin with, and what is in each of the headers that have them."""
SAFE_HEADERS = {"cpu": "cpu/whole.h", "cuda": "cuda/common/whole.cuh"}
_STRUCTURE = (
    "load", GATHER, PLACE, PLACE_EXPR, "constant", "index_expr", "to_dtype", FLOAT_BITS, "masked",
)  # fmt: skip
_SAME = ("identity", "libdevice_identity")
DtypeOf = Callable[[str], torch.dtype]


def computed(dtype: torch.dtype) -> torch.dtype:
    """The type in which values of ``dtype`` are computed. Raises Unsupported where there is none."""
    if dtype not in COMPUTE_TYPES:
        raise Unsupported(f"numbers of {dtype}")
    return torch.float32 if dtype in HALVES else dtype


def types_of(body: Body, dtype_of: DtypeOf, target: str) -> dict[Value, torch.dtype]:
    """The type of every value, those of masked parts included. dtype_of: that of a buffer in memory.

    Raises:
        Unsupported: an operator that is not printed, or not on operands of these types.
    """
    types: dict[Value, torch.dtype] = {}

    def visit(part: Body) -> None:
        for i in part.instructions:
            if target == "cuda" and i.op in special.NAMES - special.ON_CUDA:
                raise Unsupported(f"{i.op}, which on cuda only eager's own kernel answers as eager")
            if i.body is not None:
                visit(i.body)
            types[i.result] = _type_of(i, types, dtype_of)

    visit(body)
    return types


def _type_of(i: Instruction, types: dict[Value, torch.dtype], dtype_of: DtypeOf) -> torch.dtype:
    if i.op in ("load", GATHER) and i.buffer is not None:
        return computed(dtype_of(i.buffer))
    if i.op == PLACE:
        return torch.int64
    if i.body is not None:
        return types[i.body.results[0]]
    if i.op in _STRUCTURE:
        assert i.dtype is not None
        return computed(i.dtype)
    given = [types[o] for o in i.operands if isinstance(o, Value)]
    if i.op in _SAME:
        return given[0]
    _check(i.op, given[1:] if i.op == "where" else given)
    if i.op in TRUTH_OPERATIONS:
        return torch.bool
    return _common(given[1:] if i.op == "where" else given)


def _common(given: Sequence[torch.dtype]) -> torch.dtype:
    found = given[0]
    for other in given[1:]:
        found = torch.promote_types(found, other)
    return found


def _check(op: str, given: Sequence[torch.dtype]) -> None:
    """Raises Unsupported where the operator is not printed for operands of these types."""
    if op not in OPERATIONS:
        raise Unsupported(f"loop operation {op}")
    if not given:
        raise Unsupported(f"{op} of numbers alone")
    named = " and ".join(dict.fromkeys(str(d).removeprefix("torch.") for d in given))
    whole = not any(d.is_floating_point or d == torch.bool for d in given)
    if len(set(given)) > 1 and op not in MEET and not (whole and op in TRAPS):
        raise Unsupported(f"loop operation {op} of {named}")
    if not _allowed(op)(_common(given)):
        raise Unsupported(f"loop operation {op} of {named}, which is not converted beforehand")


def _allowed(op: str) -> Callable[[torch.dtype], bool]:
    if op in ANY or op in LOGICAL or op in COMPARISONS:
        return lambda dtype: True
    if op in NUMBERS:
        return lambda dtype: dtype != torch.bool
    if op in BITS:
        return lambda dtype: not dtype.is_floating_point
    if op in WHOLE:
        return lambda dtype: not dtype.is_floating_point and dtype != torch.bool
    return lambda dtype: dtype.is_floating_point


def made_safe(body: Body, types: dict[Value, torch.dtype]) -> Body:
    """``body`` with operators for the cpu that are right on whole numbers and truths. types: of its values."""

    def one(i: Instruction) -> Instruction:
        if i.op in TRAPS and not types[i.result].is_floating_point:
            return replace(i, op=TRAPS[i.op])
        if i.op in ORDERS and _of_truths(i, types):
            return replace(i, op=ORDERS[i.op])
        if i.op == "sign" and _of_truths(i, types):
            return replace(i, op="identity")
        return i

    # of float32 a byte is the same by way of 32 bits: what these do not hold is a multiple of 256
    return _rewritten(body, one, lambda i: _source_of_byte(i, types) == torch.float64)


def made_defined(body: Body, types: dict[Value, torch.dtype]) -> Body:
    """``body`` for cuda as eager's kernels have it where C++ leaves the result open: quotients over what may be zero,
    and uint8 made of floating-point numbers. types: of its values."""
    known = {i.result: i.operands[0] for i in body.walk() if i.op == "constant"}

    def one(i: Instruction) -> Instruction:
        if i.op in TRAPS and not types[i.result].is_floating_point and _is_open(i, known):
            return replace(i, op=TRAPS[i.op])
        return i

    def is_byte_of_real(i: Instruction) -> bool:
        source = _source_of_byte(i, types)
        return source is not None and source.is_floating_point

    return _rewritten(body, one, is_byte_of_real)


def _rewritten(
    body: Body,
    one: Callable[[Instruction], Instruction],
    is_byte_of_real: Callable[[Instruction], bool],
) -> Body:
    """``body`` with other instructions, and with bytes made of 64-bit integers where they are made of real numbers."""
    numbers = itertools.count(1 + max((i.result.number for i in body.walk()), default=-1))

    def several(i: Instruction) -> Iterator[Instruction]:
        if i.body is not None:
            yield replace(i, body=inside(i.body))
        elif is_byte_of_real(i):
            whole = Instruction(Value(next(numbers)), "to_dtype", i.operands, torch.int64)
            yield from (whole, replace(i, operands=(whole.result,)))
        else:
            yield one(i)

    def inside(part: Body) -> Body:
        return Body([made for i in part.instructions for made in several(i)], part.results)

    return inside(body)


def _source_of_byte(i: Instruction, types: dict[Value, torch.dtype]) -> torch.dtype | None:
    """The type of what is converted to uint8; None where nothing is."""
    if i.op != "to_dtype" or i.dtype != torch.uint8 or not isinstance(i.operands[0], Value):
        return None
    return types[i.operands[0]]


def _is_open(i: Instruction, known: Mapping[Value, str]) -> bool:
    """Whether a quotient's divisor may be 0 or -1. known: constants by value, as Python's ``repr``."""
    by = i.operands[1]
    text = known.get(by) if isinstance(by, Value) else repr(by)
    return text is None or whole_number_of(text) in (0, -1)


def _of_truths(i: Instruction, types: dict[Value, torch.dtype]) -> bool:
    return all(types[o] == torch.bool for o in i.operands if isinstance(o, Value))
