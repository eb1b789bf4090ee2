"""Loops over a GEMM's results, cut to be the same in the kernel that makes them and in one that reads them."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from cuda_agent_backend.codegen.analysis.gemm import cut_sizes
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.gather import GATHERED
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.loops import cut_loops

Access = tuple[sympy.Expr, tuple[Dim, ...]]
"""An index, and the loops that it is over."""
Names = dict[sympy.Symbol, sympy.Symbol]
"""The product's loops, by those of what reads it."""


def steps_of(access: Access) -> dict[sympy.Symbol, int]:
    """Elements from one point of each loop to the next. Raises Unsupported where that is not constant."""
    index, dims = access
    found = {symbol: coefficient(index, symbol) or 0 for symbol, _ in dims}
    rest = sympy.expand(index - sum(step * symbol for symbol, step in found.items()))
    if rest != 0 or any(step <= 0 for step in found.values()):
        raise Unsupported("a product that is read in part, or more than once")
    return found


def ends_of(accesses: Sequence[Access]) -> list[int]:
    """Distances at which some access has a loop begin or end."""
    ends = set()
    for access in accesses:
        steps = steps_of(access)
        ends |= {end for s, n in access[1] for end in (steps[s], steps[s] * n)}
    return sorted(ends)


def cut_at(kernel: Kernel, accesses: Sequence[Access], ends: Sequence[int]) -> Kernel:
    """``kernel`` with the loops of its accesses cut at ``ends``."""
    parts: dict[sympy.Symbol, tuple[int, ...]] = {}
    for access in accesses:
        steps = steps_of(access)
        for symbol, size in access[1]:
            within = [e for e in ends if steps[symbol] < e < steps[symbol] * size]
            cuts = [1, *(e // steps[symbol] for e in within), size]
            parts[symbol] = cut_sizes(cuts)
            if not parts[symbol] or any(e % steps[symbol] for e in within):
                raise Unsupported("a product that is read across its loops")
    if len(parts.get(GATHERED, ())) > 1:
        raise Unsupported("a result that is picked of several loops")
    return cut_loops(kernel, {s: sizes for s, sizes in parts.items() if len(sizes) > 1})


def stored_by(product: Kernel) -> tuple[str, Access]:
    """What a product's results are stored in, and where. Raises Unsupported where it has several, or stores others."""
    stores = [s for stage in product.stages for s in stage.stores]
    if len(stores) != 1 or not product.stages[-1].stores:
        raise Unsupported("a product with several results")
    return stores[0].buffer, (stores[0].index, product.outer)


def names_of(product: Kernel, access: Access) -> Names:
    """The product's loops by those of what reads it. Raises Unsupported where they differ."""
    _, stored = stored_by(product)
    return names_between(stored, access)


def names_between(stored: Access, access: Access) -> Names:
    """The loops of what stores by those of what reads. Raises Unsupported where they differ."""
    steps, (_, dims) = steps_of(access), access
    sizes, theirs = dict(stored[1]), steps_of(stored)
    waiting = {(step, sizes[s]): s for s, step in theirs.items()}
    found = {s: waiting.pop((steps[s], n), None) for s, n in dims}
    known = {s: name for s, name in found.items() if name is not None}
    if waiting or len(known) < len(found):
        raise Unsupported("a product that is read in part, or across its loops")
    return known
