"""The loop of a full pass over the positions of its row: in which order they are met, and how many are unrolled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.common.body_rewrites import fold_constants
from cuda_agent_backend.codegen.cuda.common.flat_loops import flat_body
from cuda_agent_backend.codegen.cuda.rows.combine import Reductions
from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.cuda.rows.loops import (
    RUN,
    Span,
    asking_loops,
    position_loop,
    span_loops,
)
from cuda_agent_backend.codegen.cuda.rows.pass_bodies import PassBodies
from cuda_agent_backend.codegen.cuda.rows.prepare.gather_order import gather_indices_first
from cuda_agent_backend.codegen.cuda.rows.program import is_full
from cuda_agent_backend.codegen.cuda.rows.transposed_loads import (
    square_lines,
    square_names,
    turned_loads,
)

INSTRUCTIONS = {
    **dict.fromkeys(("sin", "cos", "tan", "pow", "lgamma"), 100),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "expm1", "erf", "tanh"), 25),
}
"""About so many for each call of a function."""
MOST_INSTRUCTIONS = 1600
"""Of those in a loop, all that is unrolled of it counted: the instruction cache holds some 8,000 in all."""


def first_loop(writer: PassBodies, number: int, reductions: Reductions) -> list[str]:
    """The loop of pass ``number`` that takes values in; long sums go in runs."""
    layout = _with_pairs(writer, number, _with_short_loops(writer, writer.program.passes[number]))
    long = layout.keep != "registers" and not layout.blocked and layout.chunks > RUN
    if not (long and reductions and all(acc.is_real_sum for _, acc in reductions)):
        return _all_positions(writer, number, layout, "a", ())
    flush = [f"a{n}.merge(run{n}); run{n} = {acc.of(layout.vector)}();" for n, acc in reductions]
    runs = [f"{acc.of(layout.vector)} run{n};" for n, acc in reductions]
    return [*runs, *_all_positions(writer, number, layout, "run", flush)]


def deviation_loop(writer: PassBodies, number: int) -> list[str]:
    """The second loop of a pass that computes variances: deviations from the means that the first one found."""
    p = writer.program.passes[number]
    deviations = writer.accumulate(number, "", deviations=True)
    body = writer.bodies(number, deviations, among=_worked_out_again(writer, p))
    return position_loop(writer.layout, body, writer.program.flats[number].statements)


def _worked_out_again(writer: PassBodies, p: Pass) -> frozenset[int]:
    """Stages of a second loop: all but those whose values the first one keeps on the chip."""
    scratch = writer.program.scratch
    kept = (s.kind == "map" and scratch & {t.buffer for t in s.local_stores} for s in p.stages)
    return frozenset(n for n, one in enumerate(kept) if not one)


def _all_positions(
    writer: PassBodies, number: int, layout: Layout, prefix: str, flush: Sequence[str]
) -> list[str]:
    """Loops over all positions of the row: first those that are not kept, if any, then those that are.

    ``prefix``: of the accumulators that take the values in. ``flush``: statements after each run of positions.
    """
    statements, keeper = writer.program.flats[number].statements, writer.keeper
    if layout.square:
        return position_loop(layout, _square_step(writer, number, prefix), (), flush)
    full = [n for n, p in enumerate(writer.program.passes) if is_full(p, layout.points)]
    first, out = number == full[0], []
    if layout.partial:
        down = bool(full.index(number) % 2)
        keeper.rest, keeper.last = True, number == full[-1]
        body = writer.bodies(number, writer.accumulate(number, writer.row_guard, prefix))
        span = Span(layout.held, layout.chunks, (), down)
        out = span_loops(layout, body, statements, flush, [span])
        keeper.rest = keeper.last = False
    body = writer.bodies(number, writer.accumulate(number, writer.row_guard, prefix))
    if keeper.arriving and first and writer.program.kept:
        return [*out, *span_loops(layout, body, statements, flush, keeper.parts())]
    if layout.partial:
        kept = [Span(0, layout.held)]
        return [*out, *span_loops(layout, body, statements, flush, kept)]
    if layout.ahead:
        return asking_loops(layout, body, statements, flush)
    ordered = layout.blocked or any(acc.is_arg for _, acc in writer.reductions(number))
    if layout.is_split and not ordered and full.index(number) % 2:
        # what the launch before read last may still be in the L2 cache
        back = [Span(0, layout.chunks, (), True)]
        return span_loops(layout, body, statements, flush, back)
    return position_loop(layout, body, statements, flush)


def _square_step(writer: PassBodies, number: int, prefix: str) -> list[str]:
    """A step of the pass at a square of a thread's rows and positions (see `transposed_loads`)."""
    p, flat, keeper = writer.program.passes[number], writer.program.flats[number], writer.keeper
    bodies = (gather_indices_first(fold_constants(flat_body(s.body, flat))) for s in p.stages)
    loads, printer = turned_loads(bodies, keeper.lane), writer.printer(p)
    keeper.turned = square_names(loads)
    body = writer.bodies(number, writer.accumulate(number, writer.row_guard, prefix))
    keeper.turned = {}
    return square_lines(writer.layout, loads, printer, body, flat.statements)


def _with_short_loops(writer: PassBodies, p: Pass) -> Layout:
    """The layout with no more of a loop written out than the instruction cache holds."""
    layout = writer.layout
    once = sum(INSTRUCTIONS.get(i.op, 0) for s in p.stages for i in s.body.walk())
    most = max(1, MOST_INSTRUCTIONS // max(1, once * layout.vector))
    return replace(layout, unroll=min(layout.unroll, most), ahead=min(layout.ahead, most))


def _with_pairs(writer: PassBodies, number: int, layout: Layout) -> Layout:
    """The layout with neighbours in one thread where products are summed: it costs nothing here.

    See `PassBodies.sums_products` for what it is good for.
    """
    free = not layout.inner and not layout.blocked and layout.keep == "none"
    free = free and not layout.square  # which has more neighbours
    stages = writer.program.passes[number].stages
    return replace(layout, pairs=free and any(map(writer.sums_products, stages)))
