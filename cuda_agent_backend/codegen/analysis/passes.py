"""Stages of a kernel -> passes over a row: stages that can share one loop do.

A pass reads its inputs once for all its stages: exp and the sum over it, the several sums of a norm's backward.
Values made in a pass are handed on in registers; only what a later pass reads is kept in the row's scratch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, Local, RowStage
from cuda_agent_backend.codegen.ir.loops import cut_loops
from cuda_agent_backend.codegen.ir.region import Store
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value


@dataclass(frozen=True)
class Pass:
    """Stages over the same inner loops, in order; their inner symbols are the same. A scan comes first."""

    stages: tuple[RowStage, ...]

    @property
    def inner(self) -> tuple[Dim, ...]:
        return self.stages[0].inner

    @property
    def kind(self) -> str:
        """ "scan" (with nothing but maps after it), "reduce" if any stage reduces, else "map"."""
        kinds = {s.kind for s in self.stages}
        return "scan" if "scan" in kinds else "reduce" if "reduce" in kinds else "map"

    def made(self) -> dict[str, Store]:
        """Row arrays that this pass makes, by buffer."""
        return {s.buffer: s for st in self.stages if st.kind != "reduce" for s in st.local_stores}


def expand_welford(kernel: Kernel) -> Kernel:
    """Replace Welford reductions by a mean and a sum of squared deviations from it.

    The row is near when it is read again, and two passes lose fewer digits than one.
    """
    stages: list[RowStage] = []
    locals_ = dict(kernel.locals)
    for stage in kernel.stages:
        if stage.combine != "welford":
            stages.append(stage)
            continue
        total, mean = f"{stage.name}_total", f"{stage.name}_mean"
        locals_[total], locals_[mean] = Local(total, 1), Local(mean, 1)
        stages += _welford_stages(stage, total, mean)
    return Kernel(kernel.outer, tuple(stages), locals_)


def _welford_stages(stage: RowStage, total: str, mean: str) -> list[RowStage]:
    zero = sympy.S.Zero
    dtype = stage.dtype
    assert isinstance(dtype, torch.dtype)
    count = Instruction(Value(1), "constant", (repr(float(stage.points)),), dtype)

    def pick(stores: tuple[Store, ...], field: int) -> tuple[Store, ...]:
        return tuple(replace(s, field=0) for s in stores if s.field == field)

    sum_stage = replace(stage, combine="mean_sum", stores=(), local_stores=(Store(total, zero),))
    read = Instruction(Value(0), "local", dtype=dtype, buffer=total, index=zero)
    divide = Instruction(Value(2), "truediv", (Value(0), Value(1)))
    mean_stage = RowStage(
        f"{stage.name}_mean",
        "map",
        "",
        dtype,
        (),
        Body([read, count, divide], (Value(2),)),
        pick(stage.stores, 0),
        (*pick(stage.local_stores, 0), Store(mean, zero)),
    )
    value, fresh = stage.body.results[0], 1 + max(i.result.number for i in stage.body.walk())
    tail = [
        Instruction(Value(fresh), "local", dtype=dtype, buffer=mean, index=zero),
        Instruction(Value(fresh + 1), "sub", (value, Value(fresh))),
        Instruction(Value(fresh + 2), "square", (Value(fresh + 1),)),
    ]
    deviations = Body([*stage.body.instructions, *tail], (Value(fresh + 2),))
    result = [sum_stage, mean_stage]
    m2 = pick(stage.stores, 1), pick(stage.local_stores, 1)
    if any(m2):
        result.append(
            replace(
                stage,
                name=f"{stage.name}_m2",
                combine="sum",
                body=deviations,
                stores=m2[0],
                local_stores=m2[1],
            )
        )
    counts = pick(stage.stores, 2), pick(stage.local_stores, 2)
    if any(counts):
        body = Body([count], (Value(1),))
        result.append(RowStage(f"{stage.name}_count", "map", "", dtype, (), body, *counts))
    return result


def mark_means(kernel: Kernel) -> Kernel:
    """Have sums that are divided by a number and then subtracted added up as ``mean_sum``.

    What rounding loses of such a mean comes back in every difference, where the values lie far from zero.
    """
    sums = {
        store.buffer: number
        for number, stage in enumerate(kernel.stages)
        if stage.combine == "sum" and stage.dtype in (torch.float32, torch.float64)
        for store in stage.local_stores
    }
    means: dict[str, int] = {}
    subtracted: set[int] = set()
    for stage in kernel.stages:
        found = _means_in(stage.body, sums, means, subtracted)
        made = found.get(stage.body.results[0])
        if made is not None and stage.kind == "map":
            means |= {store.buffer: made for store in stage.local_stores}
    stages = [
        replace(stage, combine="mean_sum") if number in subtracted else stage
        for number, stage in enumerate(kernel.stages)
    ]
    return replace(kernel, stages=tuple(stages))


def _means_in(
    body: Body, sums: dict[str, int], means: dict[str, int], subtracted: set[int]
) -> dict[Value, int]:
    """Values that are means, with the number of their sum's stage; adds to ``subtracted`` those of subtracted ones."""
    totals: dict[Value, int] = {}
    found: dict[Value, int] = {}
    for i in body.instructions:
        first, *others = i.operands or (None,)
        if i.op == "local" and i.buffer in sums:
            totals[i.result] = sums[i.buffer]
        elif i.op == "local" and i.buffer in means:
            found[i.result] = means[i.buffer]
        elif i.op in ("truediv", "mul") and isinstance(first, Value) and first in totals:
            found[i.result] = totals[first]
        elif i.op == "sub" and isinstance(others[0], Value) and others[0] in found:
            subtracted.add(found[others[0]])
    return found


def over_loops(stage: RowStage, inner: tuple[Dim, ...]) -> RowStage:
    """The stage with its inner symbols replaced by those of ``inner`` (same sizes)."""
    names: dict[sympy.Symbol, sympy.Expr] = {
        own: common for (own, _), (common, _) in zip(stage.inner, inner, strict=True)
    }
    return replace(
        stage,
        inner=inner,
        body=stage.body.substitute(names),
        stores=tuple(replace(s, index=s.index.xreplace(names)) for s in stage.stores),
        local_stores=tuple(replace(s, index=s.index.xreplace(names)) for s in stage.local_stores),
    )


def same_loops(grouped: Sequence[Pass]) -> tuple[Pass, ...]:
    """``grouped`` with passes over loops of the same sizes over the same symbols, so that equal reads look equal."""
    first: dict[tuple[int, ...], tuple[Dim, ...]] = {}
    result = []
    for p in grouped:
        inner = first.setdefault(tuple(n for _, n in p.inner), p.inner)
        result.append(
            p if inner == p.inner else Pass(tuple(over_loops(s, inner) for s in p.stages))
        )
    return tuple(result)


def _as_fine(stage: RowStage, current: Pass, outer: tuple[Dim, ...]) -> RowStage:
    """``stage`` with its loops cut into those of ``current``, where they go over the same points in the same order.

    What follows a window is often flat where the window is not, and only together they are one pass.
    """
    parts: dict[sympy.Symbol, Sequence[int]] = {}
    sizes = [n for _, n in current.inner]
    for symbol, size in stage.inner:
        own: list[int] = []
        while sizes and math.prod(own) < size:
            own.append(sizes.pop(0))
        if math.prod(own) != size:
            return stage
        if len(own) > 1:
            parts[symbol] = own
    return stage if sizes or not parts else cut_loops(Kernel(outer, (stage,), {}), parts).stages[0]


def _joins(stage: RowStage, current: Pass, tails: bool) -> RowStage | None:
    """``stage`` in terms of ``current``'s loops if both can share them."""
    scans = current.kind == "scan"
    if not stage.inner or stage.kind == "scan" or (scans and not (tails and stage.kind == "map")):
        return None
    if [n for _, n in stage.inner] != [n for _, n in current.inner]:
        return None
    renamed = over_loops(stage, current.inner)
    made = current.made()
    finished = {s.buffer for st in current.stages if st.kind == "reduce" for s in st.local_stores}
    before = one_before(current.stages[0]) if scans else {}
    for i in renamed.body.walk():
        if i.op != "local":
            continue
        here = i.buffer not in made or i.index in (made[i.buffer].index, before.get(i.buffer))
        if i.buffer in finished or not here:
            return None
    return renamed


def one_before(scan: RowStage) -> dict[str, sympy.Expr]:
    """For each array that ``scan`` makes, where the element before that of the current point is."""
    ((symbol, _),) = scan.inner
    return {s.buffer: s.index.xreplace({symbol: symbol - 1}) for s in scan.local_stores}


def passes(kernel: Kernel, tails: bool = False) -> tuple[Pass, ...]:
    """Group the kernel's stages into passes, in order, each as long as possible.

    ``tails``: maps of what a scan makes belong to its pass, also where they read the element before.
    """
    result: list[Pass] = []
    for stage in kernel.stages:
        if result and kernel.is_map:
            stage = _as_fine(stage, result[-1], kernel.outer)
        joined = _joins(stage, result[-1], tails) if result else None
        if joined is not None:
            result[-1] = Pass((*result[-1].stages, joined))
        else:
            result.append(Pass((stage,)))
    return tuple(result)


def scratch(kernel: Kernel, grouped: tuple[Pass, ...]) -> set[str]:
    """Locals that must be kept: every scalar, and the row arrays that another pass reads."""
    kept = {name for name, local in kernel.locals.items() if local.size == 1}
    for p in grouped:
        made = p.made()
        kept |= {
            i.buffer
            for s in p.stages
            for i in s.body.walk()
            if i.op == "local" and i.buffer and i.buffer not in made
        }
    return kept
