"""Row blocking: a thread works on several rows together, so that what they share is read once for all of them.

Of a product of a matrix and a vector every row reads the same vector. Where that is too long for the L1 cache, half of
what a multiprocessor asks the L2 cache for is the vector; with four rows together it is a fifth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy

from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import simplify, with_indices
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, Local, RowStage
from cuda_agent_backend.codegen.ir.region import Store
from cuda_agent_backend.codegen.ir.schedule import Parameter
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction

TOGETHER = "together"
"""The schedule's parameter: how many rows are one."""
MOST = 8
"""Rows together: each has accumulators of its own."""


def block_of_rows(parameters: Mapping[str, Parameter]) -> int:
    """How many rows a schedule takes together; 1 where it does not say. Raises Unsupported on what is no number."""
    count = parameters.get(TOGETHER, 1)
    if not isinstance(count, int) or count < 1:
        raise Unsupported(f"schedule parameter {TOGETHER}={count!r}")
    return count


def reused_loop(kernel: Kernel) -> Dim | None:
    """The loop over rows that some, but not all, of what is read along them depends on; the longest such one."""
    loads = [
        i.index.free_symbols
        for stage in kernel.stages
        for i in stage.body.loads()
        if i.index is not None and i.index.free_symbols & {symbol for symbol, _ in stage.inner}
    ]
    found = [d for d in kernel.outer if 0 < sum(d[0] in symbols for symbols in loads) < len(loads)]
    return max(found, key=lambda dim: dim[1], default=None)


def block_rows(kernel: Kernel, count: int) -> Kernel:
    """``kernel`` with ``count`` neighbouring rows of its `reused_loop` as one, each with stages of its own.

    Raises Unsupported where there is no such loop, where ``count`` does not divide it, and for what is no reduction.
    """
    if count == 1:
        return kernel
    loop = reused_loop(kernel)
    if loop is None or not 1 < count <= MOST or loop[1] % count:
        raise Unsupported(f"{count} rows together")
    if any(s.kind == "scan" for s in kernel.stages) or _arrays(kernel):
        raise Unsupported("rows together that are kept")
    outer = tuple((s, n // count if s == loop[0] else n) for s, n in kernel.outer)
    stages = [_of_row(s, kernel, loop[0], n, count) for s in kernel.stages for n in range(count)]
    made = {
        _name(name, n): local.size for name, local in kernel.locals.items() for n in range(count)
    }
    return Kernel(outer, tuple(stages), {name: Local(name, size) for name, size in made.items()})


def _arrays(kernel: Kernel) -> bool:
    return any(local.size > 1 for local in kernel.locals.values())


def _name(name: str, row: int) -> str:
    return f"{name}_{row}" if row else name


def _of_row(
    stage: RowStage, kernel: Kernel, symbol: sympy.Symbol, row: int, count: int
) -> RowStage:
    change = {symbol: count * symbol + row}
    rows = [(s, n // count if s == symbol else n) for s, n in kernel.outer]
    ranges = (*rows, *stage.inner)

    def moved(s: Store) -> Store:
        return replace(s, index=simplify(s.index.xreplace(change), ranges))

    own = [replace(moved(s), buffer=_name(s.buffer, row)) for s in stage.local_stores]
    return replace(
        stage,
        name=_name(stage.name, row),
        body=with_indices(_renamed(stage.body, row), change, ranges),
        stores=tuple(map(moved, stage.stores)),
        local_stores=tuple(own),
    )


def _renamed(body: Body, row: int) -> Body:
    """The body with the row's own values of a row."""

    def one(i: Instruction) -> Instruction:
        inside = _renamed(i.body, row) if i.body is not None else None
        own = _name(i.buffer, row) if i.op == "local" and i.buffer else i.buffer
        return replace(i, buffer=own, body=inside)

    return Body([one(i) for i in body.instructions], body.results)
