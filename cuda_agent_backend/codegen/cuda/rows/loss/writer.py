"""Losses -> two kernels: one over the rows, and a small one that combines what its blocks came to.

A block adds up what its rows give, in double where they are float32, and leaves one partial result. The second kernel
combines those, always in the same order. Nothing counts blocks, so there is nothing to reset and nothing to wait for.
Where `stay` is above 0, so many blocks of each multiprocessor go from rows to rows until none are left; otherwise there
is a block for each of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cuda_agent_backend.codegen.analysis.cancellation import mark_cancelling
from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.common.flat_loops import Flat
from cuda_agent_backend.codegen.cuda.common.narrow_integers import narrow_integers
from cuda_agent_backend.codegen.cuda.common.parts import (
    Accumulator,
    Emitted,
    needs_wide,
    partial_buffers,
)
from cuda_agent_backend.codegen.cuda.common.text import indented
from cuda_agent_backend.codegen.cuda.rows.frame import grid_size, row_groups, row_lines
from cuda_agent_backend.codegen.cuda.rows.layout import Layout, read_layout
from cuda_agent_backend.codegen.cuda.rows.loss.match import LossReduction
from cuda_agent_backend.codegen.cuda.rows.pass_bodies import SCALAR_GUARD
from cuda_agent_backend.codegen.cuda.rows.prepare.gather_order import order_rows_by_reuse
from cuda_agent_backend.codegen.cuda.rows.program import RowProgram, row_points
from cuda_agent_backend.codegen.cuda.rows.row_writer import RowWriter
from cuda_agent_backend.codegen.cuda.rows.split import combining_layout, launches_of
from cuda_agent_backend.codegen.ir.device import WARP, DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel, RowStage
from cuda_agent_backend.codegen.ir.loops import merge_outer
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter
from sandbox.plan.plan import Buffer as PlanBuffer
from sandbox.plan.plan import Launch

SKETCH = "total"
MOST_PARTIALS = 1 << 14
"""Partial results that one block still joins quickly."""
STAYING = "stay"
MOST_STAYING = 32
"""Blocks of a multiprocessor."""


@dataclass
class LossWriter(RowWriter):
    """Writes the kernel over the rows.

    values: of each value of a row, by name, the accumulator's name and the accumulator.

    stay: blocks for each multiprocessor that loop over rows; 0: none does.
    """

    values: dict[str, tuple[str, Accumulator]] = field(default_factory=dict)
    stay: int = 0

    @property
    def partials(self) -> int:
        """Blocks that leave a partial result, of each total."""
        return self._grid // self.layout.segments

    @property
    def _grid(self) -> int:
        blocks = grid_size(self.layout, self.outer, self.device)
        return min(blocks, self.stay * self.device.sm_count) if self.stay else blocks

    def _launch(self, name: str) -> Launch:
        return replace(super()._launch(name), grid=(self._grid, 1, 1))

    def stores(self, p: Pass, flat: Flat, stage: RowStage, value: str, guard: str) -> list[str]:
        out = super().stores(p, flat, stage, value, guard)
        for s in stage.local_stores:
            if s.buffer in self.values:
                n, acc = self.values[s.buffer]
                update = f"total{n}.update(ca::to<{acc.value}>({value}));"
                out.append(f"if ({SCALAR_GUARD}) {update}")
        return out

    def _rows(self, body: list[str]) -> list[str]:
        layout, keeper = self.layout, self.keeper
        ready = ["ca::cluster_wait();"] if layout.clustered else []
        turn = "turn" if self.stay else ""
        rows = [*row_lines(layout, self.outer, turn), *keeper.fetch(), *ready, *body]
        lanes = layout.scalar_lanes
        declared = [f"{acc.of(lanes)} total{n};" for n, acc in self.values.values()]
        if self.stay:
            groups = row_groups(layout, self.outer[-1][1])
            # what rows share of the block's memory is free for the next ones when all have read it
            barrier = ["__syncthreads();"] if self.memory.size else []
            head = f"for (int turn = blockIdx.x; turn < {groups}; turn += gridDim.x) {{"
            rows = [head, *indented([*rows, *barrier]), "}"]
        else:
            rows = ["{", *indented(rows), "}"]
        return [*declared, *rows, *self._leave()]

    def _leave(self) -> list[str]:
        """What this block's rows came to, to memory."""
        lanes, warps = self.layout.scalar_lanes, self.layout.threads // WARP
        out, joins = [], []
        for n, acc in self.values.values():
            self.memory.take(f"warps{n}", acc.of(1), warps, acc.size(1))
            out += [
                f"auto f{n} = ca::warp_join<{WARP}>(ca::across<{lanes}>(total{n}));",
                f"if ((tid & {WARP - 1}) == 0) warps{n}[tid / {WARP}] = f{n};",
            ]
            joins.append(f"f{n} = ca::gather_join<{warps}>(warps{n});")
            place = f"blockIdx.x / {self.layout.segments}"
            kept = " ".join(f"{m}{n}[{place}] = f{n}.{m}[0];" for m, _ in acc.fields)
            joins.append(f"if (tid == 0) {{ {kept} }}")
        first = f"if (tid < {WARP} && segment == 0) {{"
        return [*out, "__syncthreads();", first, *indented(joins), "}"]


def emit_loss(
    found: LossReduction,
    region: LoweredRegion,
    parameters: Mapping[str, Parameter],
    name: str,
    device: DeviceFacts,
) -> Emitted:
    """Both kernels, ``name``_0 and ``name``_1. Raises Unsupported where the schedule does not fit."""
    writer = _row_writer(found, region, parameters, device)
    count, numbers = writer.partials, found.after.rows
    if count > MOST_PARTIALS * numbers:
        raise Unsupported(f"{count} partial results")
    rows = writer.program.kernel.rows // numbers
    joining, items = _joining(found, region, device, rows, count // numbers)
    own = joining.reductions(0)
    writer.values = dict(zip(found.totals, own, strict=True))
    buffers = partial_buffers(name, own, count)
    work = [("pass", n) for n in range(len(writer.program.passes))]
    first = _with_partials(writer.function(f"{name}_0", work, _parameters(buffers, "")), buffers)
    last = _with_partials(
        joining.function(f"{name}_1", items, _parameters(buffers, "const ")), buffers
    )
    texts, launches = (first[0], last[0]), (first[1], last[1])
    return Emitted(texts, launches, tuple(buffer for *_, buffer in buffers))


def _row_writer(
    found: LossReduction,
    region: LoweredRegion,
    parameters: Mapping[str, Parameter],
    device: DeviceFacts,
) -> LossWriter:
    """Of the kernel over the rows, which may be in another order than they were found in."""
    stay = parameters.get(STAYING, 0)
    if not isinstance(stay, int) or not 0 <= stay <= MOST_STAYING:
        raise Unsupported(f"schedule parameter {STAYING}={stay!r}")
    rows, numbers = prepared(found.rows, region), found.after.rows
    alone = numbers == 1 and parameters.get("lanes", "inner") == "inner"
    if alone and parameters.get("across", 1) != 1:
        rows = order_rows_by_reuse(rows)
    layout = _layout(rows, region, parameters)
    layout.check(device)
    if layout.is_split or layout.in_grid or layout.stages > 1 or (stay and layout.clustered):
        raise Unsupported("rows that launches or groups share, or blocks of a cluster that stay")
    if not layout.inner and (not rows.outer or rows.outer[-1][1] % layout.vector):
        raise Unsupported("lanes across the end of the rows")
    program = RowProgram.of(mark_cancelling(rows), layout, region)
    if numbers > 1 and (stay or not _within_one(layout, rows, rows.rows // numbers)):
        raise Unsupported("blocks with rows of several numbers")
    return LossWriter(region, layout, program, device, stay=stay)


def _within_one(layout: Layout, rows: Kernel, together: int) -> bool:
    """Whether no block has rows of two numbers, each made of ``together`` rows that follow each other."""
    if layout.inner:
        return together % layout.across == 0
    line = rows.outer[-1][1]
    return together % line == 0 or (
        line % together == 0 and together % (layout.across * layout.vector) == 0
    )


def prepared(kernel: Kernel, region: LoweredRegion) -> Kernel:
    """The rows as they are written: with long lines of neighbours, and indices of 32 bits where they fit."""
    return merge_outer(narrow_integers(kernel, needs_wide(region, kernel)))


def _layout(rows: Kernel, region: LoweredRegion, parameters: Mapping[str, Parameter]) -> Layout:
    own = {n: v for n, v in parameters.items() if n != STAYING}
    return read_layout(own, row_points(rows), rows.rows, False, needs_wide(region, rows))


def _joining(
    found: LossReduction, region: LoweredRegion, device: DeviceFacts, rows: int, count: int
) -> tuple[RowWriter, list[tuple[str, int]]]:
    """What joins the ``count`` partial results of each number's ``rows`` rows and does the rest, and its items."""
    after = narrow_integers(found.after, needs_wide(region, found.after))
    layout = Layout(rows, after.rows, segments=count, exchange="split", keep="none")
    program = RowProgram.of(after, layout, region)
    launches = launches_of(program.passes)
    if len(launches) != 2 or launches[0] != [("partial", 0)]:
        raise Unsupported("reductions over rows that are more than one loop")
    writer = RowWriter(region, combining_layout(layout), program, device, count)
    if len(writer.reductions(0)) != len(found.totals):
        raise Unsupported("reductions over rows in several loops")
    return writer, launches[1]


Buffers = list[tuple[str, str, PlanBuffer]]


def _parameters(buffers: Buffers, const: str) -> list[str]:
    return [f"{const}{ctype}* __restrict__ {parameter}" for parameter, ctype, _ in buffers]


def _with_partials(made: tuple[str, Launch], buffers: Buffers) -> tuple[str, Launch]:
    text, launch = made
    return text, replace(launch, args=(*launch.args, *(buffer.name for *_, buffer in buffers)))
