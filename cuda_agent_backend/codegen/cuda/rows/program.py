"""A row kernel prepared for one layout: its passes, and where what they hand on is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sympy

from cuda_agent_backend.codegen.analysis.passes import Pass, passes, same_loops, scratch
from cuda_agent_backend.codegen.cuda.common.flat_loops import POSITION, Flat, flatten
from cuda_agent_backend.codegen.cuda.common.parts import BYTES
from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.cuda.rows.prepare.common_values import store_common_values
from cuda_agent_backend.codegen.cuda.rows.prepare.inline_arrays import inline_arrays
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel, RowStage
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.value_types import stage_dtype

Key = tuple[str, sympy.Expr]
"""A load: buffer and flat index."""
FlatPass = tuple[Pass, Flat]


def row_points(kernel: Kernel) -> int:
    """Elements of a row: those of the longest loop over it."""
    return max((s.points for s in kernel.stages), default=1)


def is_full(p: Pass, points: int) -> bool:
    """Whether the pass runs over the whole row, its positions dealt to the team."""
    return bool(p.inner) and p.stages[0].points == points


@dataclass(frozen=True)
class RowProgram:
    """A kernel as passes, prepared for one layout, and where its arrays live.

    Attributes:
        passes, flats: the passes, and for each its loops as one flat position.
        scratch: row-local arrays and scalars that are kept.
        own, shared: of the arrays those whose elements only the thread that makes them reads, and the others.
        kept: loads that several passes do, by name.
        once: buffers of which the kernel reads every element once.
        reuse: own arrays that may overwrite a kept load, which nobody needs by then.
        recover: statements that declare the loop variables which kept loads are indexed by.
        worked_out: arrays that `store_common_values` made.
    """

    kernel: Kernel
    passes: tuple[Pass, ...]
    flats: tuple[Flat, ...]
    scratch: frozenset[str]
    own: frozenset[str]
    shared: frozenset[str]
    kept: dict[Key, str]
    once: frozenset[str]
    reuse: dict[str, str]
    recover: tuple[str, ...]
    worked_out: frozenset[str] = frozenset()

    @staticmethod
    def of(kernel: Kernel, layout: Layout, region: LoweredRegion) -> RowProgram:
        """Raises Unsupported where arrays cannot be kept as the layout asks."""
        keeps, keeps_whole = layout.keep != "none", layout.keep != "none" and not layout.partial
        kernel, worked_out = _prepared(kernel, layout, region, keeps_whole)
        grouped = same_loops(passes(kernel, tails=True))
        flat_passes = [(p, flatten(p.inner, layout.index_type)) for p in grouped]
        local = frozenset(scratch(kernel, grouped))
        arrays = frozenset(n for n in local if kernel.locals[n].size > 1)
        own = frozenset(
            n for n in arrays if keeps_whole and _only_own(n, flat_passes, layout.points)
        )
        early = worked_out & local  # what only one pass reads needs no row that stays
        kept = _repeated_loads(flat_passes, layout.points, early) if keeps else {}
        once = read_once(flat_passes, kept, kernel.rows * layout.points, region, layout.together)
        if layout.is_split and any(p.kind == "scan" for p in grouped):
            once = frozenset()  # a split scan reads its row for the totals, then again
        return RowProgram(
            kernel=kernel,
            passes=grouped,
            flats=tuple(flat for _, flat in flat_passes),
            scratch=local,
            own=own,
            shared=arrays - own,
            kept=kept,
            once=once,
            reuse=_overwritten(own, kept, flat_passes, region) if layout.keep == "shared" else {},
            recover=_recovered(kept, flat_passes),
            worked_out=worked_out,
        )


def _prepared(
    kernel: Kernel, layout: Layout, region: LoweredRegion, keeps_whole: bool
) -> tuple[Kernel, frozenset[str]]:
    """The kernel with the arrays that the layout can keep, and those that were made for it.

    keeps_whole: whether whole rows stay on the chip. Otherwise arrays are worked out again where they are read, but for
    those that scans make.
    """
    if layout.partial and any(s.combine in ("argmax", "argmin") for s in kernel.stages):
        raise Unsupported("the first of equal elements, met in another order than theirs")
    if keeps_whole:
        return store_common_values(kernel, layout.points, region)
    scans = (st for st in kernel.stages if st.kind == "scan")
    scanned = frozenset(s.buffer for st in scans for s in st.local_stores)
    return inline_arrays(kernel, scanned), frozenset()


def _only_own(name: str, grouped: Sequence[FlatPass], points: int) -> bool:
    """Whether array ``name`` is made and read at the current position only, by full passes."""
    for p, flat in grouped:
        for stage in p.stages:
            indices = [s.index for s in stage.local_stores if s.buffer == name]
            reads = (i for i in stage.body.walk() if i.op == "local" and i.buffer == name)
            indices += [i.index for i in reads if i.index is not None]
            if indices and not is_full(p, points):
                return False
            if any(flat.of(index) != POSITION for index in indices):
                return False
    return True


def _loads(stage: RowStage, flat: Flat) -> Iterator[Key]:
    """Loads that every point of a stage does, masked ones left out."""
    for i in stage.body.instructions:
        if i.op == "load" and i.index is not None and i.buffer is not None:
            yield i.buffer, flat.of(i.index)


def _repeated_loads(
    grouped: Sequence[FlatPass], points: int, early: frozenset[str]
) -> dict[Key, str]:
    """Loads that several passes do, or that arrays ``early`` are made of: all of a row is then under way at once."""
    seen: dict[Key, int] = {}
    for p, flat in grouped:
        if not is_full(p, points):
            continue
        made = [s for s in p.stages if early & {store.buffer for store in s.local_stores}]
        first = {key for stage in made for key in _loads(stage, flat)}
        for key in {key for stage in p.stages for key in _loads(stage, flat)}:
            if POSITION in key[1].free_symbols:
                # deviations from a mean are a second loop over the same values, and so is what follows a scan
                again = _goes_twice(p) or _reads_again(p, flat, key) or key in first
                seen[key] = seen.get(key, 0) + 1 + again
    repeated = sorted((key for key, count in seen.items() if count > 1), key=str)
    return {key: f"kept{n}" for n, key in enumerate(repeated)}


def _recovered(kept: dict[Key, str], grouped: Sequence[FlatPass]) -> tuple[str, ...]:
    used = {symbol for _, index in kept for symbol in index.free_symbols}
    needed = [flat.statements for p, flat in grouped if used & {symbol for symbol, _ in p.inner}]
    return tuple(dict.fromkeys(line for statements in needed for line in statements))


def _reads_again(p: Pass, flat: Flat, key: Key) -> bool:
    """Whether both a scan and what follows it read ``key``."""
    first, *tail = p.stages
    return (
        p.kind == "scan"
        and key in _loads(first, flat)
        and any(key in _loads(stage, flat) for stage in tail)
    )


def _goes_twice(p: Pass) -> bool:
    return any(stage.combine == "welford" for stage in p.stages)


def read_once(
    grouped: Sequence[FlatPass],
    kept: dict[Key, str],
    elements: int,
    region: LoweredRegion,
    together: int = 1,
) -> frozenset[str]:
    """Buffers as large as all rows together that are read in one place, or kept from there on.

    Where ``together`` rows are one here, each has its place. What lies beyond the last whole vector of one long row
    (see `peel`) may be read by itself.
    """
    places: dict[str, list[Key]] = {}
    for p, flat in grouped:
        for i in (i for stage in p.stages for i in stage.body.loads()):
            if i.buffer is not None and i.index is not None:
                places.setdefault(i.buffer, []).append((i.buffer, flat.of(i.index)))
    found = set()
    for name, keys in places.items():
        rest = {key for key in keys if key[1].is_Integer}
        along = [key for key in keys if key not in rest]
        once = len(set(along)) == together and (len(along) == together or along[0] in kept)
        whole = together * elements + len(rest)
        if once and math.prod(region.buffers[name].shape) == whole:
            found.add(name)
    return frozenset(found)


def _overwritten(
    own: frozenset[str], kept: dict[Key, str], grouped: Sequence[FlatPass], region: LoweredRegion
) -> dict[str, str]:
    """Own arrays that can lie where a kept load lay: it has elements of that size, and is not read after.

    A pass that computes deviations goes over its values twice, so its loads are needed to its end.
    """
    stages = [(stage, flat) for p, flat in grouped for stage in p.stages]
    begins = [
        sum(len(before.stages) for before, _ in grouped[:number]) if _goes_twice(p) else None
        for number, (p, _) in enumerate(grouped)
        for _ in p.stages
    ]
    last = {name: _last_use(key, stages) for key, name in kept.items()}
    width = {name: region.buffers[buffer].dtype.itemsize for (buffer, _), name in kept.items()}
    result: dict[str, str] = {}
    for number, (stage, _) in enumerate(stages):
        begin = begins[number]
        until = number if begin is None else begin - 1
        for s in stage.local_stores:
            size, used = BYTES[COMPUTE_TYPES[stage_dtype(stage)]], set(result.values())
            free = [n for n in last if n not in used and last[n] <= until and width[n] == size]
            if s.buffer in own and free:
                result[s.buffer] = free[0]
    return result


def _last_use(key: Key, stages: Sequence[tuple[RowStage, Flat]]) -> int:
    def uses(stage: RowStage, flat: Flat) -> bool:
        reads = (i for i in stage.body.loads() if i.buffer == key[0] and i.index is not None)
        return any(flat.of(i.index) == key[1] for i in reads if i.index is not None)

    return max(number for number, (stage, flat) in enumerate(stages) if uses(stage, flat))
