"""What there is to know of a kernel's rows before a layout is chosen, and how much a kernel does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sympy

from cuda_agent_backend.codegen.analysis.gemm import gemm_of
from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.common.flat_loops import POSITION, Flat
from cuda_agent_backend.codegen.cuda.common.parts import needs_wide
from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.cuda.rows.program import Key, RowProgram, is_full, row_points
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Kernel, RowStage
from cuda_agent_backend.codegen.ir.loops import merge_outer
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.ssa import GATHER, Instruction
from cuda_agent_backend.codegen.ir.value_types import stage_dtype

TERMS_PER_BYTE = 12
"""Products that are summed while a byte is moved."""
LEAST_TRAFFIC = 4 << 20
"""Bytes that take as long as a launch."""


@dataclass(frozen=True)
class RowFacts:
    """What the estimate needs to know of a kernel's rows.

    Attributes:
        points, rows, columns: elements of a row, rows, and rows that are neighbours in memory.
        item: bytes of an element.
        arrays: arrays over the row that are kept at the same time.
        passes: loops over the row.
        loose: loads over the row that only one pass does.
        line: what a vector must divide.
        inner, outer: which lanes find neighbours in memory, for most of what is read.
        again: loads that several passes do where no array over the row is kept.
        slots: bytes of the accumulators of a row.
        store_line: what a vector must divide to be stored whole.
        streams: elements that one pass reads at a position, the most of any.
        products: whether there are running products, which are kept in double.
    """

    points: int
    rows: int
    columns: int
    item: int
    arrays: int
    passes: int
    loose: int
    scans: bool
    writes: bool
    line: int
    inner: bool
    outer: bool
    wide: bool
    again: int = 0
    slots: int = 0
    store_line: int = 0
    streams: int = 1
    products: bool = False


def item_bytes(kernel: Kernel, region: LoweredRegion) -> int:
    """Bytes of the widest element in the largest buffers: they set the vector width."""
    names = {i.buffer for s in kernel.stages for i in s.body.accesses() if i.buffer is not None}
    names |= {s.buffer for st in kernel.stages for s in st.stores}
    buffers = [region.buffers[n] for n in names]
    most = max((b.extent for b in buffers), default=1)
    return max((b.dtype.itemsize for b in buffers if b.extent * 2 > most), default=4)


def traffic_of(kernel: Kernel, region: LoweredRegion) -> float:
    """What a kernel does, in bytes of memory traffic, about: arithmetic of products at its rate, and never nothing."""
    reached: dict[str, int] = {}
    for stage in kernel.stages:
        for i in stage.body.accesses():
            if i.buffer is not None:
                reached[i.buffer] = max(reached.get(i.buffer, 0), _reached(i, kernel, stage))
    buffers = region.buffers
    read = sum(min(n, buffers[b].extent) * buffers[b].dtype.itemsize for b, n in reached.items())
    stored = {s.buffer for st in kernel.stages for s in st.stores}
    written = sum(buffers[b].extent * buffers[b].dtype.itemsize for b in stored)
    product = gemm_of(kernel)
    terms = 0 if product is None else product.batches * product.m * product.n * product.k
    return max(read + written, terms / TERMS_PER_BYTE, LEAST_TRAFFIC)


def row_facts(kernel: Kernel, region: LoweredRegion) -> RowFacts:
    """Raises Unsupported where the kernel has no row form."""
    kernel = merge_outer(kernel)
    points = row_points(kernel)
    scans = any(s.kind == "scan" for s in kernel.stages)
    program = RowProgram.of(kernel, Layout(points, kernel.rows, ordered=scans), region)
    full = [p for p in program.passes if is_full(p, points)]
    inner = outer = loose = 0
    for stage in (s for p in full for s in p.stages):
        for i in stage.body.accesses():
            if i.index is None:
                continue
            weight = _reached(i, kernel, stage)
            loose += 1
            inner += weight * (abs(coefficient(i.index, stage.inner[-1][0]) or 0) == 1)
            outer += weight * (
                bool(kernel.outer) and coefficient(i.index, kernel.outer[-1][0]) == 1
            )
    line = math.gcd(*(p.inner[-1][1] for p in full)) if full else 1
    return RowFacts(
        points=points,
        rows=kernel.rows,
        columns=kernel.outer[-1][1] if kernel.outer else 1,
        item=item_bytes(kernel, region),
        arrays=max(len(program.kept), len(program.own)),
        passes=len(full),
        loose=loose - sum(_uses(program, key) for key in program.kept),
        scans=scans,
        writes=any(s.stores for p in full for s in p.stages if s.kind != "reduce"),
        line=line,
        inner=inner >= outer,
        outer=outer > inner,
        wide=needs_wide(region, kernel),
        again=_loads_again(kernel, region),
        slots=sum(_slot_bytes(s) for s in kernel.stages if s.kind == "reduce"),
        store_line=math.gcd(line, *_store_places(full)) if scans else line,
        streams=_streams(program, points),
        products=any(s.kind == "scan" and s.combine == "prod" for s in kernel.stages),
    )


def _streams(program: RowProgram, points: int) -> int:
    """Loads of different elements of a row that a full pass does at one position, the most of any."""

    def of_pass(p: Pass, flat: Flat) -> int:
        loads = [i for s in p.stages for i in s.body.loads()]
        places = {(i.buffer, flat.of(i.index)) for i in loads if i.index is not None}
        return sum(index.has(POSITION) for _, index in places)

    pairs = zip(program.passes, program.flats, strict=True)
    return max((of_pass(p, flat) for p, flat in pairs if is_full(p, points)), default=1)


def _store_places(full: Sequence[Pass]) -> Iterator[int]:
    """What must divide by a vector's width for the vectors that passes store along the row to be aligned."""
    for stage in (s for p in full for s in p.stages):
        lane = stage.inner[-1][0]
        for s in stage.stores:
            step = coefficient(s.index, lane)
            if step in (1, -1):
                rest = sympy.expand(s.index - step * lane + int(step == -1))
                yield from (int(c) for c in rest.as_coefficients_dict().values())


def _loads_again(kernel: Kernel, region: LoweredRegion) -> int:
    """Loads that several passes do, where arrays over the row are computed again."""
    if any(s.kind == "scan" for s in kernel.stages):
        return 0
    layout = Layout(row_points(kernel), kernel.rows, team=1, keep="shared", held=1)
    try:
        return len(RowProgram.of(kernel, layout, region).kept)
    except Unsupported:
        return 0


def _slot_bytes(stage: RowStage) -> int:
    """Bytes of an accumulator, about."""
    return max(8, 3 * stage_dtype(stage).itemsize)


def _reached(i: Instruction, kernel: Kernel, stage: RowStage) -> int:
    """Elements that all points of a stage read by ``i``: what is read for every row or every column again is near."""
    loops = (*kernel.outer, *stage.inner)
    if i.op == GATHER or i.index is None:
        return math.prod(n for _, n in loops)
    return math.prod(n for symbol, n in loops if symbol in i.index.free_symbols)


def _uses(program: RowProgram, key: Key) -> int:
    """How often the bodies of full passes load ``key``."""
    pairs = zip(program.passes, program.flats, strict=True)
    loads = ((i, flat) for p, flat in pairs for s in p.stages for i in s.body.loads())
    return sum(
        i.buffer == key[0] and i.index is not None and flat.of(i.index) == key[1]
        for i, flat in loads
    )
