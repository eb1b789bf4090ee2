"""Losses: rows whose results are reduced to one number, or to a few.

One kernel reduces each row, a second makes a loss of what a row came to and reduces the losses of all rows. By itself
the second takes little, but it is a launch, and what it reads and gathers it reads behind everything else: a focal
loss of pixels gathers each logit again. There may be several such numbers, each of as many rows that follow each other.
`loss_reduction_of` finds the two kernels, so that one makes a row's loss while it has its results at hand (see
`writer`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from cuda_agent_backend.codegen.analysis.cancellation import WIDE_SUM
from cuda_agent_backend.codegen.analysis.gemm import gemm_of
from cuda_agent_backend.codegen.analysis.passes import over_loops
from cuda_agent_backend.codegen.cuda.gemm.epilogue.loops import (
    Access,
    Names,
    cut_at,
    ends_of,
    names_between,
)
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel, Local, RowStage
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Store
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value

COMBINES = ("sum", "prod", "max", "min")
"""Reductions in which it does not matter where a value comes from."""
ZERO = sympy.S.Zero


@dataclass(frozen=True)
class LossReduction:
    """Kernels ``number`` and ``number`` + 1 of what was asked for are one of ``kernels``.

    Attributes:
        rows: the first of them, with a stage for each of ``totals`` that makes a row's value of that name.
        totals: names of those values, each of the reduction of ``after`` at the same place in its stages.
        after: the second. Its reductions read nothing: what they reduce is at hand when a row is done.
    """

    kernels: tuple[Kernel, ...]
    number: int
    rows: Kernel
    totals: tuple[str, ...]
    after: Kernel


def loss_reduction_of(
    region: LoweredRegion, kernels: tuple[Kernel, ...], number: int
) -> LossReduction:
    """Raises Unsupported where kernel ``number`` and the next are something else, with the reason."""
    if number + 2 > len(kernels):
        raise Unsupported("no kernel behind this one")
    first, second = kernels[number : number + 2]
    reducing = _reducing(first, second)
    handed = _handed(first, reducing)
    second = _over_same_loops(second, handed)
    first, second = _cut_alike(first, second, handed)
    stores = _stores_of(first, handed)
    reducing = _reducing(first, second)
    names = _rows_by_loops(second, reducing, stores)
    if [names[symbol] for symbol, _ in second.outer] != [s for s, _ in first.outer][
        : len(second.outer)
    ]:
        raise Unsupported("rows of which one number is made that do not follow each other")
    values = tuple(_value(stage, names, handed) for stage in reducing)
    gone = handed - _needed_elsewhere(region, kernels, number)
    made = (*(_kept_local(s, handed, gone) for s in first.stages), *values)
    totals = tuple(s.buffer for stage in values for s in stage.local_stores)
    locals_ = {name: Local(name, 1) for name in (*handed, *totals)}
    rows = Kernel(first.outer, made, {**first.locals, **locals_})
    stages = tuple(_of_what_is_made(s) if s in reducing else s for s in second.stages)
    after = replace(second, stages=stages)
    both = Kernel(rows.outer, (*rows.stages, *after.stages), {**rows.locals, **after.locals})
    found = (*kernels[:number], both, *kernels[number + 2 :])
    return LossReduction(found, number, rows, totals, after)


def _reducing(first: Kernel, second: Kernel) -> list[RowStage]:
    """The reductions over all rows of ``first``."""
    if first.rows < 2 * second.rows or first.is_map:
        raise Unsupported("no rows that are made one number of")
    product = gemm_of(first)
    if product is not None and min(product.m, product.n) > 1:
        raise Unsupported("products, which have tiles")
    reducing = [s for s in second.stages if s.inner]
    for stage in reducing:
        whole = stage.points * second.rows == first.rows
        if stage.kind != "reduce" or stage.combine not in COMBINES or not whole:
            raise Unsupported("something else than a reduction over all rows")
        if any(i.op == "local" or i.body is not None for i in stage.body.walk()):
            raise Unsupported("reductions over rows that are masked, or of which one needs another")
    if not reducing or any(s.kind == "scan" for s in (*first.stages, *second.stages)):
        raise Unsupported("no reduction over all rows, or a scan")
    if any(s.kind == "reduce" for s in second.stages if not s.inner):
        raise Unsupported("a reduction of what was reduced")
    return reducing


def _handed(first: Kernel, reducing: Sequence[RowStage]) -> frozenset[str]:
    """Buffers of the first kernel's results that the second reads, each with one number of a row."""
    made = {s.buffer: stage for stage in first.stages for s in stage.stores}
    read = {i.buffer for s in reducing for i in s.body.accesses() if i.buffer in made}
    handed = frozenset(b for b in read if b is not None)
    for buffer in handed:
        stage = made[buffer]
        if stage.kind != "reduce" and stage.inner:
            raise Unsupported("rows that are read again")
        if sum(s.buffer == buffer for own in first.stages for s in own.stores) > 1:
            raise Unsupported("a result with several stores")
    if not handed:
        raise Unsupported("kernels of which the second does not need the first")
    return handed


def _reads(second: Kernel, stage: RowStage, handed: frozenset[str]) -> Iterator[Access]:
    for i in stage.body.accesses():
        if i.buffer in handed:
            if i.op != "load" or i.index is None:
                raise Unsupported("results of rows that are gathered")
            yield i.index, (*second.outer, *stage.inner)


def _over_same_loops(second: Kernel, handed: frozenset[str]) -> Kernel:
    """The kernel with the loops over rows that read nothing of them named like those that do."""
    stages = [s for s in second.stages if s.inner]
    reading = next(s for s in stages if any(True for _ in _reads(second, s, handed)))
    sizes = [n for _, n in reading.inner]

    def named(stage: RowStage) -> RowStage:
        same = stage in stages and [n for _, n in stage.inner] == sizes
        return over_loops(stage, reading.inner) if same else stage

    return replace(second, stages=tuple(map(named, second.stages)))


def _stores_of(first: Kernel, handed: frozenset[str]) -> dict[str, Access]:
    return {
        s.buffer: (s.index, first.outer)
        for stage in first.stages
        for s in stage.stores
        if s.buffer in handed
    }


def _cut_alike(first: Kernel, second: Kernel, handed: frozenset[str]) -> tuple[Kernel, Kernel]:
    """Both kernels with their loops over rows cut at the same places."""
    stored = list(_stores_of(first, handed).values())
    read = [access for s in second.stages if s.inner for access in _reads(second, s, handed)]
    ends = ends_of([*stored, *read])
    return cut_at(first, stored, ends), cut_at(second, read, ends)


def _rows_by_loops(
    second: Kernel, reducing: Sequence[RowStage], stores: dict[str, Access]
) -> Names:
    """The loops over rows of the first kernel by those of the second."""
    found: Names = {}
    for stage in reducing:
        for i in stage.body.loads():
            if i.buffer in stores and i.index is not None:
                names = names_between(stores[i.buffer], (i.index, (*second.outer, *stage.inner)))
                if any(found.setdefault(own, name) != name for own, name in names.items()):
                    raise Unsupported("results of rows that are read in several orders")
    return found


def _value(stage: RowStage, names: Names, handed: frozenset[str]) -> RowStage:
    """The stage that makes a row's value of what is reduced over rows."""
    if any(symbol not in names for symbol, _ in stage.inner):
        raise Unsupported("reductions over rows in different loops")

    def at_hand(i: Instruction) -> Instruction:
        return replace(i, op="local", index=ZERO) if i.buffer in handed else i

    moved = stage.body.substitute(dict(names))
    body = Body([at_hand(i) for i in moved.instructions], moved.results)
    name = f"{stage.name}_of_row"
    return replace(
        stage, name=name, kind="map", combine="", inner=(), body=body, stores=(),
        local_stores=(Store(name, ZERO),),
    )  # fmt: skip


def _needed_elsewhere(
    region: LoweredRegion, kernels: tuple[Kernel, ...], number: int
) -> frozenset[str]:
    """What is an output or read by others than the kernel behind ``number``."""
    others = [k for n, k in enumerate(kernels) if n not in (number, number + 1)]
    stages = [s for k in others for s in k.stages]
    stages += [s for s in kernels[number + 1].stages if not s.inner]
    read = {i.buffer for s in stages for i in s.body.accesses() if i.buffer is not None}
    return frozenset({*region.outputs, *read})


def _kept_local(stage: RowStage, handed: frozenset[str], gone: frozenset[str]) -> RowStage:
    """A stage that keeps what it hands on within its row; what is ``gone`` is not stored any more."""
    here = {s.buffer for s in stage.local_stores}
    new = [Store(s.buffer, ZERO, s.field) for s in stage.stores if s.buffer in handed - here]
    stores = tuple(s for s in stage.stores if s.buffer not in gone)
    return replace(stage, stores=stores, local_stores=(*stage.local_stores, *new))


def _of_what_is_made(stage: RowStage) -> RowStage:
    """A reduction whose terms are made elsewhere. Sums of float32 are kept in double: they are one for each row."""
    dtype = stage.dtype
    assert isinstance(dtype, torch.dtype)
    wide = stage.combine == "sum" and dtype == torch.float32
    nothing = Instruction(Value(0), "constant", ("0",), dtype)
    combine = WIDE_SUM if wide else stage.combine
    return replace(stage, combine=combine, body=Body([nothing], (Value(0),)))
