"""Two GEMMs of one operand whose results are combined point by point (dual GEMM), as one GEMM of two parts.

``silu(x @ g) * (x @ v)`` reads ``x`` twice, and writes one product only for the other to read it. Where both weights
lie in memory in the same way, their columns are parts of one GEMM, as if the weights were one tensor (see `match`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy

from cuda_agent_backend.codegen.analysis.gemm import Factor, GemmForm, gemm_of, numbers_of
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.match import GluMatch, chunk_of, match_glu
from cuda_agent_backend.codegen.cuda.gemm.epilogue.loops import (
    Access,
    cut_at,
    ends_of,
    names_between,
    stored_by,
)
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.match import reader_of
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import row_major
from cuda_agent_backend.codegen.ir.kernel import Kernel, Local, RowStage
from cuda_agent_backend.codegen.ir.loops import split_outer
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Store
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value
from cuda_agent_backend.codegen.transform.hoist_scale import with_scale_hoisted

FEWEST = 8
"""Rows and columns from which on products are worth tiles of their own."""
PART = sympy.Symbol("part_of_two", integer=True, nonnegative=True)
SUMS = "sums_of_two"
"""The local that has the sums of both."""


def match_glu_or_dual_gemm(
    region: LoweredRegion, kernels: tuple[Kernel, ...], number: int
) -> GluMatch:
    """How parts of kernel ``number``'s results, or its results and another product's, are combined in its tiles.

    Raises:
        Unsupported: they are not, with the reason.
    """
    try:
        return match_glu(region, kernels, number)
    except Unsupported:
        return match_dual_gemm(region, kernels, number)


def is_dual_gemm(kernel: Kernel) -> bool:
    """Whether a kernel has two products of one operand, each of which is worth a kernel of its own."""
    sums = [_sum_of(kernel, s) for s in kernel.stages if s.kind == "reduce"]
    large = [c for c in sums if c is not None and min(c.m, c.n) >= FEWEST]
    return len(large) > 1 and len({c.left.buffer for c in large}) == 1


def _sum_of(kernel: Kernel, stage: RowStage) -> GemmForm | None:
    """The GEMM that a stage is, by itself, of numbers or quantized."""
    stored = Store(stage.name, row_major(kernel.outer))
    return gemm_of(with_scale_hoisted(replace(kernel, stages=(replace(stage, stores=(stored,)),))))


def match_dual_gemm(region: LoweredRegion, kernels: tuple[Kernel, ...], number: int) -> GluMatch:
    """How kernel ``number``'s results and those of the product that reads them are combined in one kernel's tiles.

    Raises:
        Unsupported: there are no two such products, with the reason.
    """
    first = kernels[number]
    if numbers_of(first) is None:
        raise Unsupported("no sum of products")
    buffer, _ = stored_by(first)
    reading = reader_of(region, kernels, number, buffer)
    second = kernels[reading]
    c = numbers_of(second)
    if c is None or second.stages[0].stores:
        raise Unsupported("a product that something else than the tail of another one reads")
    first, second = _same_loops(first, second, buffer)
    other, c = numbers_of(first), numbers_of(second)
    if other is None or c is None or not _alike(other, c):
        raise Unsupported(
            "products of different operands, or of weights that lie in different ways"
        )
    one = _joined(first, second, buffer)
    last, chunk = c.columns[-1][0], chunk_of(c.columns[-1], c)
    if chunk > 1:
        one, second = split_outer(one, last, chunk), split_outer(second, last, chunk)
    made = _of_both(numbers_of(second), other.right.buffer, chunk)
    found = [one if n == number else kernel for n, kernel in enumerate(kernels) if n != reading]
    return GluMatch(region, tuple(found), number, SUMS, made)


def _same_loops(first: Kernel, second: Kernel, buffer: str) -> tuple[Kernel, Kernel]:
    """Both products with loops cut to be the same, and of one name; the second reads the results of the first."""
    stored, read = stored_by(first)[1], _read_at(second, buffer)
    ends = ends_of([stored, read])
    first, second = cut_at(first, [stored], ends), cut_at(second, [read], ends)
    names = names_between(stored_by(first)[1], _read_at(second, buffer))
    mine, theirs = (kernel.stages[0].inner for kernel in (first, second))
    if [n for _, n in mine] != [n for _, n in theirs]:
        raise Unsupported("products of different numbers of terms")
    change: dict[sympy.Symbol, sympy.Symbol] = {own: name for name, own in names.items()}
    change |= {a: b for (a, _), (b, _) in zip(mine, theirs, strict=True)}
    return _renamed(first, change), second


def _read_at(second: Kernel, buffer: str) -> Access:
    loads = [i for s in second.stages for i in s.body.accesses() if i.buffer == buffer]
    places = {i.index for i in loads if i.op == "load" and i.index is not None}
    if len(places) != 1 or any(i.op != "load" for i in loads):
        raise Unsupported("a product that is read at several places")
    return places.pop(), second.outer


def _renamed(kernel: Kernel, names: Mapping[sympy.Symbol, sympy.Symbol]) -> Kernel:
    change: dict[sympy.Symbol, sympy.Expr] = dict(names)

    def moved(stores: tuple[Store, ...]) -> tuple[Store, ...]:
        return tuple(replace(s, index=s.index.xreplace(change)) for s in stores)

    stages = tuple(
        replace(
            s,
            inner=tuple((names[symbol], n) for symbol, n in s.inner),
            body=s.body.substitute(change),
            stores=moved(s.stores),
            local_stores=moved(s.local_stores),
        )
        for s in kernel.stages
    )
    outer = tuple((names[symbol], n) for symbol, n in kernel.outer)
    return replace(kernel, outer=outer, stages=stages)


def _alike(a: GemmForm, b: GemmForm) -> bool:
    """Whether two products have all but the buffer of their weights in common."""
    plain = a.right.mask is None and b.right.mask is None and _alike_masked(a.left, b.left)
    sides = ((a.left, b.left), (a.right, b.right))
    same = all(sympy.expand(one.index - other.index) == 0 for one, other in sides)
    numbers = not a.is_quantized and not b.is_quantized and a.dtype == b.dtype
    constants = (a.left.constant, a.right.constant) == (b.left.constant, b.right.constant)
    return plain and same and numbers and constants and a.left.buffer == b.left.buffer


def _alike_masked(a: Factor, b: Factor) -> bool:
    """Whether two factors are masked at the same places, as two convolutions of one padded image are."""
    if a.mask is None or b.mask is None:
        return a.mask is b.mask
    return a.absent == b.absent and _numbered(a.mask) == _numbered(b.mask)


def _numbered(mask: Body) -> list[tuple[object, ...]]:
    """What a mask does, its values by the order in which they are made. Masks have no bodies of their own."""
    numbers = {i.result: n for n, i in enumerate(mask.instructions)}

    def operand(value: object) -> object:
        return ("value", numbers.get(value)) if isinstance(value, Value) else value

    made = [
        (
            i.op,
            tuple(map(operand, i.operands)),
            i.dtype,
            i.index and sympy.expand(i.index),
            i.buffer,
        )
        for i in mask.instructions
    ]
    return [*made, tuple(map(operand, mask.results))]


def _joined(first: Kernel, second: Kernel, buffer: str) -> Kernel:
    """Both as one, whose first stage is the sums of both."""
    own = f"{buffer}_of_two"
    of_first, of_second = ({x.buffer: n for x in _sums(k)} for n, k in enumerate((first, second)))
    *before, last = first.stages
    if not before:  # the sum itself is what the second product reads
        of_second |= {buffer: 0}
    else:
        kept = (*last.local_stores, Store(own, sympy.S.Zero))
        before = [*before[1:], replace(last, stores=(), local_stores=kept)]
    tail = [_reading(s, of_first, {}) for s in before]
    tail += [_reading(s, of_second, {buffer: own}) for s in second.stages[1:]]
    total = replace(second.stages[0], local_stores=(Store(SUMS, sympy.S.Zero),))
    locals_ = {**first.locals, **second.locals, SUMS: Local(SUMS, 2), own: Local(own, 1)}
    return Kernel(second.outer, (total, *tail), locals_)


def _sums(kernel: Kernel) -> tuple[Store, ...]:
    return kernel.stages[0].local_stores


def _reading(stage: RowStage, sums: Mapping[str, int], own: Mapping[str, str]) -> RowStage:
    """A stage that reads sums by their number, and by its own name what the first product stored."""

    def one(i: Instruction) -> Instruction:
        if i.buffer is not None and i.buffer in sums:
            return replace(i, op="local", buffer=SUMS, index=sympy.Integer(sums[i.buffer]))
        if i.buffer is not None and i.buffer in own:
            return replace(i, op="local", buffer=own[i.buffer], index=sympy.S.Zero)
        return i

    return replace(stage, body=Body([one(i) for i in stage.body.instructions], stage.body.results))


def _of_both(c: GemmForm | None, weights: str, chunk: int) -> GemmForm:
    """One product whose columns are those of both, in chunks."""
    if c is None or (chunk > 1 and c.columns[-1][1] != chunk):
        raise Unsupported("columns whose neighbours are not stored next to each other")
    before = c.columns if chunk == 1 else c.columns[:-1]
    right: Factor = replace(c.right, buffer=weights, other=(c.right.buffer, PART))
    columns = (*before, (PART, 2), *c.columns[len(before) :])
    return replace(c, right=right, columns=columns, parts=((PART, 2),))
