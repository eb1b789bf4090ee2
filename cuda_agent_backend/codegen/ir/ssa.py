"""Straight-line form of a loop body: what Inductor's ``inner_fn`` computes at one point of its iteration space.

Inductor describes a body as a Python function that speaks ``ops.*``. Running it under :class:`Tracer`
yields a list of :class:`Instruction`, in which every memory access keeps its index as a sympy
expression over the loop variables. Both emitters print from this form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import Identity

from cuda_agent_backend.codegen.ir.failure import Unsupported

GATHER = "gather"
"""A load whose index holds, beside loop variables, the symbols of `place_symbol` for the values of its operands."""
PLACE_EXPR = "place_expr"
"""The same as a number."""
PLACE = "place"
"""An integer as an index: operands are the integer, the size, whether to check it, whether negative ones count from the
end."""
FLOAT_BITS = "float_bits"
"""The bits of a float32 as an int32."""


def place_symbol(number: int) -> sympy.Symbol:
    """What stands for the value of a gather's operand in its index."""
    return sympy.Symbol(f"gather{number}", integer=True, nonnegative=True)


def number_of(text: str) -> float:
    """The number of which a constant is the Python ``repr``: truths are 1 and 0."""
    return float({"True": 1.0, "False": 0.0}.get(text, text))


def whole_number_of(text: str) -> int:
    """The same of a whole number, each of whose digits counts; what is behind the point is cut off."""
    return int(text) if text.lstrip("-").isdigit() else int(number_of(text))


@dataclass(frozen=True)
class Value:
    """Result of one instruction, by number."""

    number: int

    def __str__(self) -> str:
        return f"v{self.number}"


@dataclass(frozen=True)
class Instruction:
    """``result = op(*operands)``. ``index``/``buffer`` are set for loads and index expressions."""

    result: Value
    op: str
    operands: tuple[Any, ...] = ()
    dtype: torch.dtype | None = None
    buffer: str | None = None
    index: sympy.Expr | None = None
    body: Body | None = None


@dataclass
class Body:
    """Instructions in order and the values they yield."""

    instructions: list[Instruction] = field(default_factory=list)
    results: tuple[Value, ...] = ()

    def walk(self) -> Iterator[Instruction]:
        """All instructions, those of masked sub-bodies included."""
        for instruction in self.instructions:
            yield instruction
            if instruction.body is not None:
                yield from instruction.body.walk()

    def loads(self) -> Iterator[Instruction]:
        return (i for i in self.walk() if i.op == "load")

    def accesses(self) -> Iterator[Instruction]:
        """All reads of memory, those at places that depend on data included."""
        return (i for i in self.walk() if i.op in ("load", GATHER))

    def substitute(self, replacements: dict[sympy.Symbol, sympy.Expr]) -> Body:
        """The same body with loop variables replaced in every index."""

        def one(i: Instruction) -> Instruction:
            index = i.index.xreplace(replacements) if i.index is not None else None
            body = i.body.substitute(replacements) if i.body is not None else None
            return Instruction(i.result, i.op, i.operands, i.dtype, i.buffer, index, body)

        return Body([one(i) for i in self.instructions], self.results)


def pruned(body: Body) -> Body:
    """``body`` without what nothing needs."""
    needed = set(body.results)
    kept: list[Instruction] = []
    for i in reversed(body.instructions):
        if i.result not in needed:
            continue
        kept.append(i)
        inside = i.body.walk() if i.body is not None else ()
        uses = [*i.operands, *(o for own in inside for o in own.operands)]
        uses += i.body.results if i.body is not None else ()
        needed.update(v for v in uses if isinstance(v, Value))
    return Body(kept[::-1], body.results)


def numbered_from(first: int, body: Body) -> Body:
    """A body without others in it, with other numbers for its values."""

    def moved(operand: object) -> object:
        return Value(operand.number + first) if isinstance(operand, Value) else operand

    made = [
        replace(i, result=Value(i.result.number + first), operands=tuple(map(moved, i.operands)))
        for i in body.instructions
    ]
    return Body(made, tuple(Value(v.number + first) for v in body.results))


class Tracer(DefaultHandler):
    """Ops handler that records instructions, with common subexpressions recorded once."""

    def __init__(self) -> None:
        self._counter = 0
        self._bodies: list[Body] = [Body()]
        self._seen: list[dict[Any, Value]] = [{}]
        self._places: dict[sympy.Symbol, Value] = {}

    def _add(self, op: str, operands: tuple[Any, ...] = (), **rest: Any) -> Value:
        key = (op, operands, rest.get("dtype"), rest.get("buffer"), rest.get("index"))
        if rest.get("body") is None:
            for seen in reversed(self._seen):
                known: Value | None = seen.get(key)
                if known is not None:
                    return known
        value = Value(self._counter)
        self._counter += 1
        self._bodies[-1].instructions.append(Instruction(value, op, operands, **rest))
        if rest.get("body") is None:
            self._seen[-1][key] = value
        return value

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(not isinstance(a, Value | int | float | bool) for a in (*args, *kwargs.values())):
            raise Unsupported(f"loop operation {name} with non-scalar arguments")
        return self._add(name, (*args, *kwargs.values()))

    def constant(self, value: bool | float | int, dtype: torch.dtype) -> Value:
        # repr() keeps -0.0, inf and nan apart where equality would merge or split them
        return self._add("constant", (repr(value),), dtype=dtype)

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Value:
        number = sympy.sympify(expr)
        if number.is_number and not number.is_Integer:  # an element count less a correction
            value = float(number) if dtype.is_floating_point else int(number)
            return self.constant(value, dtype)
        index, values = self._gathered(sympy.sympify(expr))
        return self._add(PLACE_EXPR if values else "index_expr", values, dtype=dtype, index=index)

    def _gathered(self, index: sympy.Expr) -> tuple[sympy.Expr, tuple[Value, ...]]:
        """An index with the symbols of a gather, and the values that they stand for."""
        while index.has(Identity):  # keeps Inductor from multiplying out, as in a join of joins
            index = sympy.expand(index.replace(Identity, lambda inner: inner))
        places = sorted(index.free_symbols & self._places.keys(), key=str)
        names = {symbol: place_symbol(number) for number, symbol in enumerate(places)}
        return index.xreplace(names), tuple(self._places[symbol] for symbol in places)

    def to_dtype(
        self,
        x: Value,
        dtype: torch.dtype,
        src_dtype: torch.dtype | None = None,
        use_compute_types: bool = True,
    ) -> Value:
        return self._add("to_dtype", (x,), dtype=dtype)

    def to_dtype_bitcast(self, x: Value, dtype: torch.dtype, src_dtype: torch.dtype) -> Value:
        if (src_dtype, dtype) != (torch.float32, torch.int32):
            raise Unsupported("bit casts between dtypes")
        return self._add(FLOAT_BITS, (x,), dtype=dtype)

    def load(self, name: str, index: sympy.Expr) -> Value:
        expression, values = self._gathered(sympy.sympify(index))
        return self._add(GATHER if values else "load", values, buffer=name, index=expression)

    def masked(self, mask: Value, body: Callable[[], Any], other: Any) -> Value:
        self._bodies.append(Body())
        self._seen.append({})
        result = body()
        inner = self._bodies.pop()
        self._seen.pop()
        inner.results = (unwrap(result),)
        return self._add("masked", (mask, repr(other)), body=inner)

    def indirect_indexing(
        self, x: Value, size: sympy.Expr, check: bool = True, wrap_neg: bool = True
    ) -> sympy.Symbol:
        """A symbol for the value ``x`` in an index of a dimension of ``size``."""
        if not isinstance(x, Value) or not sympy.sympify(size).is_Integer:
            raise Unsupported("an index that is no value, or into a dimension of symbolic size")
        place = self._add(PLACE, (x, int(size), bool(check), bool(wrap_neg)))
        symbol = sympy.Symbol(f"place{place.number}", integer=True, nonnegative=True)
        self._places[symbol] = place
        return symbol

    def check_bounds(self, *args: Any, **kwargs: Any) -> None:
        """Indices are checked by the framework before a region starts, not inside kernels."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise Unsupported("random numbers, nested reductions, bucketize or inline assembly")

    load_seed = rand = rand_eager = randn = randint64 = bucketize = scan = sort = _refuse
    reduction = store = store_reduction = frexp = inline_asm_elementwise = _refuse

    @property
    def body(self) -> Body:
        return self._bodies[0]


def unwrap(value: Any) -> Value:
    """The recorded value behind Inductor's operator-overloading wrapper."""
    inner = getattr(value, "value", value)
    if not isinstance(inner, Value):
        raise Unsupported(f"loop body yields {type(inner).__name__}")
    return inner


def trace(inner_fns: Sequence[Callable[..., Any]], *index: Sequence[sympy.Expr]) -> Body:
    """Run ``inner_fns`` at ``index`` (and a reduction index, if given) and record what they do.

    Raises:
        Unsupported: an operation outside what the emitters print.
    """
    tracer = Tracer()
    with V.set_ops_handler(tracer):
        results = tuple(unwrap(fn(*index)) for fn in inner_fns)
    tracer.body.results = results
    return tracer.body


COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
NARROW_POINTS = 1 << 28
"""Loop points up to which sums and differences of a few index values surely fit 32 bits."""


def narrow_comparisons(body: Body, points: int) -> Body:
    """Compare index values in 32 bits where nothing else uses them: twice the lanes, same truth.

    ``points``: number of points of the loops, which bounds every index value.
    """
    if points > NARROW_POINTS:
        return body
    users: dict[Value, list[Instruction]] = {}
    for i in body.walk():
        for o in i.operands:
            if isinstance(o, Value):
                users.setdefault(o, []).append(i)
    narrow = {i.result for i in body.walk() if i.result in users and _index_like(i)}
    while True:  # an operation narrows all of its operands and its result, or nothing
        mixed = {
            v
            for v in narrow
            for u in users[v]
            if (u.op not in COMPARISONS and u.result not in narrow)
            or any(o not in narrow for o in u.operands)
        }
        mixed |= {
            i.result
            for i in body.walk()
            if i.result in narrow
            and any(o not in narrow for o in i.operands if isinstance(o, Value))
        }
        if not mixed:
            return _with_dtype(body, narrow, torch.int32) if narrow else body
        narrow -= mixed


def _index_like(i: Instruction) -> bool:
    if i.op in ("add", "sub"):
        return True
    if i.dtype != torch.int64:
        return False
    return i.op == "index_expr" or (
        i.op == "constant" and abs(int(float(i.operands[0]))) < NARROW_POINTS
    )


def _with_dtype(body: Body, values: set[Value], dtype: torch.dtype) -> Body:
    changed = [
        replace(
            i,
            dtype=dtype if i.result in values and i.dtype is not None else i.dtype,
            body=_with_dtype(i.body, values, dtype) if i.body is not None else None,
        )
        for i in body.instructions
    ]
    return Body(changed, body.results)
