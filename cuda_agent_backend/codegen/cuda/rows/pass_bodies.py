"""What a row kernel does at one position of a pass: the text of its stages' bodies, and where their values go.

`PassBodies` holds the state that every writer of row kernels needs: the buffers, the shared memory taken so far, what
stays on the chip, and the accumulators of reductions and scans. `row_writer` puts loops and a launch around it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace

from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.common.body_rewrites import fold_constants, share_divisors
from cuda_agent_backend.codegen.cuda.common.flat_loops import POSITION, Flat, flat_body
from cuda_agent_backend.codegen.cuda.common.lane_printer import LanePrinter
from cuda_agent_backend.codegen.cuda.common.parts import Accumulator, SharedMemory, buffers_of
from cuda_agent_backend.codegen.cuda.common.text import block
from cuda_agent_backend.codegen.cuda.rows.combine import (
    Reductions,
    combine_accumulators,
    exchange_words,
)
from cuda_agent_backend.codegen.cuda.rows.frame import has_idle_threads
from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.cuda.rows.on_chip import OnChipCache
from cuda_agent_backend.codegen.cuda.rows.prepare.gather_order import gather_indices_first
from cuda_agent_backend.codegen.cuda.rows.program import RowProgram, is_full
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.kernel import RowStage
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.ssa import Instruction
from cuda_agent_backend.codegen.ir.value_types import stage_dtype, value_type

AtEnd = Callable[[int, RowStage, str], list[str]]
"""Statements that use a stage's value: given the stage's number in its pass, the stage, and the value's name."""
HERE = Flat({}, ())
SCALAR_GUARD = "t == 0 && segment == 0 && live"
"""The one thread that stores what a row has one of."""


@dataclass
class PassBodies:
    """Writes the bodies of one kernel's passes under one layout.

    Attributes:
        source_segments: how many partial results of each row a launch before left in memory; 1: none.
    """

    region: LoweredRegion
    layout: Layout
    program: RowProgram
    device: DeviceFacts
    source_segments: int = 1

    def __post_init__(self) -> None:
        self.reads, self.writes = buffers_of(self.program.kernel)
        self.outer = self.program.kernel.outer
        self.start()

    def start(self) -> None:
        """Begin a function: no shared memory is taken, and nothing is kept yet."""
        self.memory = SharedMemory()
        self.keeper = OnChipCache(self.region, self.layout, self.program, self.memory)

    # --- stage bodies and stores ---

    def printer(self, p: Pass) -> LanePrinter:
        """Prints the bodies of a pass: along the row, across rows, or for values that a row has one of."""
        layout = self.layout
        if not layout.inner:
            return self.keeper.printer(self.keeper.lane, layout.vector)
        full = is_full(p, layout.points)
        return self.keeper.printer(POSITION if p.inner else None, layout.vector if full else 1)

    def stores(self, p: Pass, flat: Flat, stage: RowStage, value: str, guard: str) -> list[str]:
        """All stores of a stage's value, those to memory under ``guard`` (a condition, or nothing)."""
        printer = self.printer(p)
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
        """Bodies of the pass's stages in order, each followed by what ``at_end`` does with its value.

        ``among``: numbers of the stages that are written; all of them by default.
        """
        p, flat = self.program.passes[number], self.program.flats[number]
        scalars = {n for n, local in self.program.kernel.locals.items() if local.size == 1}
        printer, out = replace(self.printer(p), named={}), list[str]()
        rows = [symbol for symbol, _ in self.outer]
        for n, stage in enumerate(p.stages):
            if among is not None and n not in among:
                continue
            prefix = f"s{n}v"
            body = gather_indices_first(fold_constants(flat_body(stage.body, flat)))
            body = share_divisors(body, scalars, rows) if p.inner else body
            out += printer.lines(body, prefix)
            value = f"{prefix}{stage.body.results[0].number}"
            out += at_end(n, stage, value)
            if stage.kind == "map":
                for s in stage.local_stores:
                    self.keeper.made[s.buffer] = f"ca::to<{self.keeper.types[s.buffer]}>({value})"
        self.keeper.made.clear()
        return out

    def after_scan(self, number: int) -> list[str]:
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
        return "live" if has_idle_threads(self.layout, self.outer) else ""

    # --- accumulators of reductions and scans ---

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

    def scan_totals(self, number: int) -> Reductions:
        """The scan of pass ``number`` as the reduction that gives its last value."""
        stages = enumerate(self.program.passes[number].stages)
        scans = ((n, self._accumulator(s)) for n, s in stages if s.kind == "scan")
        return [(f"{number}_{n}", _of_scan(acc)) for n, acc in scans]

    @property
    def exchanged_words(self) -> int:
        """Words that a block of a grid leaves for others at a meeting, the most of any."""
        passes = enumerate(self.program.passes)
        full = (n for n, p in passes if is_full(p, self.layout.points))
        return max((exchange_words(self.reductions(n)) for n in full), default=0)

    def accumulate(
        self, number: int, guard: str, prefix: str = "a", deviations: bool = False
    ) -> AtEnd:
        """What becomes of a pass's values: they are stored, or update the accumulators ``<prefix><suffix>``.

        ``deviations``: this is the second loop of `loops_again`, which only adds up deviations from means.
        """
        p, flat = self.program.passes[number], self.program.flats[number]
        accumulators = dict(self.reductions(number))
        again = self.loops_again(p)

        def at_end(n: int, stage: RowStage, value: str) -> list[str]:
            name = f"{number}_{n}"
            if stage.kind == "map":
                return [] if deviations else self.stores(p, flat, stage, value, guard)
            value = f"ca::to<{accumulators[name].value}>({value})"
            if stage.combine == "welford" and again:
                return [f"a{name}.{'deviate' if deviations else 'count'}({value});"]
            together = "_together" if self.layout.inner and self.sums_products(stage) else ""
            update = f"{prefix}{name}.update{together}({value}, j, {int(self.layout.inner)});"
            return [] if deviations else [update]

        return at_end

    def loops_again(self, p: Pass) -> bool:
        """Whether deviations from means take a second loop, over values that are on the chip."""
        layout = self.layout
        kept = layout.keep != "none" and not layout.partial and is_full(p, layout.points)
        return kept and any(s.combine == "welford" for s in p.stages)

    def sums_products(self, stage: RowStage) -> bool:
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

    def results(self, number: int) -> list[str]:
        """Stores of what the reductions ``f<suffix>`` of pass ``number`` came to."""
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

    def join_lanes(self, reductions: Reductions) -> list[str]:
        """Join ``a<suffix>``, a single value of every thread, to ``f<suffix>`` within this block."""
        alone = replace(self.layout, vector=self.layout.scalar_lanes)
        return combine_accumulators(alone, self.memory, reductions, cluster=False)


def shared_arrays(bodies: PassBodies, stages: Iterable[RowStage]) -> frozenset[str]:
    """Arrays that ``stages`` make and other threads read."""
    return frozenset(s.buffer for st in stages for s in st.local_stores) & bodies.program.shared


def _of_scan(acc: Accumulator) -> Accumulator:
    """A scan's accumulator: products are in double.

    Products of a few numbers leave float's range, and what they meet then is NaN.
    """
    return replace(acc, value="double") if (acc.combine, acc.value) == ("prod", "float") else acc


def _last(stage: RowStage) -> Instruction | None:
    """What gives a stage's value."""
    made = {i.result: i for i in stage.body.instructions}
    return made.get(stage.body.results[0]) if stage.body.results else None
