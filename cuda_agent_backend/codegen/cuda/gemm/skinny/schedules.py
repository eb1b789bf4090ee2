"""How many rows a thread of a GEMM with few columns takes, best guess first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cuda_agent_backend.codegen.analysis.gemm import GemmForm, points
from cuda_agent_backend.codegen.cuda.gemm.filter_taps import holds
from cuda_agent_backend.codegen.cuda.gemm.skinny.match import (
    SkinnyLoops,
    points_in,
    skinny_loops_of,
)
from cuda_agent_backend.codegen.ir.device import MAX_THREADS, DeviceFacts
from cuda_agent_backend.codegen.ir.parameters import integer
from cuda_agent_backend.codegen.ir.schedule import Parameter

SKETCH = "direct"
MOST_FILLED = 16
"""Columns up to which this beats tiles for tensor cores, whose narrowest is twice as wide; less the terms they lack."""
MOST_SUMS = 96
"""Of a thread, which has registers for what it multiplies as well."""
MOST_PRODUCTS = 1024
"""Products that are written out."""
MOST_PLACES = 96
"""Elements that a thread reads for one turn of the loop over terms."""
THREADS = 128
WAVES = 2
"""Blocks for each multiprocessor from which on threads take more rows."""


@dataclass(frozen=True)
class SkinnyParams:
    """The schedule's parameters."""

    rows: int = integer("results of a thread, which follow each other along the rows")
    threads: int = integer("threads of a block", most=MAX_THREADS)


def skinny_schedules(found: GemmForm, device: DeviceFacts) -> list[dict[str, Parameter]]:
    """Schedules worth trying, best first; none where tiles for tensor cores are well filled."""
    shape = skinny_loops_of(found)
    if shape is None or found.n * present_share(found, shape) > MOST_FILLED:
        return []
    rows = [r for r in (8, 4, 2, 1) if fits_thread(shape, r)]
    blocks = math.prod(n for _, n in (*shape.flat, *shape.grid)) // THREADS
    enough = [r for r in rows if blocks // r >= WAVES * device.sm_count] or rows[-1:]
    return [{"sketch": SKETCH, "rows": r, "threads": THREADS} for r in enough[:2]]


def present_share(found: GemmForm, shape: SkinnyLoops) -> float:
    """Of the products of columns and taps, those that there are."""
    mask, both = found.right.mask, (*shape.columns, *shape.taps)
    if mask is None:
        return 1.0
    return sum(holds(mask, at) for at in points_in(both)) / points(both)


def fits_thread(shape: SkinnyLoops, rows: int) -> bool:
    """Whether a thread has registers for so many rows, and there are as many."""
    products = rows * shape.results * points(shape.taps)
    high = shape.tall[1] if shape.tall is not None else 1
    fits = products <= MOST_PRODUCTS and rows * shape.results <= MOST_SUMS
    return fits and rows <= high and rows * points(shape.taps) <= 2 * MOST_PLACES
