"""In which ways a stage can be seen as rows.

The stages of a kernel share their rows: a reduction's or a scan's are given by its outer loops; those of a map are
chosen such that it does, row by row, what the other stages need.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sympy

from cuda_agent_backend.codegen.ir.indices import (
    coefficient,
    simplify,
)
from cuda_agent_backend.codegen.ir.kernel import Dim
from cuda_agent_backend.codegen.ir.region import Stage


def refine(chains: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Coarsest sizes into which every list of sizes (of equal product) splits evenly; None if there is none."""
    cuts = {1}
    for chain in chains:
        product = 1
        for size in reversed(chain):
            product *= size
            cuts.add(product)
    ordered = sorted(cuts)
    sizes = []
    for low, high in itertools.pairwise(ordered):
        if high % low:
            return None
        sizes.append(high // low)
    return tuple(reversed(sizes))


def prefix_split(
    dims: Sequence[Dim], rows: int
) -> tuple[list[Dim], list[Dim], dict[sympy.Symbol, sympy.Expr]] | None:
    """Split dimensions in order into rows and the rest, cutting one dimension in two where needed."""
    outer: list[Dim] = []
    rest = list(dims)
    cut: dict[sympy.Symbol, sympy.Expr] = {}
    while rows > 1:
        if not rest:
            return None
        symbol, size = rest.pop(0)
        if rows % size == 0:
            outer.append((symbol, size))
            rows //= size
        elif size % rows == 0:
            high = sympy.Symbol(f"{symbol}h", integer=True, nonnegative=True)
            low = sympy.Symbol(f"{symbol}l", integer=True, nonnegative=True)
            cut[symbol] = high * (size // rows) + low
            outer.append((high, rows))
            rest.insert(0, (low, size // rows))
            rows = 1
        else:
            return None
    return outer, rest, cut


def split_by_load(
    dims: Sequence[Dim], index: sympy.Expr, rows: int
) -> tuple[list[Dim], list[Dim]] | None:
    """Take as rows the dimensions by which a row-sized buffer is read: ``index`` numbers the rows."""
    used = [
        (symbol, size, coefficient(index, symbol))
        for symbol, size in dims
        if symbol in index.free_symbols
    ]
    if any(c is None for *_, c in used):
        return None
    used.sort(key=lambda item: -(item[2] or 0))
    expected = 1
    for _, size, c in reversed(used):
        if c != expected:
            return None
        expected *= size
    if expected != rows:
        return None
    chosen = {symbol for symbol, *_ in used}
    return [(s, n) for s, n, _ in used], [d for d in dims if d[0] not in chosen]


def split_by_scan(
    dims: Sequence[Dim], index: sympy.Expr, scan: Stage
) -> tuple[list[Dim], list[Dim]] | None:
    """Take as rows the dimensions that step through what ``scan`` made, read at ``index``, as its own rows do."""
    rest, rows = list(dims), []
    for symbol, size in scan.outer:
        step = coefficient(scan.stores[0].index, symbol)
        own = [d for d in rest if d[1] == size and coefficient(index, d[0]) == step]
        if len(own) != 1:
            return None
        rows.append(own[0])
        rest.remove(own[0])
    return rows, rest


@dataclass(frozen=True)
class StageRows:
    """A stage seen as rows: ``outer`` loops over rows, ``inner`` loops within one.

    replace: loops of the stage that were cut in two, as expressions over the two.
    """

    stage: Stage
    outer: tuple[Dim, ...]
    inner: tuple[Dim, ...]
    replace: dict[sympy.Symbol, sympy.Expr]


def views_as_rows(
    stage: Stage, rows: int, row_buffers: set[str], scans: Mapping[str, Stage]
) -> list[StageRows]:
    """Ways of seeing ``stage`` as ``rows`` rows, most natural first. ``scans``: those before it, by what they make."""
    if stage.kind != "map":
        if math.prod(n for _, n in stage.outer) != rows:
            return []
        return [StageRows(stage, stage.outer, stage.inner, {})]
    result = []
    split = prefix_split(stage.outer, rows)
    if split is not None:
        result.append(StageRows(stage, tuple(split[0]), tuple(split[1]), split[2]))
    for load in stage.body.loads():
        by_load = None
        if load.buffer in row_buffers and load.index is not None:
            by_load = split_by_load(stage.outer, load.index, rows)
        elif load.buffer is not None and load.buffer in scans and load.index is not None:
            index = simplify(load.index, stage.outer)
            by_load = split_by_scan(stage.outer, index, scans[load.buffer])
        if by_load is not None:
            result.append(StageRows(stage, tuple(by_load[0]), tuple(by_load[1]), {}))
    return result


def in_common_loops(view: StageRows, outer: Sequence[Dim]) -> dict[sympy.Symbol, sympy.Expr]:
    """The stage's outer variables as expressions over the kernel's, both in row-major order."""
    replacements: dict[sympy.Symbol, sympy.Expr] = {}
    position = len(outer)
    for symbol, size in reversed(view.outer):
        expression, product = sympy.S.Zero, 1
        while product < size:
            position -= 1
            expression += outer[position][0] * product
            product *= outer[position][1]
        replacements[symbol] = expression
    return replacements


def fresh_inner(
    view: StageRows, tag: str
) -> tuple[tuple[Dim, ...], dict[sympy.Symbol, sympy.Expr]]:
    """The inner loops with names of their own, which begin with ``tag``, and those names by the stage's."""
    inner, names = [], {}
    for position, (symbol, size) in enumerate(view.inner):
        fresh = sympy.Symbol(f"{tag}r{position}", integer=True, nonnegative=True)
        inner.append((fresh, size))
        names[symbol] = fresh
    return tuple(inner), names


def in_memory_order(view: StageRows) -> StageRows:
    """Loop order by memory: the smallest stride of the largest access goes innermost."""
    stage = view.stage
    if stage.kind == "scan" or len(view.inner) < 2:
        return view
    index = (
        stage.stores[0].index
        if stage.kind == "map"
        else next((i.index for i in stage.body.loads() if i.index is not None), None)
    )
    if index is None:
        return view
    index = sympy.expand(index.xreplace(view.replace))
    strides = {s: coefficient(index, s) for s, _ in view.inner}
    if stage.combine in ("argmax", "argmin") or any(c is None or c == 0 for c in strides.values()):
        return view  # an arg reduction numbers its points in logical order
    return replace(view, inner=tuple(sorted(view.inner, key=lambda d: -(strides[d[0]] or 0))))


def dense_index(view: StageRows, inner: Sequence[Dim]) -> sympy.Expr:
    """Row-major index within the row array. Row order is that of the stage's loops as written."""
    if view.stage.kind == "reduce":
        return sympy.S.Zero
    total, stride = sympy.S.Zero, 1
    for symbol, size in reversed(inner):
        total += symbol * stride
        stride *= size
    return sympy.expand(total)
