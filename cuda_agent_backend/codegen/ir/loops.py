"""Kernels with other loops that do the same: one loop cut into several, or several joined into one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import sympy

from cuda_agent_backend.codegen.ir.indices import (
    coefficient,
    simplify,
    with_indices,
)
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, RowStage
from cuda_agent_backend.codegen.ir.region import Store


def split_outer(kernel: Kernel, symbol: sympy.Symbol, part: int) -> Kernel:
    """The same kernel with one outer loop as two: over parts of that many points, and within one."""
    (size,) = (n for s, n in kernel.outer if s == symbol)
    return cut_loops(kernel, {symbol: (size // part, part)})


def cut_loops(kernel: Kernel, parts: Mapping[sympy.Symbol, Sequence[int]]) -> Kernel:
    """The same kernel with loops as several each, of the sizes in ``parts``, from the outermost to the innermost."""
    loops, change = loops_of_parts(parts)

    def cut(dims: Sequence[Dim]) -> tuple[Dim, ...]:
        return tuple(own for dim in dims for own in loops.get(dim[0], (dim,)))

    outer = cut(kernel.outer)

    def stage(s: RowStage) -> RowStage:
        inner = cut(s.inner)
        ranges = (*outer, *inner)

        def moved(stores: tuple[Store, ...]) -> tuple[Store, ...]:
            return tuple(
                replace(t, index=simplify(t.index.xreplace(change), ranges)) for t in stores
            )

        body = with_indices(s.body, change, ranges)
        return replace(
            s,
            inner=inner,
            body=body,
            stores=moved(s.stores),
            local_stores=moved(s.local_stores),
        )

    return replace(kernel, outer=outer, stages=tuple(map(stage, kernel.stages)))


def loops_of_parts(
    parts: Mapping[sympy.Symbol, Sequence[int]],
) -> tuple[dict[sympy.Symbol, tuple[Dim, ...]], dict[sympy.Symbol, sympy.Expr]]:
    """The loops that stand for each of those that are cut, of the sizes in ``parts``, and its value over them."""
    loops = {s: tuple((_part(s, n), size) for n, size in enumerate(p)) for s, p in parts.items()}
    change: dict[sympy.Symbol, sympy.Expr] = {}
    for symbol, dims in loops.items():
        change[symbol] = sympy.S.Zero
        for own, size in dims:
            change[symbol] = change[symbol] * size + own
        change[symbol] = sympy.expand(change[symbol])
    return loops, change


def _part(symbol: sympy.Symbol, number: int) -> sympy.Symbol:
    return sympy.Symbol(f"{symbol}_{number}", integer=True, nonnegative=True)


def mergeable(a: Dim, b: Dim, indices: Iterable[sympy.Expr]) -> bool:
    """Whether loops ``a`` (outside) and ``b`` (inside) are one loop for every index."""
    for e in indices:
        ca, cb = coefficient(e, a[0]), coefficient(e, b[0])
        if ca is None or cb is None or ca != cb * b[1]:
            return False
    return True


def merge_inner(stage: RowStage) -> RowStage:
    """Join adjacent inner loops wherever every access allows it."""
    inner = list(stage.inner)
    body, stores, local_stores = stage.body, stage.stores, stage.local_stores
    position = len(inner) - 2
    while position >= 0:
        a, b = inner[position], inner[position + 1]
        indices = [i.index for i in body.walk() if i.index is not None]
        indices += [s.index for s in (*stores, *local_stores)]
        if mergeable(a, b, indices):
            change = {a[0]: sympy.S.Zero}
            body = body.substitute(change)
            stores = tuple(replace(s, index=s.index.xreplace(change)) for s in stores)
            local_stores = tuple(replace(s, index=s.index.xreplace(change)) for s in local_stores)
            inner[position : position + 2] = [(b[0], a[1] * b[1])]
        position -= 1
    return replace(stage, inner=tuple(inner), body=body, stores=stores, local_stores=local_stores)


def merge_outer(kernel: Kernel) -> Kernel:
    """Join adjacent outer loops wherever every access allows it: longer lines of neighbouring rows."""
    outer = list(kernel.outer)
    indices = [i.index for s in kernel.stages for i in s.body.walk() if i.index is not None]
    indices += [t.index for s in kernel.stages for t in s.stores]
    gone: dict[sympy.Symbol, sympy.Expr] = {}
    for position in range(len(outer) - 2, -1, -1):
        a, b = outer[position], outer[position + 1]
        if mergeable(a, b, indices):
            gone[a[0]] = sympy.S.Zero
            outer[position : position + 2] = [(b[0], a[1] * b[1])]
    if not gone:
        return kernel
    stages = tuple(
        replace(
            s,
            body=s.body.substitute(gone),
            stores=tuple(replace(t, index=t.index.xreplace(gone)) for t in s.stores),
        )
        for s in kernel.stages
    )
    return replace(kernel, outer=tuple(outer), stages=stages)
