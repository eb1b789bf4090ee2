"""One function of a row kernel: its passes in order, for each row of a block, and its launch.

A pass whose loops cover the whole row is *full*: its positions are dealt to the team, and what its threads keep of one
pass is at hand in the next without an exchange. Other passes (a value for each channel, say) are *side* passes: they
loop over their own few points, and their arrays are in shared memory. `layout` says how rows are laid over threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cuda_agent_backend.codegen.cuda.common.parts import parameters_of
from cuda_agent_backend.codegen.cuda.common.text import indented
from cuda_agent_backend.codegen.cuda.rows.combine import (
    center_statement,
    combine_accumulators,
    combine_across_grid,
    load_partials,
    store_partial,
)
from cuda_agent_backend.codegen.cuda.rows.frame import (
    grid_size,
    pipelined_rows,
    row_lines,
    row_loop,
    thread_lines,
)
from cuda_agent_backend.codegen.cuda.rows.pass_bodies import (
    SCALAR_GUARD,
    PassBodies,
    shared_arrays,
)
from cuda_agent_backend.codegen.cuda.rows.pass_loops import deviation_loop, first_loop
from cuda_agent_backend.codegen.cuda.rows.program import is_full
from cuda_agent_backend.codegen.cuda.rows.scan.writer import scan_pass, scan_total
from cuda_agent_backend.codegen.ir.failure import Unsupported
from sandbox.plan.plan import Launch

Item = tuple[str, int]
"""What a launch does in one step, and with which pass.

"pass": all of it. "partial": the pass up to partial results in memory. "combine": join those of a launch before.
"""


@dataclass
class RowWriter(PassBodies):
    """Writes the functions of one kernel under one layout."""

    # --- one launch ---

    def function(
        self, name: str, items: Iterable[Item], extra: Sequence[str] = ()
    ) -> tuple[str, Launch]:
        """The function that does ``items``, and its launch. ``extra``: parameters behind the buffers.

        Raises Unsupported where the shared memory of a block is too small.
        """
        layout = self.layout
        self.start()
        keeper = self.keeper
        keeper.declare_shared()
        body = keeper.declarations()
        for what, number in items:
            body += [f"{{  // {what} {number}", *indented(self.item(what, number)), "}"]
        rows = self._rows(body)
        if self.memory.size > self.device.shared_per_block_bytes:
            raise Unsupported(f"{self.memory.size} bytes of shared memory")
        parameters = ", ".join([*parameters_of(self.region, self.reads, self.writes), *extra])
        bounds = f"__launch_bounds__({layout.threads}, {max(1, layout.blocks)})"
        lines = [
            f'extern "C" __global__ void {bounds} {name}({parameters}) {{',
            "  extern __shared__ __align__(16) unsigned char shared[];",
            *self.memory.lines,
            *indented([*thread_lines(layout), *rows]),
            "}",
        ]
        return "\n".join(lines), self._launch(name)

    def _rows(self, body: list[str]) -> list[str]:
        """``body`` for each row of this block."""
        layout, keeper = self.layout, self.keeper
        # reductions have slots for each stage, or meet in between; scans and what rows share do not
        barrier = bool(self.program.shared) or layout.ordered
        start = ["int meeting = 0;"] if layout.in_grid else []
        if layout.stages > 1:
            return [*start, *pipelined_rows(layout, self.outer, keeper.copies(), body, barrier)]
        if layout.in_grid:
            end = ["__syncthreads();"] if barrier else []
            return [*start, *row_loop(layout, self.outer, [*keeper.fetch(), *body, *end])]
        ready = ["ca::cluster_wait();"] if layout.clustered else []
        return [*row_lines(layout, self.outer), *keeper.fetch(), *ready, *body]

    def _launch(self, name: str) -> Launch:
        layout = self.layout
        grid = (grid_size(layout, self.outer, self.device), 1, 1)
        cluster = (layout.segments, 1, 1) if layout.clustered else None
        args = (*self.reads, *self.writes)
        return Launch(name, grid, (layout.threads, 1, 1), self.memory.size, args, cluster)

    # --- passes ---

    def item(self, what: str, number: int) -> list[str]:
        """Statements of one `Item`. Raises Unsupported where the layout does not suit the pass."""
        p = self.program.passes[number]
        if what == "combine":
            return self._combine(number)
        if p.kind == "scan":
            return scan_total(self, number) if what == "partial" else scan_pass(self, number)
        if not p.inner:
            return self._scalar_pass(number)
        if not is_full(p, self.layout.points):
            return self._side_pass(number)
        return self._full_pass(number, partial=what == "partial")

    def _scalar_pass(self, number: int) -> list[str]:
        """Values that a row has one of."""
        p, flat = self.program.passes[number], self.program.flats[number]
        body = self.bodies(
            number, lambda n, stage, value: self.stores(p, flat, stage, value, SCALAR_GUARD)
        )
        return [f"constexpr int L = {self.layout.scalar_lanes};", *body]

    def _full_pass(self, number: int, partial: bool) -> list[str]:
        """A pass over the whole row. ``partial``: its reductions end in memory, one result of each block."""
        p, layout = self.program.passes[number], self.layout
        if layout.inner and len(p.inner) > 1 and p.inner[-1][1] % layout.vector:
            raise Unsupported("a vector across the end of a line within the row")
        made = shared_arrays(self, p.stages)
        if made and layout.segments > 1:
            raise Unsupported("an array read across the segments of a row")
        reductions, again = self.reductions(number), self.loops_again(p)
        out = [f"{acc.of(layout.vector)} a{n};" for n, acc in reductions]
        out += first_loop(self, number, reductions)
        if again:
            out += [center_statement(layout, n) for n, acc in reductions if acc.is_welford]
            out += deviation_loop(self, number)
        if made:
            out.append("__syncthreads();")
        if not reductions:
            return out
        out += [
            f"constexpr int L = {layout.vector};",
            *combine_accumulators(layout, self.memory, reductions, layout.clustered, again),
        ]
        if layout.in_grid:
            out += combine_across_grid(layout, self.memory, reductions, self.exchanged_words)
        if partial:
            return [*out, *(s for n, acc in reductions for s in store_partial(layout, n, acc))]
        return [*out, *self.results(number)]

    def _side_pass(self, number: int) -> list[str]:
        """A pass over a part of the row, or over something else that a row has several of."""
        p, flat, layout = self.program.passes[number], self.program.flats[number], self.layout
        if layout.segments > 1 and layout.exchange == "split":
            raise Unsupported("a side pass of a split row")
        lanes, reductions = layout.scalar_lanes, self.reductions(number)
        body = self.bodies(number, self.accumulate(number, "segment == 0 && live"))
        out = [f"{acc.of(lanes)} a{n};" for n, acc in reductions]
        out += [
            f"for (int j = t; j < {p.stages[0].points}; j += {layout.team}) {{",
            *indented([f"constexpr int L = {lanes};", *flat.statements, *body]),
            "}",
        ]
        if shared_arrays(self, p.stages):
            out.append("__syncthreads();")
        return [*out, *self._join_single_values(number)] if reductions else out

    def _combine(self, number: int) -> list[str]:
        """Join the partial results that a launch before left of pass ``number``."""
        out = []
        for n, acc in self.reductions(number):
            out += load_partials(self.layout, self.source_segments, n, acc)
        return [*out, *self._join_single_values(number)]

    def _join_single_values(self, number: int) -> list[str]:
        """Join accumulators of single values within this block, and store what they come to."""
        lanes = self.layout.scalar_lanes
        joined = self.join_lanes(self.reductions(number))
        return [f"constexpr int L = {lanes};", *joined, *self.results(number)]
