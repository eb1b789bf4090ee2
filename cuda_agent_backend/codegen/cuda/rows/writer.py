"""Kernels over rows -> CUDA: reductions, norms, the softmax family and scans, with all that is fused to them.

See ``cuda_layout`` for how rows are laid over threads. A pass whose loops cover the whole row is *full*: its
positions are dealt to the team, and what its threads keep of one pass is at hand in the next without an exchange.
Other passes (a value for each channel, say) are *side* passes: they loop over their own few points, and their arrays
are in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cuda_agent_backend.codegen.analysis.cancellation import mark_cancelling
from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.common.access import (
    POSITION,
    Flat,
    LanePrinter,
    flat_body,
    fold_constants,
    share_divisors,
)
from cuda_agent_backend.codegen.cuda.common.frame import (
    RUN,
    Span,
    asking_loops,
    block,
    grid_size,
    indented,
    is_partial,
    position_loop,
    row_lines,
    rows_in_turn,
    span_loops,
    staged_lines,
    thread_lines,
)
from cuda_agent_backend.codegen.cuda.common.parts import (
    Accumulator,
    Emitted,
    SharedMemory,
    buffers_of,
    needs_wide,
    parameters_of,
)
from cuda_agent_backend.codegen.cuda.rows.combine import (
    Reductions,
    center,
    join,
    left_words,
    load_partials,
    meet,
    store_partial,
)
from cuda_agent_backend.codegen.cuda.rows.hoist import hoisted
from cuda_agent_backend.codegen.cuda.rows.layout import Layout, read_layout
from cuda_agent_backend.codegen.cuda.rows.on_chip import Keeper
from cuda_agent_backend.codegen.cuda.rows.program import RowProgram, is_full, row_points
from cuda_agent_backend.codegen.cuda.rows.row_blocking import rows_together, taken_together
from cuda_agent_backend.codegen.cuda.rows.scan import scan_pass, scan_total
from cuda_agent_backend.codegen.cuda.rows.table_rows import places_first, sharing_rows
from cuda_agent_backend.codegen.cuda.rows.transposed_loads import (
    check_square,
    square_lines,
    square_names,
    turned_loads,
)
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.nest import Kernel, RowStage, merge_outer
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter
from cuda_agent_backend.codegen.ir.ssa import Instruction, Unsupported
from cuda_agent_backend.codegen.ir.value_types import stage_dtype, value_type
from sandbox.plan.plan import Launch

AtEnd = Callable[[int, RowStage, str], list[str]]
Item = tuple[str, int]
"""("pass", n): do pass n; ("partial", n): up to partial results in memory; ("combine", n): join those."""
HERE = Flat({}, ())
INSTRUCTIONS = {
    **dict.fromkeys(("sin", "cos", "tan", "pow", "lgamma"), 100),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "expm1", "erf", "tanh"), 25),
}
"""About so many for each call of a function."""
MOST_INSTRUCTIONS = 1600
"""Of those in a loop, all that is unrolled of it counted: the instruction cache holds some 8,000 in all."""
SCALAR_GUARD = "t == 0 && segment == 0 && live"


@dataclass
class RowWriter:
    """Writes the functions of one kernel under one layout. ``source_segments``: of the partial results to join."""

    region: LoweredRegion
    layout: Layout
    program: RowProgram
    device: DeviceFacts
    source_segments: int = 1

    def __post_init__(self) -> None:
        self.reads, self.writes = buffers_of(self.program.kernel)
        self.outer = self.program.kernel.outer
        self._start()

    def _start(self) -> None:
        self.memory = SharedMemory()
        self.keeper = Keeper(self.region, self.layout, self.program, self.memory)

    # --- one launch ---

    def function(
        self, name: str, items: Iterable[Item], extra: Sequence[str] = ()
    ) -> tuple[str, Launch]:
        """The function that does ``items``, and its launch. Raises Unsupported."""
        layout = self.layout
        self._start()
        keeper = self.keeper
        keeper.declare_shared()
        body = keeper.declarations()
        for what, number in items:
            body += [f"{{  // {what} {number}", *indented(self._item(what, number)), "}"]
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
            return [*start, *staged_lines(layout, self.outer, keeper.copies(), body, barrier)]
        if layout.in_grid:
            end = ["__syncthreads();"] if barrier else []
            return [*start, *rows_in_turn(layout, self.outer, [*keeper.fetch(), *body, *end])]
        ready = ["ca::cluster_wait();"] if layout.clustered else []
        return [*row_lines(layout, self.outer), *keeper.fetch(), *ready, *body]

    def _launch(self, name: str) -> Launch:
        layout = self.layout
        grid = (grid_size(layout, self.outer, self.device), 1, 1)
        cluster = (layout.segments, 1, 1) if layout.clustered else None
        args = (*self.reads, *self.writes)
        return Launch(name, grid, (layout.threads, 1, 1), self.memory.size, args, cluster)

    # --- bodies ---

    def _printer(self, p: Pass) -> LanePrinter:
        layout = self.layout
        if not layout.inner:
            return self.keeper.printer(self.keeper.lane, layout.vector)
        full = is_full(p, layout.points)
        return self.keeper.printer(POSITION if p.inner else None, layout.vector if full else 1)

    def stores(self, p: Pass, flat: Flat, stage: RowStage, value: str, guard: str) -> list[str]:
        """All stores of a stage's value, those to memory under ``guard`` (a condition, or nothing)."""
        printer = self._printer(p)
        if stage.kind == "reduce" and self.layout.inner:
            printer = self.keeper.printer(None, 1)
        stream = bool(self.layout.stream)
        out = [
            printer.store(s.buffer, flat.of(s.index), value, stream=stream) for s in stage.stores
        ]
        if guard and out:
            out = [f"if ({guard}) {{ {' '.join(out)} }}"]
        kept = (s for s in stage.local_stores if s.buffer in self.program.scratch)
        return [*out, *(self.keeper.write(s, flat, value) for s in kept)]

    def bodies(self, number: int, at_end: AtEnd, among: Container[int] | None = None) -> list[str]:
        """Bodies of the pass's stages (those ``among`` them) in order; ``at_end(stage number, stage, value)`` consumes
        each value."""
        p, flat = self.program.passes[number], self.program.flats[number]
        scalars = {n for n, local in self.program.kernel.locals.items() if local.size == 1}
        printer, out = replace(self._printer(p), named={}), list[str]()
        rows = [symbol for symbol, _ in self.outer]
        for n, stage in enumerate(p.stages):
            if among is not None and n not in among:
                continue
            prefix = f"s{n}v"
            body = places_first(fold_constants(flat_body(stage.body, flat)))
            body = share_divisors(body, scalars, rows) if p.inner else body
            out += printer.lines(body, prefix)
            value = f"{prefix}{stage.body.results[0].number}"
            out += at_end(n, stage, value)
            if stage.kind == "map":
                for s in stage.local_stores:
                    self.keeper.made[s.buffer] = f"ca::to<{self.keeper.types[s.buffer]}>({value})"
        self.keeper.made.clear()
        return out

    def tail(self, number: int) -> list[str]:
        """What follows the scan of pass ``number`` at a position where its value is ``scanned``.

        ``previous``, if printed, is the value of the position before; at the first one it is the scan's identity.
        """
        p, flat, keeper = self.program.passes[number], self.program.flats[number], self.keeper
        arrays = {s.buffer for s in p.stages[0].local_stores}
        keeper.made = dict.fromkeys(arrays, "scanned")
        keeper.previous = dict.fromkeys(arrays, "previous")

        def store(_: int, stage: RowStage, value: str) -> list[str]:
            return self.stores(p, flat, stage, value, self.row_guard)

        out = self.bodies(number, store, among=range(1, len(p.stages)))
        keeper.previous.clear()
        return out

    @property
    def row_guard(self) -> str:
        """Condition for stores of a full pass."""
        return "live" if is_partial(self.layout, self.outer) else ""

    # --- reductions ---

    def _accumulator(self, stage: RowStage) -> Accumulator:
        if stage.combine not in ("argmax", "argmin"):
            return Accumulator(stage.combine, COMPUTE_TYPES[stage_dtype(stage)])
        buffers, types = self.region.buffers, self.keeper.types
        compared = value_type(stage.body, lambda b: buffers[b].dtype, lambda b: types[b])
        return Accumulator(stage.combine, compared)

    def reductions(self, number: int) -> Reductions:
        """The reductions of pass ``number`` under the names their variables have."""
        stages = enumerate(self.program.passes[number].stages)
        return [(f"{number}_{n}", self._accumulator(s)) for n, s in stages if s.kind == "reduce"]

    def totals(self, number: int) -> Reductions:
        """The scan of pass ``number`` as the reduction that gives its last value."""
        stages = enumerate(self.program.passes[number].stages)
        scans = ((n, self._accumulator(s)) for n, s in stages if s.kind == "scan")
        return [(f"{number}_{n}", _scanned(acc)) for n, acc in scans]

    def _at_end(self, number: int, guard: str, prefix: str = "a", first: bool = True) -> AtEnd:
        """What becomes of values: stores, and accumulators ``prefix``. Not ``first``: deviations from means only."""
        p, flat = self.program.passes[number], self.program.flats[number]
        accumulators = dict(self.reductions(number))
        again = self._loops_again(p)

        def at_end(n: int, stage: RowStage, value: str) -> list[str]:
            name = f"{number}_{n}"
            if stage.kind == "map":
                return self.stores(p, flat, stage, value, guard) if first else []
            value = f"ca::to<{accumulators[name].value}>({value})"
            if stage.combine == "welford" and again:
                return [f"a{name}.{'count' if first else 'deviate'}({value});"]
            together = "_together" if self.layout.inner and self._sums_products(stage) else ""
            update = f"{prefix}{name}.update{together}({value}, j, {int(self.layout.inner)});"
            return [update] if first else []

        return at_end

    def _loops_again(self, p: Pass) -> bool:
        """Whether deviations from means take a second loop, over values that are on the chip."""
        layout = self.layout
        kept = layout.keep != "none" and not layout.partial and is_full(p, layout.points)
        return kept and any(s.combine == "welford" for s in p.stages)

    def _worked_out_again(self, p: Pass) -> frozenset[int]:
        """Stages of a second loop: all but those whose values the first one keeps on the chip."""
        scratch = self.program.scratch
        kept = (s.kind == "map" and scratch & {t.buffer for t in s.local_stores} for s in p.stages)
        return frozenset(n for n, one in enumerate(kept) if not one)

    def _results(self, number: int) -> list[str]:
        p, out = self.program.passes[number], [f"constexpr int L = {self.layout.scalar_lanes};"]
        for n, stage in enumerate(p.stages):
            if stage.kind != "reduce":
                continue
            for part in sorted({s.field for s in (*stage.stores, *stage.local_stores)}):
                one = replace(
                    stage,
                    stores=tuple(s for s in stage.stores if s.field == part),
                    local_stores=tuple(s for s in stage.local_stores if s.field == part),
                )
                field = str(part) if stage.combine == "welford" else ""
                out += self.stores(p, HERE, one, f"f{number}_{n}.result({field})", SCALAR_GUARD)
        return block(out)

    # --- passes ---

    def _item(self, what: str, number: int) -> list[str]:
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
        p, flat = self.program.passes[number], self.program.flats[number]
        body = self.bodies(
            number, lambda n, stage, value: self.stores(p, flat, stage, value, SCALAR_GUARD)
        )
        return [f"constexpr int L = {self.layout.scalar_lanes};", *body]

    def _full_pass(self, number: int, partial: bool) -> list[str]:
        p, flat, layout = self.program.passes[number], self.program.flats[number], self.layout
        if layout.inner and len(p.inner) > 1 and p.inner[-1][1] % layout.vector:
            raise Unsupported("a vector across the end of a line within the row")
        made = {s.buffer for st in p.stages for s in st.local_stores} & self.program.shared
        if made and layout.segments > 1:
            raise Unsupported("an array read across the segments of a row")
        reductions = self.reductions(number)
        out = [f"{acc.of(layout.vector)} a{n};" for n, acc in reductions]
        out += self._first_loop(number, reductions)
        if self._loops_again(p):
            out += [center(layout, n) for n, acc in reductions if acc.is_welford]
            at_end = self._at_end(number, "", first=False)
            again = self.bodies(number, at_end, among=self._worked_out_again(p))
            out += position_loop(layout, again, flat.statements)
        if made:
            out.append("__syncthreads();")
        if not reductions:
            return out
        out += [
            f"constexpr int L = {layout.vector};",
            *join(layout, self.memory, reductions, layout.clustered, self._loops_again(p)),
            *(self._meet(reductions) if layout.in_grid else ()),
        ]
        if partial:
            return [*out, *(s for n, acc in reductions for s in store_partial(layout, n, acc))]
        return [*out, *self._results(number)]

    def _meet(self, reductions: Reductions) -> list[str]:
        return meet(self.layout, self.memory, reductions, self.left_words)

    @property
    def left_words(self) -> int:
        """Words that a block of a grid leaves for others at a meeting, the most of any."""
        passes = enumerate(self.program.passes)
        full = (n for n, p in passes if is_full(p, self.layout.points))
        return max((left_words(self.reductions(n)) for n in full), default=0)

    def _first_loop(self, number: int, reductions: Reductions) -> list[str]:
        """The loop that takes values in; long sums go in runs."""
        layout = self._paired(self._unrolled(self.program.passes[number]), number)
        long = layout.keep != "registers" and not layout.blocked and layout.chunks > RUN
        if not (long and reductions and all(acc.is_real_sum for _, acc in reductions)):
            return self._loops(number, layout, "a", ())
        flush = [
            f"a{n}.merge(run{n}); run{n} = {acc.of(layout.vector)}();" for n, acc in reductions
        ]
        runs = [f"{acc.of(layout.vector)} run{n};" for n, acc in reductions]
        return [*runs, *self._loops(number, layout, "run", flush)]

    def _loops(self, number: int, layout: Layout, prefix: str, flush: Sequence[str]) -> list[str]:
        """Loops over all positions of the row: those that are not kept, if any, then those that are."""
        statements, keeper = self.program.flats[number].statements, self.keeper
        if layout.square:
            return position_loop(layout, self._square(number, prefix), (), flush)
        full = [n for n, p in enumerate(self.program.passes) if is_full(p, layout.points)]
        first, out = number == full[0], []
        if layout.partial:
            down = bool(full.index(number) % 2)
            keeper.rest, keeper.last = True, number == full[-1]
            body = self.bodies(number, self._at_end(number, self.row_guard, prefix))
            span = Span(layout.held, layout.chunks, (), down)
            out = span_loops(layout, body, statements, flush, [span])
            keeper.rest = keeper.last = False
        body = self.bodies(number, self._at_end(number, self.row_guard, prefix))
        if keeper.arriving and first and self.program.kept:
            return [*out, *span_loops(layout, body, statements, flush, keeper.parts())]
        if layout.partial:
            kept = [Span(0, layout.held)]
            return [*out, *span_loops(layout, body, statements, flush, kept)]
        if layout.ahead:
            return asking_loops(layout, body, statements, flush)
        ordered = layout.blocked or any(acc.is_arg for _, acc in self.reductions(number))
        if layout.is_split and not ordered and full.index(number) % 2:
            # what the launch before read last may still be in the L2 cache
            back = [Span(0, layout.chunks, (), True)]
            return span_loops(layout, body, statements, flush, back)
        return position_loop(layout, body, statements, flush)

    def _square(self, number: int, prefix: str) -> list[str]:
        """A step of the pass at a square of a thread's rows and positions."""
        p, flat, keeper = self.program.passes[number], self.program.flats[number], self.keeper
        bodies = (places_first(fold_constants(flat_body(s.body, flat))) for s in p.stages)
        loads, printer = turned_loads(bodies, keeper.lane), self._printer(p)
        keeper.turned = square_names(loads)
        body = self.bodies(number, self._at_end(number, self.row_guard, prefix))
        keeper.turned = {}
        return square_lines(self.layout, loads, printer, body, flat.statements)

    def _unrolled(self, p: Pass) -> Layout:
        """The layout with no more of a loop written out than the instruction cache holds."""
        once = sum(INSTRUCTIONS.get(i.op, 0) for s in p.stages for i in s.body.walk())
        most = max(1, MOST_INSTRUCTIONS // max(1, once * self.layout.vector))
        ahead = min(self.layout.ahead, most)
        return replace(self.layout, unroll=min(self.layout.unroll, most), ahead=ahead)

    def _paired(self, layout: Layout, number: int) -> Layout:
        """Neighbours in one thread where products are summed (see `_sums_products`): it costs nothing here."""
        free = not layout.inner and not layout.blocked and layout.keep == "none"
        free = free and not layout.square  # which has more neighbours
        stages = self.program.passes[number].stages
        return replace(layout, pairs=free and any(map(self._sums_products, stages)))

    def _sums_products(self, stage: RowStage) -> bool:
        """Whether a stage is a sum of products: of neighbours first, where an operand whose signs alternate cancels.

        Lanes by themselves would sum one sign each, which a library's product does not.
        """
        last = _last(stage)
        if last is not None and last.op == "local" and last.buffer in self.program.worked_out:
            makers = (s for s in self.program.kernel.stages if s.name == last.buffer)
            last = _last(next(makers))
        return (
            stage.combine == "sum"
            and last is not None
            and last.op == "mul"
            and len(set(last.operands)) == 2
        )

    def _side_pass(self, number: int) -> list[str]:
        p, flat, layout = self.program.passes[number], self.program.flats[number], self.layout
        if layout.segments > 1 and layout.exchange == "split":
            raise Unsupported("a side pass of a split row")
        lanes, reductions = layout.scalar_lanes, self.reductions(number)
        body = self.bodies(number, self._at_end(number, "segment == 0 && live"))
        out = [f"{acc.of(lanes)} a{n};" for n, acc in reductions]
        out += [
            f"for (int j = t; j < {p.stages[0].points}; j += {layout.team}) {{",
            *indented([f"constexpr int L = {lanes};", *flat.statements, *body]),
            "}",
        ]
        if {s.buffer for st in p.stages for s in st.local_stores} & self.program.shared:
            out.append("__syncthreads();")
        return [*out, *self._join_alone(number)] if reductions else out

    def _combine(self, number: int) -> list[str]:
        out = []
        for n, acc in self.reductions(number):
            out += load_partials(self.layout, self.source_segments, n, acc)
        return [*out, *self._join_alone(number)]

    def _join_alone(self, number: int) -> list[str]:
        """Join accumulators of single values within this block."""
        lanes = self.layout.scalar_lanes
        alone = replace(self.layout, vector=lanes)
        joined = join(alone, self.memory, self.reductions(number), cluster=False)
        return [f"constexpr int L = {lanes};", *joined, *self._results(number)]

    def join_lanes(self, name: str, acc: Accumulator) -> list[str]:
        """Join ``a<name>``, a single value of every thread, to ``f<name>`` within this block."""
        alone = replace(self.layout, vector=self.layout.scalar_lanes)
        lines = join(alone, self.memory, [(name, acc)], cluster=False)
        return [line.replace("across<L>", f"across<{alone.vector}>") for line in lines]


def _scanned(acc: Accumulator) -> Accumulator:
    """Of a scan: products in double. Those of a few numbers leave float's range, and what they meet then is NaN."""
    return replace(acc, value="double") if (acc.combine, acc.value) == ("prod", "float") else acc


def _last(stage: RowStage) -> Instruction | None:
    """What gives a stage's value."""
    made = {i.result: i for i in stage.body.instructions}
    return made.get(stage.body.results[0]) if stage.body.results else None


def emit_rows(
    kernel: Kernel,
    region: LoweredRegion,
    parameters: Mapping[str, Parameter],
    name: str,
    device: DeviceFacts,
) -> Emitted:
    """Raises Unsupported where the schedule does not fit."""
    kernel = taken_together(merge_outer(kernel), rows_together(parameters))
    if parameters.get("lanes", "inner") == "inner" and parameters.get("across", 1) != 1:
        kernel = sharing_rows(kernel)
    ordered = any(s.kind == "scan" for s in kernel.stages)
    layout = read_layout(
        parameters, row_points(kernel), kernel.rows, ordered, needs_wide(region, kernel)
    )
    if layout.is_split and any(s.combine == "logaddexp" for s in kernel.stages):
        raise Unsupported("a split scan of exponentials, for which there is no reduction")
    if layout.is_split:
        layout = replace(layout, keep="none")  # nothing stays on the chip from launch to launch
    layout.check(device)
    if not layout.inner and (not kernel.outer or kernel.outer[-1][1] % layout.vector):
        raise Unsupported("lanes across the end of the rows")
    program = RowProgram.of(hoisted(mark_cancelling(kernel)), layout, region)
    if layout.square:
        check_square(program, layout)
    if layout.is_split:
        from cuda_agent_backend.codegen.cuda.rows.split import emit_split

        return emit_split(region, layout, program, name, device)
    if layout.in_grid:
        from cuda_agent_backend.codegen.cuda.rows.cooperative import emit_grid

        return emit_grid(region, layout, program, name, device)
    writer = RowWriter(region, layout, program, device)
    text, launch = writer.function(name, [("pass", n) for n in range(len(program.passes))])
    return Emitted((text,), (launch,))
