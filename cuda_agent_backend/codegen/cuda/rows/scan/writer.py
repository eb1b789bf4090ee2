"""Scans along a row: within a thread, then its warp, its block, its cluster, each level as a tree or nearly so.

A row that is split over launches is read twice: a first launch leaves the total of every segment in memory, and the
second starts each segment from what goes before it.

A tree takes factors in other orders than eager. That matters where a running product is no number any more: behind
factors whose product comes to zero an infinity makes NaN, alone it stays one. A tile of which that is true is done once
more from left to right, as torch's own blocks nearly are; but not where blocks of a cluster share a row.

A sum with lanes across rows is done once more too, as torch's own threads find it from left to right, where a thread's
own stretch overflows: an infinity before it would make NaN of it. What is not done once more: a sum that overflows only
together with those before it, rows that are split over launches, and those that blocks of a cluster share.
"""

from __future__ import annotations

from cuda_agent_backend.codegen.cuda.rows.combine import combine_accumulators, store_partial
from cuda_agent_backend.codegen.cuda.rows.loops import position_loop
from cuda_agent_backend.codegen.cuda.rows.pass_bodies import PassBodies, shared_arrays
from cuda_agent_backend.codegen.cuda.rows.scan.base import scan_values
from cuda_agent_backend.codegen.cuda.rows.scan.inner import InnerScan
from cuda_agent_backend.codegen.cuda.rows.scan.outer import OuterScan
from cuda_agent_backend.codegen.ir.failure import Unsupported


def scan_pass(writer: PassBodies, number: int) -> list[str]:
    """Statements of the scan that is pass ``number``."""
    p, layout = writer.program.passes[number], writer.layout
    stage = p.stages[0]
    if len(p.inner) != 1 or stage.points != layout.points:
        raise Unsupported("scan over part of a row")
    made = shared_arrays(writer, p.stages)
    if made and layout.segments > 1:
        raise Unsupported("an array read across the segments of a row")
    scan = InnerScan if layout.inner else OuterScan
    return [*scan(writer, number, stage).lines(), *(["__syncthreads();"] if made else [])]


def scan_total(writer: PassBodies, number: int) -> list[str]:
    """Statements that leave the total of this block's segment in memory."""
    layout, ((name, acc),) = writer.layout, writer.scan_totals(number)
    body = scan_values(writer, number, acc, f"a{name}.update(VALUE);")
    return [
        f"{acc.of(layout.vector)} a{name};",
        *position_loop(layout, body),
        f"constexpr int L = {layout.vector};",
        *combine_accumulators(layout, writer.memory, [(name, acc)], cluster=False),
        *store_partial(layout, name, acc),
    ]
