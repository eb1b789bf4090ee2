"""Operators of the loop IR side by side in one kernel, on the edge values of a type, and what eager makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._inductor.virtualized import V

from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel, RowStage
from cuda_agent_backend.codegen.ir.operand_types import made_defined, made_safe, types_of
from cuda_agent_backend.codegen.ir.printer import HALVES
from cuda_agent_backend.codegen.ir.region import Buffer, LoweredRegion, Store
from cuda_agent_backend.codegen.ir.special_functions import NAMES, ON_CUDA
from cuda_agent_backend.codegen.ir.ssa import Body, trace

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TYPES = (*FLOATS, *INTEGERS, torch.bool)
INPUTS = ("x", "y", "z")
PLACE = sympy.Symbol("i", integer=True, nonnegative=True)
Formula = Callable[[Any, list[Any]], Any]
"""From an ops handler and the values of the inputs to a value."""


@dataclass(frozen=True)
class Operator:
    """An operator of the loop IR. reference: the function of torch that says what it is. operands: how many it takes.

    kind: on what it is called. "floats": floating-point numbers, to which Inductor converts whole ones beforehand;
    "whole": whole numbers alone; "bits": those and truths; "numbers": all but truths; "any".
    known: where eager gives an answer that means something. unsigned: the sign of a zero is not promised.
    roundings: by how many an answer may differ where eager's is no more exact than a kernel's.
    """

    reference: Callable[..., Tensor]
    operands: int = 1
    kind: str = "floats"
    known: Callable[..., Tensor] | None = None
    unsigned: bool = False
    roundings: int = 4

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether it is called on values of this type as they are."""
        truth = dtype == torch.bool
        return {
            "floats": dtype.is_floating_point,
            "whole": not (dtype.is_floating_point or truth),
            "bits": not dtype.is_floating_point,
            "numbers": not truth,
            "any": True,
        }[self.kind]

    def applies(self, dtype: torch.dtype) -> bool:
        """The same, or on what they are converted to."""
        return self.kind == "floats" or self.takes(dtype)

    def computed(self, dtype: torch.dtype) -> torch.dtype:
        """The type in which it is computed on what is read as ``dtype``."""
        converted = self.kind == "floats" and not dtype.is_floating_point
        return torch.float32 if converted or dtype in HALVES else dtype


@dataclass(frozen=True)
class Entry:
    """A formula, and what its results are by eager and in double precision. known, unsigned: as in `Operator`."""

    name: str
    formula: Formula
    want: Tensor
    exact: Tensor
    known: Tensor
    unsigned: bool = False
    roundings: int = 4


@dataclass(frozen=True)
class Case:
    """A region of one kernel, its inputs, and what comes out of it, formula by formula."""

    region: LoweredRegion
    kernels: tuple[Kernel, ...]
    inputs: tuple[Tensor, ...]
    entries: tuple[Entry, ...]

    def wrong(self, outputs: Sequence[Tensor]) -> list[str]:
        """What differs from eager, a line for each formula. outputs: the region's."""
        rows = {name: iter(x) for name, x in zip(self.region.outputs, outputs, strict=True)}
        said = (self._differs(e, next(rows[_output(e)])) for e in self.entries)
        return [line for line in said if line]

    def _differs(self, entry: Entry, got: Tensor) -> str:
        bad = differences(entry, got)
        if not bad.any():
            return ""
        at = int(bad.nonzero()[0])
        given = [x[at].item() for x in self.inputs]
        return f"{entry.name}: {got[at].item()!r}, not {entry.want[at].item()!r}, of {given}"


def name_of(dtype: torch.dtype) -> str:
    """Without torch's own."""
    return str(dtype).removeprefix("torch.")


def edges(dtype: torch.dtype) -> Tensor:
    """Values of a type at which functions are special, and a few usual ones."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        ends = torch.iinfo(dtype)
        near = [0, 1, 2, 3, 7, 8, 15, 31, 63, 100, ends.max, ends.max - 1, ends.min, ends.min + 1]
        return torch.tensor([*near, *((-1, -2, -3, -7, -100) if ends.min < 0 else ())], dtype=dtype)
    ends = torch.finfo(dtype)
    own = [ends.smallest_normal, ends.smallest_normal / 4, ends.eps, ends.max, 1 - ends.eps]
    usual = [0.0, 0.25, 0.5, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0, 7.3, 20.0, 88.6, 103.9, 1e4, math.inf]
    signed = [s * x for x in (*usual, *own) for s in (1.0, -1.0)]
    return torch.tensor([*signed, math.nan], dtype=torch.float64).to(dtype)


def operands(dtypes: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
    """Every pair of edge values of the first two types, a rest that fills no vector, and something else beside each."""
    own, others = edges(dtypes[0]), edges(dtypes[1])
    x, y = own.repeat_interleave(len(others)), others.repeat(len(own))
    more = 7 + (-len(x) % 64)
    x, y = (torch.cat([a, a.repeat(more)[:more]]) for a in (x, y))
    return x, y, x.roll(3).contiguous().to(dtypes[-1])


def applied(handler: Any, name: str, operator: Operator, given: Sequence[Any]) -> Any:
    """The operator on values as they are."""
    if name == "where":
        return handler.where(handler.lt(given[0], given[1]), given[1], given[2])
    return getattr(handler, name)(*given[: operator.operands])


def checked_body(
    formula: Formula,
    dtypes: Sequence[torch.dtype],
    place: sympy.Symbol = PLACE,
    target: str = "cuda",
) -> Body:
    """A loop body as lowering leaves it. Raises Unsupported where it refuses the formula."""

    def inner(index: Sequence[sympy.Expr]) -> Any:
        handler: Any = V.get_ops_handler()
        return formula(handler, [handler.load(name, index[0]) for name in INPUTS])

    body = trace([inner], [place])
    types = types_of(body, dict(zip(INPUTS, dtypes, strict=True)).__getitem__, target)
    return (made_safe if target == "cpu" else made_defined)(body, types)


def _output(entry: Entry) -> str:
    return f"out_{name_of(entry.want.dtype)}"


def case_of(entries: Sequence[Entry], inputs: tuple[Tensor, ...], target: str) -> Case:
    """One kernel that applies each formula to the same three inputs; results of one type are rows of one output."""
    length = len(inputs[0])
    dtypes = [x.dtype for x in inputs]
    buffers = {
        n: Buffer(n, "input", d, (length,), (1,)) for n, d in zip(INPUTS, dtypes, strict=True)
    }
    rows: dict[str, int] = {}
    stages = []
    for entry in entries:
        out, own = _output(entry), entry.want.dtype
        row = rows.get(out, 0)
        rows[out] = row + 1
        buffers[out] = Buffer(out, "output", own, (row + 1, length), (length, 1))
        place = sympy.Symbol(f"s{len(stages)}r0", integer=True, nonnegative=True)
        body = checked_body(entry.formula, dtypes, place, target)
        stores = (Store(out, place + row * length),)
        stages.append(
            RowStage(f"{out}_{row}", "map", "", own, ((place, length),), body, stores, ())
        )
    region = LoweredRegion((), buffers, INPUTS, tuple(rows))
    return Case(region, (Kernel((), tuple(stages), {}),), inputs, tuple(entries))


def of_type(table: dict[str, Operator], dtype: torch.dtype, target: str) -> Case:
    """All operators that are called on a type, on what they are converted to, and all numbers of the type."""
    inputs = operands((dtype,) * 3)
    entries = [
        _converted(name, one, inputs)
        for name, one in table.items()
        if one.applies(dtype) and name not in (NAMES - ON_CUDA if target == "cuda" else ())
    ]
    return case_of([*entries, *_numbers(inputs)], inputs, target)


def _converted(name: str, operator: Operator, inputs: tuple[Tensor, ...]) -> Entry:
    dtype = inputs[0].dtype
    wide = operator.computed(dtype)

    def formula(handler: Any, given: list[Any]) -> Any:
        if wide != dtype:
            given = [handler.to_dtype(v, wide) for v in given]
        return applied(handler, name, operator, given)

    return _entry(name, operator, formula, [x.to(wide) for x in inputs])


def _entry(name: str, operator: Operator, formula: Formula, given: Sequence[Tensor]) -> Entry:
    known = torch.ones(len(given[0]), dtype=torch.bool)
    if name == "where":
        want = torch.where(given[0] < given[1], given[1], given[2])
        return Entry(name, formula, want, want, known)
    own = list(given[: operator.operands])
    if operator.known is not None:
        known = operator.known(*own)
        own = [torch.where(known, x, torch.ones_like(x)) for x in own]
    want = operator.reference(*own)
    exact = operator.reference(*(x.double() for x in own)) if want.is_floating_point() else want
    return Entry(name, formula, want, exact, known, operator.unsigned, operator.roundings)


def _extremes(dtype: torch.dtype) -> list[Any]:
    """The numbers of a type whose text in C may be another's."""
    if dtype == torch.bool:
        return [False, True]
    if not dtype.is_floating_point:
        return [torch.iinfo(dtype).min, torch.iinfo(dtype).max, 7]
    return [math.inf, -math.inf, math.nan, -0.0, 0.7] + [torch.finfo(dtype).max] * (
        dtype not in HALVES
    )


def _numbers(inputs: tuple[Tensor, ...]) -> Iterator[Entry]:
    """Each edge value as a constant, as what is there where a mask does not hold, and as one side of a choice."""
    x, y, z = inputs
    known = torch.ones(len(x), dtype=torch.bool)
    for value in _extremes(x.dtype):
        like = torch.full_like(x, value)
        yield Entry(f"constant {value}", _constant(value, x.dtype), like, like, known)
        for name, formula, own in (
            ("masked", _masked(value), x + z),
            ("chosen", _chosen(value), x),
        ):
            want = torch.where(x < y, own, like)
            yield Entry(f"{name} {value}", formula, want, want, known)


def _constant(value: Any, dtype: torch.dtype) -> Formula:
    return lambda handler, given: handler.constant(value, dtype)


def _masked(value: Any) -> Formula:
    def formula(handler: Any, given: list[Any]) -> Any:
        return handler.masked(
            handler.lt(given[0], given[1]), lambda: handler.add(given[2], given[0]), value
        )

    return formula


def _chosen(value: Any) -> Formula:
    return lambda handler, given: handler.where(handler.lt(given[0], given[1]), given[0], value)


def mixed(table: dict[str, Operator], dtypes: Sequence[torch.dtype], target: str) -> Case:
    """All operators of two operands that are not refused on values of two types as they are."""
    inputs = operands((*dtypes, dtypes[0]))
    common = torch.promote_types(*dtypes)
    entries = []
    for name, one in table.items():
        if one.operands != 2:
            continue

        def formula(handler: Any, given: list[Any], name: str = name, one: Operator = one) -> Any:
            return applied(handler, name, one, given)

        try:
            checked_body(formula, [x.dtype for x in inputs])
        except Unsupported:
            continue
        entries.append(_entry(name, one, formula, [x.to(common) for x in inputs]))
    return case_of(entries, inputs, target)


def differences(entry: Entry, got: Tensor) -> Tensor:
    """Where a kernel's values are wrong. Rounded ones may err by twice as much as eager's, and by a few roundings."""
    want, exact = entry.want, entry.exact
    assert got.dtype == want.dtype
    if not want.is_floating_point():
        return (got != want) & entry.known
    ends = torch.finfo(want.dtype)
    allowed = 2 * (want.double() - exact).abs() + entry.roundings * ends.eps * exact.abs()
    allowed = allowed.nan_to_num(0.0, 0.0, 0.0) + ends.smallest_normal
    near = (got.double() - exact).abs() <= allowed
    same = (got == want) | (got.isnan() & want.isnan())
    signs = (got.signbit() == want.signbit()) | (want != 0) | entry.unsigned
    return ~((near | same) & signs) & entry.known
