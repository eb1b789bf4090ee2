"""Kernels of which some reductions walk along what lies together in memory, and others across it.

As many rows as columns, as scores of all pairs of two sets have, let both be reduced over common rows. But a kernel has
one way to lay rows over threads: where it reads along the rows, neighbouring threads read what is a whole row apart
across them, a sector of memory for each number. Two kernels, each laid out for its own direction, read both densely.
"""

from __future__ import annotations

import sympy

from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, RowStage

LEAST = 1 << 20
"""Elements, of each direction, from which on a kernel more takes less time than reading sectors for single numbers."""


def mixes_directions(kernel: Kernel) -> bool:
    """Whether of large reductions over common rows some read along memory, and others across it.

    Sums of products, each of which reads one operand along and the other across, are laid out otherwise.
    """
    large = [s for s in kernel.stages if s.kind == "reduce" and kernel.rows * s.points >= LEAST]
    if any(local.size > 1 for local in kernel.locals.values()):
        return False  # what is kept on the chip would go through memory
    ways = [_ways(stage, kernel.outer) for stage in large]
    return {True} in ways and {False} in ways


def _ways(stage: RowStage, outer: tuple[Dim, ...]) -> set[bool]:
    """Of each of the stage's reads: whether its neighbour in memory is the next row's, rather than the loop's next."""
    found = set()
    for i in stage.body.loads():
        if i.index is None or not stage.inner or not outer:
            continue
        loop, row = (_step(i.index, dims) for dims in (stage.inner, outer))
        if loop == 1 < row:
            found.add(False)
        elif row == 1 < loop:
            found.add(True)
    return found


def _step(index: sympy.Expr, dims: tuple[Dim, ...]) -> int:
    """The least distance of neighbours along one of the loops; 0 where they are all at one place, or nowhere known."""
    steps = [coefficient(index, symbol) for symbol, _ in dims]
    return 0 if None in steps else min((abs(s) for s in steps if s), default=0)
