"""Loops in the order of the scans that they read: a scan from the end is a scan whose results are stored from the end.

Reversing, scanning and reversing again arrives as a scan over a reversed row and a loop that reads what it made from
the end. As the loop's points may be met in any order, it may go along the scan and store from the end instead, and then
it is part of the scan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import sympy

from cuda_agent_backend.codegen.ir.indices import coefficient, simplify, with_indices
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, temporaries
from cuda_agent_backend.codegen.ir.region import ARG_REDUCTIONS, LoweredRegion, Stage
from cuda_agent_backend.codegen.transform.fusion import group
from cuda_agent_backend.codegen.transform.loop_order import in_order_of_producers
from cuda_agent_backend.codegen.transform.split_at_scan import with_loops_split_at_scans
from cuda_agent_backend.codegen.transform.split_concat import with_concat_split


def kernels_of(
    region: LoweredRegion, fits: Callable[[Kernel], bool], across: bool = False
) -> tuple[Kernel, ...]:
    """The region's kernels, loops in the order of scans, or in parts as long as those, where that takes fewer.

    ``fits``: whether the target has a way to run a kernel of several stages. across: whether it stores the results of a
    product across their loops as well, which then loops behind it may be in the order of, too.

    Raises:
        Unsupported: a single stage fits no kernel.
    """
    stages, found = region.stages, group(region, fits)
    for change in (
        along_scans,
        with_loops_split_at_scans,
        *((in_order_of_producers,) if across else ()),
    ):
        changed = change(stages)
        if len(found) > 1 and changed != stages:
            other = group(replace(region, stages=changed), fits)
            stages, found = changed, other if len(other) < len(found) else found
    return _joined_in_parts(region, stages, found, fits) if across else found


def _joined_in_parts(
    region: LoweredRegion,
    stages: tuple[Stage, ...],
    found: tuple[Kernel, ...],
    fits: Callable[[Kernel], bool],
) -> tuple[Kernel, ...]:
    """The same with what joins products in parts, where no more kernels leave less in memory for each other."""
    changed = with_concat_split(stages)
    if len(found) == 1 or changed == stages:
        return found
    parts = {stage.name for stage in changed} - {stage.name for stage in stages}
    other = group(
        replace(region, stages=changed), lambda kernel: fits(kernel) and _is_tail(kernel, parts)
    )
    left = [sum(b.extent for b in temporaries(region, kernels)) for kernels in (other, found)]
    return other if len(other) <= len(found) and left[0] < left[1] else found


def _is_tail(kernel: Kernel, parts: Collection[str]) -> bool:
    """Whether ``parts``, stages by name, come behind a kernel's only reduction, element by element: more than that a
    product's tiles do not do."""
    first, *rest = kernel.stages
    if kernel.is_map or not any(s.name in parts for s in kernel.stages):
        return True
    return first.kind == "reduce" and all(s.kind == "map" and not s.inner for s in rest)


def along_scans(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """``stages``, those turned round that read what a scan makes, or what maps make of that, from its end."""
    steps: dict[str, set[int | None]] = {}
    result = []
    for stage in stages:
        stage = _turned(stage, _backward(stage, steps))
        follows = stage.kind == "map" and stage.reads() & steps.keys()
        if stage.kind == "scan" or follows:
            loops = (*stage.outer, *stage.inner)
            for s in stage.stores:
                steps[s.buffer] = {coefficient(s.index, symbol) for symbol, _ in loops}
        result.append(stage)
    return tuple(result)


def _backward(stage: Stage, steps: Mapping[str, set[int | None]]) -> list[Dim]:
    """Loops of ``stage`` that always run against the order in which the buffers in ``steps`` are made."""
    if stage.kind == "scan" or stage.combine in ARG_REDUCTIONS:
        return []
    loops = (*stage.outer, *stage.inner)
    reads = [
        (i.buffer, simplify(i.index, loops))
        for i in stage.body.loads()
        if i.buffer is not None and i.buffer in steps and i.index is not None
    ]

    def against(symbol: sympy.Symbol) -> bool:
        return all(-(coefficient(e, symbol) or 0) in steps[name] - {0} for name, e in reads)

    return [dim for dim in loops if reads and against(dim[0])]


def _turned(stage: Stage, backward: list[Dim]) -> Stage:
    """The same stage with the loops ``backward`` from their end."""
    if not backward:
        return stage
    change: Mapping[sympy.Symbol, sympy.Expr] = {s: n - 1 - s for s, n in backward}
    loops = (*stage.outer, *stage.inner)
    stores = (replace(s, index=simplify(s.index.xreplace(change), loops)) for s in stage.stores)
    body = with_indices(stage.body, dict(change), loops)
    return replace(stage, body=body, stores=tuple(stores))
