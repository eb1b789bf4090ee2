"""Row stages that join the results of tiles: sums, extremes, Welford's statistics, sums of exponentials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Dim, Local, RowStage
from cuda_agent_backend.codegen.ir.region import Store
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value, number_of
from cuda_agent_backend.codegen.ir.value_types import stage_dtype

Made = dict[Value, Instruction]
Numbers = dict[tuple[Any, ...], int]
"""Of values, by what computes them."""
ZERO = sympy.S.Zero
ANOTHERS = "a reduction that needs another's result"


def in_tile(stage: RowStage, makers: Mapping[str, RowStage]) -> RowStage:
    """The reduction that a tile makes of its part of a reduction.

    Of squared deviations from the row's mean, Welford's statistics say what they are of all. makers: what makes the
    row's scalars, reductions as they are in tiles.
    """
    sums = stage.combine == "sum" and stage_dtype(stage).is_floating_point
    deviating = deviating_in(stage.body, makers) if sums else None
    if deviating is None:
        return stage
    made = {i.result: i for i in stage.body.instructions}
    needed = closure(deviating, made)
    kept = [i for i in stage.body.instructions if i.result in needed]
    return replace(stage, combine="welford", body=Body(kept, (deviating,)))


def joining(
    stage: RowStage, own: Mapping[str, RowStage], loops: tuple[Dim, ...], place: sympy.Expr
) -> tuple[list[RowStage], dict[str, Local]]:
    """The stages that join a reduction's parts over ``loops``, each part at ``place``, and the scalars they add.

    own: reductions in tiles by name, this one's and those before. Raises Unsupported where the reduction needs the
    result of another otherwise than sums of exponentials and of squared deviations do.
    """
    mine = own[stage.name]
    parts = [s.buffer for s in mine.stores]
    tops = tops_in(mine, own)
    if tops and mine.combine == "welford":
        raise Unsupported(ANOTHERS)
    if stage.combine == "welford":
        return _welford(stage, parts, loops, place)
    if mine.combine == "welford":
        body = _deviations_of(stage, mine, parts, loops, place)
    elif tops:
        body = _scaled(stage, mine, tops, loops, place)
    else:
        body = _loads(parts, place)
    return [replace(stage, inner=loops, body=body)], {}


def tops_in(stage: RowStage, own: Mapping[str, RowStage]) -> dict[str, RowStage]:
    """Results of other reductions of ``own`` that a stage reads, by name."""
    read = {i.buffer for i in stage.body.walk() if i.op == "local"}
    return {
        s.buffer: other for other in own.values() for s in other.local_stores if s.buffer in read
    }


def _loads(buffers: Sequence[str], place: sympy.Expr) -> Body:
    made = [
        Instruction(Value(n), "load", buffer=buffer, index=place)
        for n, buffer in enumerate(buffers)
    ]
    return Body(made, (Value(0),))


def _given(
    body: Body, value: Value, source: Instruction, moving: set[sympy.Symbol]
) -> list[Instruction]:
    """``body`` with ``value`` from ``source``. Raises Unsupported where the rest depends on ``moving`` loops."""
    made = {i.result: i for i in body.instructions}
    needed = closure(body.results[0], made, value)
    rest = [i for i in body.instructions if i.result in needed and i.result != value]
    if any(i.body is not None or (i.index or ZERO).free_symbols & moving for i in rest):
        raise Unsupported("a factor that differs along a row")
    return [source, *rest]


def closure(value: Value, made: Made, leaf: Value | None = None) -> set[Value]:
    """What ``value`` is made of; nothing of what ``leaf`` is made of."""
    found, waiting = {v for v in (leaf,) if v is not None}, [value]
    while waiting:
        one = waiting.pop()
        if one in found or one not in made:
            continue
        found.add(one)
        waiting += [o for o in made[one].operands if isinstance(o, Value)]
        inner = made[one].body
        if inner is not None:
            within = [o for i in inner.walk() for o in i.operands]
            waiting += [o for o in (*within, *inner.results) if isinstance(o, Value)]
    return found


def _unused(body: Body) -> int:
    return 1 + max(i.result.number for i in body.walk())


def _scaled(
    stage: RowStage,
    mine: RowStage,
    tops: Mapping[str, RowStage],
    loops: tuple[Dim, ...],
    place: sympy.Expr,
) -> Body:
    """A tile's sum of ``exp(x - its maximum)`` times ``exp(its maximum - the row's)``, which the body itself says."""
    body, value = stage.body, below(mine, tops)
    (top,) = tops.values()
    highest = Instruction(value, "load", buffer=top.stores[0].buffer, index=place)
    made = _given(body, value, highest, {s for s, _ in (*stage.inner, *loops)})
    first = _unused(body)
    total = Instruction(Value(first), "load", buffer=mine.stores[0].buffer, index=place)
    product = Instruction(Value(first + 1), "mul", (body.results[0], total.result))
    return Body([*made, total, product], (product.result,))


def below(stage: RowStage, tops: Mapping[str, RowStage]) -> Value:
    """The ``x`` of a stage's sum of ``exp(c * (x - m))``, where ``m`` is the maximum of ``x``, or 0 where that is not
    finite. Raises Unsupported where it is something else."""
    made = {i.result: i for i in stage.body.instructions}
    i: Instruction | None = made[stage.body.results[0]]
    if stage.combine != "sum" or i is None or i.op != "exp" or len(tops) != 1:
        raise Unsupported(ANOTHERS)
    i = made.get(i.operands[0])
    while i is not None and i.op in ("mul", "truediv") and _constant(i.operands[1], made):
        i = made.get(i.operands[0])
    ((name, top),) = tops.items()
    if i is None or i.op != "sub" or not _is_top(i.operands[1], made, name):
        raise Unsupported(ANOTHERS)
    found: Value = i.operands[0]
    if top.combine != "max" or not _same(found, stage.body, top.body):
        raise Unsupported(ANOTHERS)
    return found


def multiple_of(body: Body) -> Instruction | None:
    """What at hand the result is a positive multiple of: rounding keeps the order, so the largest multiple is that of
    the largest. None where it is no multiple, or of something else."""
    made = {i.result: i for i in body.instructions}
    last = i = made[body.results[0]]
    while i.op in ("mul", "truediv") and _is_positive(i.operands[1], made):
        if i.operands[0] not in made:
            return None
        i = made[i.operands[0]]
    return i if i.op == "local" and i is not last else None


def _constant(operand: Any, made: Made) -> float | None:
    if not isinstance(operand, Value) or made[operand].op != "constant":
        return None
    return number_of(made[operand].operands[0])


def _is_top(value: Any, made: Made, name: str) -> bool:
    """Whether ``value`` is the scalar ``name``, or that with 0 for infinities."""
    i = made.get(value)
    if i is None or i.op != "where":
        return i is not None and i.op == "local" and i.buffer == name
    asked, zero, other = i.operands
    test = made.get(asked)
    if test is None or test.op != "eq" or _constant(test.operands[1], made) != math.inf:
        return False
    size = made.get(test.operands[0])
    of_it = size is not None and size.op == "abs" and size.operands[0] == other
    return of_it and _constant(zero, made) == 0.0 and _is_top(other, made, name)


def _same(value: Value, body: Body, other: Body) -> bool:
    """Whether ``value`` of ``body`` is what ``other`` computes."""
    numbers: Numbers = {}
    theirs = _numbered(other, numbers)
    return _numbered(body, numbers)[value] == theirs[other.results[0]]


def _numbered(
    body: Body, numbers: Numbers, outer: Mapping[Value, int] | None = None
) -> dict[Value, int]:
    """A number for each value, the same for all that are computed the same in bodies that share ``numbers``."""
    found = dict(outer or {})
    for i in body.instructions:
        operands = tuple(found[o] if isinstance(o, Value) else repr(o) for o in i.operands)
        within = _numbered(i.body, numbers, found) if i.body is not None else {}
        inner = tuple(within[r] for r in i.body.results) if i.body is not None else None
        key = (i.op, operands, i.dtype, i.buffer, i.index, inner)
        found[i.result] = numbers.setdefault(key, len(numbers))
    return found


def deviating_in(body: Body, makers: Mapping[str, RowStage]) -> Value | None:
    """The ``x`` of ``(x - m)**2`` where ``m`` is a mean of ``x``; None where ``body`` is something else.

    Where ``x`` is not finite its mean is not either, and neither are the deviations nor Welford's statistics. Of
    deviations from another scalar those would be NaN where eager's are infinite.
    """
    made = {i.result: i for i in body.instructions}
    i = made[body.results[0]]
    if i.op != "square" and not (i.op == "mul" and i.operands[0] == i.operands[1]):
        return None
    difference = made.get(i.operands[0])
    if difference is None or difference.op != "sub":
        return None
    x, m = difference.operands
    if not isinstance(x, Value):
        return None
    total = _summed(m, body, makers)
    return x if total is not None and _same(x, body, total.body) else None


def _summed(value: Any, body: Body, makers: Mapping[str, RowStage]) -> RowStage | None:
    """The sum of which ``value`` of ``body`` is a positive multiple; None where it is something else."""
    made = {i.result: i for i in body.instructions}
    i = made.get(value)
    while i is not None and i.op in ("mul", "truediv") and _is_positive(i.operands[1], made):
        i = made.get(i.operands[0])
    if i is None or i.op != "local" or i.buffer is None or i.buffer not in makers:
        return None
    maker = makers[i.buffer]
    if maker.kind == "map" and not maker.inner:
        return _summed(maker.body.results[0], maker.body, makers)
    return maker if maker.kind == "reduce" and maker.combine == "sum" else None


def _is_positive(operand: Any, made: Made) -> bool:
    """Whether it is a finite constant above 0."""
    i = made.get(operand)
    if i is not None and i.op == "index_expr" and i.index is not None:
        return bool(i.index.is_Integer and i.index > 0)
    constant = _constant(operand, made)
    return constant is not None and 0 < constant < math.inf


def _deviations_of(
    stage: RowStage,
    mine: RowStage,
    parts: Sequence[str],
    loops: tuple[Dim, ...],
    place: sympy.Expr,
) -> Body:
    """``m2 + n (mean - m)**2`` of each part, of which the body itself says the square."""
    body, (value,), first = stage.body, mine.body.results, _unused(stage.body)
    mean = Instruction(value, "load", buffer=parts[0], index=place)
    made = _given(body, value, mean, {s for s, _ in (*stage.inner, *loops)})
    loads = [
        Instruction(Value(first + n), "load", buffer=buffer, index=place)
        for n, buffer in enumerate(parts[1:])
    ]
    m2, count = (i.result for i in loads)
    weighed = Instruction(Value(first + 2), "mul", (body.results[0], count))
    total = Instruction(Value(first + 3), "add", (m2, weighed.result))
    return Body([*made, *loads, weighed, total], (total.result,))


def _welford(
    stage: RowStage, parts: Sequence[str], loops: tuple[Dim, ...], place: sympy.Expr
) -> tuple[list[RowStage], dict[str, Local]]:
    """Mean and squared deviations of all from those of parts: ``m2 + n (mean - all's)**2`` each."""
    dtype = stage_dtype(stage)
    mean, m2, count = (_field(stage, n) for n in range(3))
    names = [f"{stage.name}_{what}" for what in ("total", "number", "mean")]

    def reduction(
        what: str, body: Body, stores: tuple[Store, ...], local: tuple[Store, ...]
    ) -> RowStage:
        return RowStage(f"{stage.name}_{what}", "reduce", "sum", dtype, loops, body, stores, local)

    total = _loads(parts, place)
    weighed = Instruction(Value(3), "mul", (Value(0), Value(2)))
    stages = [
        reduction("sum", Body([*total.instructions, weighed], (Value(3),)), (), (Store(names[0], ZERO),)),
        reduction("count", Body(total.instructions[2:], (Value(2),)), count[0], (*count[1], Store(names[1], ZERO))),
        RowStage(
            f"{stage.name}_mean", "map", "", dtype, (), _ratio(names[0], names[1], dtype),
            mean[0], (*mean[1], Store(names[2], ZERO)),
        ),
    ]  # fmt: skip
    if any(m2):
        stages.append(reduction("m2", _deviations(total, names[2], dtype), *m2))
    return stages, {name: Local(name, 1) for name in names}


def _field(stage: RowStage, field: int) -> tuple[tuple[Store, ...], tuple[Store, ...]]:
    """Stores of one of the statistics, to memory and to scalars."""

    def pick(stores: tuple[Store, ...]) -> tuple[Store, ...]:
        return tuple(replace(s, field=0) for s in stores if s.field == field)

    return pick(stage.stores), pick(stage.local_stores)


def _ratio(a: str, b: str, dtype: torch.dtype) -> Body:
    reads = [
        Instruction(Value(n), "local", dtype=dtype, buffer=name, index=ZERO)
        for n, name in enumerate((a, b))
    ]
    return Body([*reads, Instruction(Value(2), "truediv", (Value(0), Value(1)))], (Value(2),))


def _deviations(total: Body, mean: str, dtype: torch.dtype) -> Body:
    steps = [
        Instruction(Value(3), "local", dtype=dtype, buffer=mean, index=ZERO),
        Instruction(Value(4), "sub", (Value(0), Value(3))),
        Instruction(Value(5), "square", (Value(4),)),
        Instruction(Value(6), "mul", (Value(5), Value(2))),
        Instruction(Value(7), "add", (Value(1), Value(6))),
    ]
    return Body([*total.instructions, *steps], (Value(7),))
