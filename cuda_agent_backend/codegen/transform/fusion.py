"""Fusion: which stages of a region run together in one kernel.

The stages of a kernel share their rows (see `ir.kernel`). A buffer that is made and read within one row is local and
needs no memory, which is what fusion is for. `group` takes as many stages into a kernel as it can; `analysis.rows` says
in which ways a stage can be seen as rows, and `analysis.row_arrays` whether its reads stay within them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import sympy

from cuda_agent_backend.codegen.analysis.row_arrays import RowArray, localised, row_array
from cuda_agent_backend.codegen.analysis.rows import (
    StageRows,
    dense_index,
    fresh_inner,
    in_common_loops,
    in_memory_order,
    refine,
    views_as_rows,
)
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import (
    simplify,
    with_indices,
)
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, Local, RowStage
from cuda_agent_backend.codegen.ir.loops import merge_inner
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Stage

MOST_LOCAL = 1 << 16
"""Elements that a row of maps may keep. One row of everything would keep whole tensors on the chip."""


def group(
    region: LoweredRegion, fits: Callable[[Kernel], bool] = lambda kernel: True
) -> tuple[Kernel, ...]:
    """Cut the region's stages into kernels, in the order that takes fewer. ``fits``: what kernels of several may be.

    Raises:
        Unsupported: a single stage fits no kernel.
    """
    found = _in_order(region.stages, region.outputs, fits)
    ordered = _by_rows(region.stages)
    if len(found) == 1 or all(a is b for a, b in zip(ordered, region.stages, strict=True)):
        return found
    other = _in_order(ordered, region.outputs, fits)
    return other if len(other) < len(found) else found


def _by_rows(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """``stages`` in an order in which a reduction follows those before over as many rows, with the maps it needs."""
    waiting = list(stages)
    ordered: list[Stage] = []
    while waiting:
        rows = _rows_wanted([s for s in ordered if s.kind != "map"][-1:])
        taken = waiting[:1]
        for number, stage in enumerate(waiting):
            if stage.kind == "map" or _rows_wanted([stage]) != rows:
                continue
            needed = _ancestors(stage, waiting[:number])
            if all(s.kind == "map" for s in needed):
                taken = [*needed, stage]
                break
        ordered += taken
        waiting = [s for s in waiting if not any(s is t for t in taken)]
    return tuple(ordered)


def _ancestors(stage: Stage, waiting: Sequence[Stage]) -> list[Stage]:
    """Those of ``waiting``, in order, that ``stage`` needs."""
    wanted = stage.reads()
    found: list[Stage] = []
    for other in reversed(waiting):
        if other.writes() & wanted:
            wanted = wanted | other.reads()
            found.append(other)
    return found[::-1]


def _in_order(
    stages: Sequence[Stage], outputs: Sequence[str], fits: Callable[[Kernel], bool]
) -> tuple[Kernel, ...]:
    """Kernels greedily as long as possible, in order."""
    kernels: list[Kernel] = []
    start = 0
    while start < len(stages):
        best: tuple[int, Kernel] | None = None
        for end in range(len(stages), start, -1):
            outside = {b for s in stages[end:] for b in s.reads()} | set(outputs)
            kernel = _one_kernel(stages[start:end], outside)
            if kernel is not None and (end == start + 1 or fits(kernel)):
                best = (end, kernel)
                break
        if best is None:
            raise Unsupported(f"stage {stages[start].name} fits no kernel form")
        kernels.append(best[1])
        start = best[0]
    return tuple(kernels)


def _one_kernel(stages: Sequence[Stage], keep: set[str]) -> Kernel | None:
    """One kernel of all ``stages``, or None. keep: buffers that are needed in memory."""
    wanted = _rows_wanted(stages)
    if wanted == -1:
        return None
    if wanted is not None:
        return _over_rows(stages, wanted, keep)
    if len(stages) == 1:
        return _over_rows(stages, 1, keep)
    if any(
        math.prod(n for _, n in s.outer) != math.prod(n for _, n in stages[0].outer) for s in stages
    ):
        return None
    for rows in _map_rows(stages):
        kernel = _over_rows(stages, rows, keep)
        if kernel is not None and sum(v.size for v in kernel.locals.values()) <= MOST_LOCAL:
            return kernel
    return None


def _rows_wanted(stages: Sequence[Stage]) -> int | None:
    """Rows that the reductions and scans ask for; -1 if they disagree, None if there is none."""
    wanted = {math.prod(n for _, n in s.outer) for s in stages if s.kind != "map"}
    if not wanted:
        return None
    return wanted.pop() if len(wanted) == 1 else -1


def _map_rows(stages: Sequence[Stage]) -> list[int]:
    """Row counts to try for stages that are all maps: fewest first, so that inner loops are long."""
    smallest = min(math.prod(n for _, n in s.outer) for s in stages)
    dims = min((s.outer for s in stages), key=lambda d: math.prod(n for _, n in d))
    counts, product = [1], 1
    for _, size in dims:
        product *= size
        counts.append(product)
    return [c for c in counts if c <= smallest]


def _over_rows(stages: Sequence[Stage], rows: int, keep: set[str]) -> Kernel | None:
    """One kernel of all ``stages`` over ``rows`` rows, or None if some access may leave its row."""
    row_buffers = {s.buffer for st in stages if st.kind == "reduce" for s in st.stores}
    scans = {s.buffer: st for st in stages if st.kind == "scan" for s in st.stores}
    choices = []
    for stage in stages:
        views = [in_memory_order(v) for v in views_as_rows(stage, rows, row_buffers, scans)]
        if not views:
            return None
        choices.append(views)
    # The last view of a stage serves layouts whose rows are no prefix: all first views are tried, then all last ones.
    for pick in (0, -1):
        kernel = _fused([views[pick] for views in choices], keep)
        if kernel is not None:
            return kernel
    return None


def _fused(views: Sequence[StageRows], keep: set[str]) -> Kernel | None:
    """One kernel of stages that are seen as equally many rows each; None if some access may leave its row."""
    sizes = refine([[n for _, n in view.outer] for view in views])
    if sizes is None:
        return None
    outer = tuple(
        (sympy.Symbol(f"p{i}", integer=True, nonnegative=True), n) for i, n in enumerate(sizes)
    )
    fusion = _Fusion(outer, keep)
    return fusion.kernel() if all(fusion.add(view) for view in views) else None


@dataclass
class _Fusion:
    """A kernel in the making: stages are added one after the other, each over the same rows (`outer`).

    arrays: what the stages so far store, and where within the row. in_parts: buffers that several of them store, each a
    part, which no later stage of the kernel may read. keep: buffers that are also needed in memory.
    """

    outer: tuple[Dim, ...]
    keep: set[str]
    arrays: dict[str, RowArray] = field(default_factory=dict)
    in_parts: set[str] = field(default_factory=set)
    stages: list[RowStage] = field(default_factory=list)

    def add(self, view: StageRows) -> bool:
        """Take one more stage. False where it reads or stores something that is not surely within its row."""
        stage = view.stage
        inner, names = fresh_inner(view, f"s{len(self.stages)}")
        change = {**in_common_loops(view, self.outer), **names}
        ranges = (*self.outer, *inner)
        # Two steps: a cut variable becomes (high, low) first, then both get their final names.
        body = with_indices(stage.body.substitute(view.replace), change, ranges)
        in_row = localised(body, self.arrays, self.outer, inner)
        if in_row is None or stage.reads() & self.in_parts:
            return False
        stores = [
            replace(s, index=simplify(s.index.xreplace(view.replace).xreplace(change), ranges))
            for s in stage.stores
        ]
        for s in stores:
            array = row_array(s.index, self.outer, inner if stage.kind != "reduce" else ())
            if array is None:
                return False
            if s.buffer in self.arrays:
                self.in_parts.add(s.buffer)
            self.arrays[s.buffer] = array
        index = dense_index(view, inner)
        made = RowStage(
            stage.name,
            stage.kind,
            stage.combine,
            stage.dtype,
            inner,
            in_row,
            stores=tuple(s for s in stores if s.buffer in self.keep),
            local_stores=tuple(replace(s, index=index) for s in stores),
        )
        self.stages.append(merge_inner(made))
        return True

    def kernel(self) -> Kernel:
        """The kernel of all stages. Local is only what one of them reads."""
        read = {i.buffer for s in self.stages for i in s.body.walk() if i.op == "local"}
        stages = tuple(
            replace(s, local_stores=tuple(t for t in s.local_stores if t.buffer in read))
            for s in self.stages
        )
        locals_ = {b: Local(b, a.size) for b, a in self.arrays.items() if b in read}
        return Kernel(self.outer, stages, locals_)
