"""Tensors joined along a loop, in parts: what a product makes of one is stored where it belongs, as its own tail.

Joining is a loop over all of the result, whose masks say which operand an element is of. A product among the operands
was written, and read again by that loop. In parts, that of the product is a loop over the product's elements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy

from cuda_agent_backend.codegen.ir.facts import AT_LEAST
from cuda_agent_backend.codegen.ir.indices import coefficient, never_negative, simplify
from cuda_agent_backend.codegen.ir.kernel import Dim
from cuda_agent_backend.codegen.ir.region import Stage
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value
from cuda_agent_backend.codegen.transform.split_at_scan import part_of_stage


def with_concat_split(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """``stages`` with maps that join products in parts, each behind the last stage that it needs."""
    products = {s.buffer: st for st in stages if st.kind == "reduce" for s in st.stores}
    result: list[Stage] = []
    for stage in stages:
        parts = _parts(stage, products) if stage.kind == "map" else (stage,)
        for part in parts if len(parts) > 1 else ():
            needed = [n for n, s in enumerate(result) if s.writes() & part.reads()]
            result.insert(needed[-1] + 1 if needed else len(result), part)
        result += parts if len(parts) == 1 else ()
    return tuple(result)


def _parts(stage: Stage, products: Mapping[str, Stage]) -> tuple[Stage, ...]:
    """``stage`` cut along one loop where the products that it reads begin and end."""
    ends: dict[sympy.Symbol, set[int]] = {}
    for load in stage.body.loads():
        product = products.get(load.buffer or "")
        along = _along(stage, load, product) if product is not None else None
        if along is not None:
            ends.setdefault(along[0], set()).update(along[1:])
    if len(ends) != 1:
        return (stage,)
    ((loop, cuts),) = ends.items()
    size = dict(stage.outer)[loop]
    places = itertools.pairwise(sorted(cuts | {0, size}))
    parts = tuple(_settled(part_of_stage(stage, loop, low, high), products) for low, high in places)
    read = [buffer for part in parts for buffer in part.reads() & products.keys()]
    return parts if len(set(read)) == len(read) else (stage,)


def _along(stage: Stage, load: Instruction, product: Stage) -> tuple[sympy.Symbol, int, int] | None:
    """The loop that is longer than the product's, and where on it the product begins and ends."""
    if load.index is None or _points(product.outer) >= _points(stage.outer):
        return None
    index = simplify(load.index, stage.outer)
    points = _points(product.outer)
    first = -index.xreplace({symbol: sympy.S.Zero for symbol, _ in stage.outer})
    steps = {symbol: coefficient(index, symbol) or 0 for symbol, _ in stage.outer}
    for symbol, size in stage.outer:
        step = steps[symbol]
        if step <= 0 or not first.is_Integer or int(first) % step:
            continue
        wider = min((s for s in steps.values() if s > step), default=points)
        begin, own, others = int(first) // step, wider // step, _points(stage.outer) // size
        if 0 <= begin <= size - own and own < size and others * own == points:
            return symbol, begin, begin + own
    return None


def _points(dims: Sequence[Dim]) -> int:
    return math.prod(size for _, size in dims)


def _settled(stage: Stage, products: Mapping[str, Stage]) -> Stage:
    """``stage`` without the masks and choices that are the same at all of its points, and what only these needed. What
    is masked everywhere reads no product."""
    known: dict[Value, bool] = {}
    same: dict[Value, Value] = {}
    made: dict[Value, Instruction] = {}

    def settle(body: Body) -> None:
        for i in body.instructions:
            i = _with(i, same)
            holds = _holds(i, made, known, stage.outer)
            if holds is not None:
                known[i.result] = holds
            chosen = known.get(i.operands[0]) if i.op in ("masked", "where") else None
            if i.op == "where" and chosen is not None and isinstance(i.operands[2 - chosen], Value):
                same[i.result] = i.operands[2 - chosen]
            elif i.body is not None and chosen:
                settle(i.body)
                (same[i.result],) = (same.get(r, r) for r in i.body.results)
            elif i.body is not None and chosen is False:
                made[i.result] = replace(i, body=_without(i.body, products))
            else:
                made[i.result] = i

    settle(stage.body)
    results = tuple(same.get(r, r) for r in stage.body.results)
    return replace(stage, body=_needed(Body(list(made.values()), results)))


def _with(i: Instruction, same: Mapping[Value, Value]) -> Instruction:
    """An instruction that reads other values instead."""
    operands = tuple(same.get(o, o) if isinstance(o, Value) else o for o in i.operands)
    body = i.body
    if body is not None:
        inner = [_with(own, same) for own in body.instructions]
        body = Body(inner, tuple(same.get(r, r) for r in body.results))
    return replace(i, operands=operands, body=body)


def _without(body: Body, products: Mapping[str, Stage]) -> Body:
    """A body that never counts, without reads of products."""
    inner = []
    for i in body.instructions:
        if i.body is not None:
            i = replace(i, body=_without(i.body, products))
        elif i.op == "load" and (product := products.get(i.buffer or "")) is not None:
            i = Instruction(i.result, "constant", ("0",), product.dtype)
        inner.append(i)
    return Body(inner, body.results)


def _holds(
    i: Instruction,
    made: Mapping[Value, Instruction],
    known: Mapping[Value, bool],
    ranges: Sequence[Dim],
) -> bool | None:
    """Whether a condition holds at all points, or at none; None where that is not known."""
    if i.op in ("and_", "logical_and", "bitwise_and"):
        both = [known.get(o) for o in i.operands]
        return False if False in both else True if all(both) else None
    if i.op not in AT_LEAST:
        return None
    a, b = (_place(made.get(o)) for o in i.operands)
    if a is None or b is None:
        return None
    more = sympy.expand(AT_LEAST[i.op](a, b))
    if never_negative(more, ranges):
        return True
    return False if never_negative(-1 - more, ranges) else None


def _place(i: Instruction | None) -> sympy.Expr | None:
    if i is not None and i.op == "constant" and str(i.operands[0]).lstrip("-").isdigit():
        return sympy.Integer(str(i.operands[0]))
    return i.index if i is not None and i.op == "index_expr" else None


def _needed(body: Body) -> Body:
    """``body`` without what its results do not depend on."""
    wanted = set(body.results)
    kept: list[Instruction] = []
    for i in reversed(body.instructions):
        if i.result in wanted:
            kept.append(i)
            inner = i.body.walk() if i.body is not None else ()
            operands = [*i.operands, *(o for own in inner for o in own.operands)]
            wanted |= {o for o in operands if isinstance(o, Value)}
    return Body(kept[::-1], body.results)
