"""Removes row-local arrays: their readers compute the elements again.

Where a row does not stay on the chip an array over it cannot be kept either, and the work to make it again is small
beside reading memory.
"""

from __future__ import annotations

from dataclasses import replace

import sympy
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient, simplify
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, RowStage
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value


def inline_arrays(kernel: Kernel, keep: frozenset[str] = frozenset()) -> Kernel:
    """``kernel`` without the arrays that maps make, except ``keep``.

    Raises:
        Unsupported: an array is made by a scan, or read at an index that does not name its element.
    """
    makers: dict[str, RowStage] = {}
    stages: list[RowStage] = []
    gone = {n for n, local in kernel.locals.items() if local.size > 1 and n not in keep}
    for stage in kernel.stages:
        body = _inline(stage.body, makers, (*kernel.outer, *stage.inner))
        stage = replace(stage, body=body)
        mine = {s.buffer for s in stage.local_stores} & gone
        if mine:
            if stage.kind != "map":
                raise Unsupported(f"array of a {stage.kind} that does not stay on the chip")
            makers |= dict.fromkeys(mine, stage)
            stage = replace(
                stage, local_stores=tuple(s for s in stage.local_stores if s.buffer not in mine)
            )
        if stage.stores or stage.local_stores:
            stages.append(stage)
    locals_ = {n: local for n, local in kernel.locals.items() if n not in gone}
    return Kernel(kernel.outer, tuple(stages), locals_)


def _inline(body: Body, makers: dict[str, RowStage], ranges: tuple[Dim, ...]) -> Body:
    fresh = 1 + max((i.result.number for i in body.walk()), default=-1)

    def one(inside: Body) -> Body:
        nonlocal fresh
        result: list[Instruction] = []
        for i in inside.instructions:
            if i.body is not None:
                result.append(replace(i, body=one(i.body)))
            elif i.op == "local" and i.buffer in makers:
                maker = makers[i.buffer]
                change = _coordinates(maker, i, ranges)
                copied, fresh, last = _copy(maker.body, change, ranges, fresh, i.result)
                result += copied
                if last is not None:
                    result.append(Instruction(i.result, "identity", (last,)))
            else:
                result.append(i)
        return Body(result, inside.results)

    return one(body)


def _coordinates(
    maker: RowStage, read: Instruction, ranges: tuple[Dim, ...]
) -> dict[sympy.Symbol, sympy.Expr]:
    """The maker's loop variables at the element that ``read`` wants."""
    assert read.index is not None and read.buffer is not None
    (written,) = (s.index for s in maker.local_stores if s.buffer == read.buffer)
    stride, change = 1, {}
    for symbol, size in reversed(maker.inner):
        if coefficient(written, symbol) != stride:
            raise Unsupported("array written out of order, then read out of order")
        outermost = symbol == maker.inner[0][0]
        index = (
            FloorDiv(read.index, stride) if outermost else ModularIndexing(read.index, stride, size)
        )
        change[symbol] = simplify(index, ranges)
        stride *= size
    return change


def _copy(
    body: Body,
    change: dict[sympy.Symbol, sympy.Expr],
    ranges: tuple[Dim, ...],
    fresh: int,
    wanted: Value,
) -> tuple[list[Instruction], int, Value | None]:
    """Instructions of ``body`` under fresh numbers; the value that stands for its result."""
    numbers: dict[int, Value] = {}

    def one(inside: Body) -> Body:
        nonlocal fresh
        result = []
        for i in inside.instructions:
            numbers[i.result.number] = Value(fresh)
            fresh += 1
            inner = one(i.body) if i.body is not None else None
            operands = tuple(numbers[o.number] if isinstance(o, Value) else o for o in i.operands)
            index = simplify(i.index.xreplace(change), ranges) if i.index is not None else None
            result.append(
                replace(
                    i, result=numbers[i.result.number], operands=operands, index=index, body=inner
                )
            )
        return Body(result, tuple(numbers[r.number] for r in inside.results))

    copied = one(body)
    return copied.instructions, fresh, copied.results[0]
