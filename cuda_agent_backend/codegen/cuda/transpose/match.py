"""Pointwise kernels whose results run along one loop in memory and some of whose operands along another.

`transposition_of` finds the two loops. What it calls rows are the loops that operands run along, and columns those that
results run along; both may be several loops that go on in memory where the one inside ends.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.common.sizes import WORD_BYTES
from cuda_agent_backend.codegen.cuda.pointwise.writer import map_dims, single_pass
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.ssa import GATHER, PLACE, PLACE_EXPR

SKETCH = "transpose"
LEAST, MOST = 8, 256
"""Elements of either loop below which most of a tile's lines would be empty; elements of a side at most."""
LONG = 1024
"""Elements of a loop at whose end tiles leave little empty."""
NO_VECTORS = frozenset((GATHER, PLACE, PLACE_EXPR, "index_expr"))
"""What is not the same function of each neighbour's values."""
Key = tuple[str, sympy.Expr]
"""A load: buffer and index."""


@dataclass(frozen=True)
class Transposition:
    """A kernel's one pass, and its loops, outermost first.

    Attributes:
        rows: the loops that ``loads`` run along.
        columns: those that stores run along.
        others: the rest.
    """

    whole: Pass
    others: tuple[Dim, ...]
    rows: tuple[Dim, ...]
    columns: tuple[Dim, ...]
    loads: tuple[Key, ...]


def transposition_of(kernel: Kernel, joined: bool = False) -> Transposition | None:
    """None where nothing is read across, the kernel is not pointwise, or nothing can be `joined`."""
    p = single_pass(kernel)
    dims = map_dims(kernel, p) if p is not None else ()
    if p is None or len(dims) < 2:
        return None
    columns = dims[-1]
    across = [
        key
        for key in dict.fromkeys(plain_loads(p))
        if coefficient(key[1], columns[0]) not in (0, 1, -1, None)
    ]
    along = Counter(dim for dim in dims[:-1] for key in across if _runs_along(key, dim))
    if not along:
        return None
    rows = along.most_common(1)[0][0]
    loads = tuple(key for key in across if _runs_along(key, rows))
    others = tuple(d for d in dims[:-1] if d is not rows)
    found = Transposition(p, others, (rows,), (columns,), loads)
    if joined:
        found = _joined(found)
    fine = min(size_of(found.rows), size_of(found.columns)) >= LEAST
    return found if fine and (len(found.others) < len(others) or not joined) else None


def _joined(found: Transposition) -> Transposition:
    """With loops that go on where its rows or columns end, the shorter ones first."""
    loads = [index for _, index in found.loads]
    stores = [s.index for stage in found.whole.stages for s in stage.stores]
    sides = sorted(
        ((found.rows, loads), (found.columns, stores)), key=lambda side: size_of(side[0])
    )
    for own, places in sides:
        ahead = _ahead(own, found.others, places) if size_of(own) < LONG else None
        if ahead is None:
            continue
        others = tuple(dim for dim in found.others if dim is not ahead)
        if own is found.rows:
            return _joined(replace(found, rows=(ahead, *own), others=others))
        return _joined(replace(found, columns=(ahead, *own), others=others))
    return found


def _ahead(
    own: tuple[Dim, ...], others: tuple[Dim, ...], places: Sequence[sympy.Expr]
) -> Dim | None:
    """The loop that steps over as much as `own` takes, in all `places`."""
    for dim in others:
        steps = ((coefficient(index, dim[0]), coefficient(index, own[-1][0])) for index in places)
        if all(inner and step == inner * size_of(own) for step, inner in steps):
            return dim
    return None


def size_of(dims: Sequence[Dim]) -> int:
    """Points of loops."""
    return math.prod(size for _, size in dims)


def plain_loads(p: Pass) -> list[Key]:
    """Loads that every point does, masked ones left out."""
    found = (i for stage in p.stages for i in stage.body.instructions if i.op == "load")
    return [(i.buffer, i.index) for i in found if i.buffer is not None and i.index is not None]


def _runs_along(key: Key, dim: Dim) -> bool:
    return coefficient(key[1], dim[0]) in (1, -1)


def fits_vectors(found: Transposition, region: LoweredRegion, vector: int) -> bool:
    """Whether vectors of neighbours along either side lie whole in memory, and nothing else is read."""
    stages = found.whole.stages
    if any(i.op in NO_VECTORS or i.body is not None for s in stages for i in s.body.instructions):
        return False
    if set(plain_loads(found.whole)) != set(found.loads):
        return False
    stores = [(s.buffer, s.index) for stage in stages for s in stage.stores]
    sides = [(found.rows, key) for key in found.loads]
    sides += [(found.columns, key) for key in stores]
    return all(
        region.buffers[buffer].dtype.itemsize * vector <= WORD_BYTES
        and size_of(own) % vector == 0
        and _is_whole(index, own, vector)
        for own, (buffer, index) in sides
    )


def _is_whole(index: sympy.Expr, own: tuple[Dim, ...], vector: int) -> bool:
    """Whether ``index`` runs upwards along the joined loops and starts at multiples of ``vector``."""
    rest, step = index, 1
    for symbol, size in reversed(own):
        if coefficient(index, symbol) != step:
            return False
        rest, step = rest - step * symbol, step * size
    factors = sympy.expand(rest).as_coefficients_dict().values()
    return all(c.is_Integer and int(c) % vector == 0 for c in factors)
