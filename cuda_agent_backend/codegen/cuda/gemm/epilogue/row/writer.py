"""GEMMs -> CUDA on tensor cores, with rows reduced and mapped in the tile that has them whole (see `match`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from cuda_agent_backend.codegen.analysis.cancellation import mark_cancelling
from cuda_agent_backend.codegen.analysis.gemm import points
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.match import RowMatch
from cuda_agent_backend.codegen.cuda.gemm.lines import tail_lines
from cuda_agent_backend.codegen.cuda.gemm.operands import Output
from cuda_agent_backend.codegen.cuda.gemm.tiles import Tiles, read_tiles
from cuda_agent_backend.codegen.cuda.gemm.tma_boxes import in_batches
from cuda_agent_backend.codegen.cuda.gemm.writer import GemmWriter
from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.cuda.rows.program import RowProgram
from cuda_agent_backend.codegen.cuda.rows.row_writer import RowWriter
from cuda_agent_backend.codegen.ir.banded import ALL
from cuda_agent_backend.codegen.ir.device import WARP, DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.region import Buffer
from cuda_agent_backend.codegen.ir.schedule import Parameter

SKETCH = "contract_rows"
HELD = 20
"""Results of a row that a thread holds, with what it made of them, in registers."""


@dataclass
class TileRows(RowWriter):
    """Writes what is done with a row of a tile."""

    @property
    def row_guard(self) -> str:
        return "live"  # of the last rows of the last tile there may be none

    def text(self) -> list[str]:
        """All passes over the row of a thread. Raises Unsupported where they take more than registers."""
        self.start()
        self.keeper.declare_shared()
        passes = range(len(self.program.passes))
        items = [line for n in passes for line in ("{", *indented(self.item("pass", n)), "}")]
        body = [*self.keeper.fetch(), *self.keeper.declarations(), *items]
        if self.memory.size:
            raise Unsupported("rows whose threads read what others made of them")
        return body


@dataclass
class RowEpilogueWriter(GemmWriter):
    """Writes a GEMM that ends in something over its rows."""

    whole: RowMatch | None = None
    _rows: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.tiles.uses_tma and in_batches(self.gemm) != self.gemm:
            raise Unsupported("boxes of an operand whose rows lie apart")
        if self.tiles.split != 1 or self.tiles.last_wave:
            raise Unsupported("a split sum whose rows are done in its tile")
        if self.tiles.banded:
            raise Unsupported("terms left out of a sum whose rows are done in its tile")
        if self.tiles.tile_n < self.gemm.n and self.tiles.tile_n % self._width:
            raise Unsupported("rows that are longer than a tile, or across its end")
        super().__post_init__()
        self.needed = ALL
        self._rows = self._row_text()

    @property
    def _found(self) -> RowMatch:
        assert self.whole is not None
        return self.whole

    def _output(self) -> Output:
        """A row lies in shared memory as its loops go."""
        return Output(False, self._vector)

    @property
    def _vector(self) -> int:
        return next(v for v in (4, 2, 1) if self._found.line[-1][1] % v == 0)

    @property
    def _width(self) -> int:
        """Results of a row."""
        return points(self._found.line)

    @property
    def _beside(self) -> int:
        """Rows side by side in a tile."""
        return min(self.gemm.n, self.tiles.tile_n) // self._width

    @property
    def _lines(self) -> int:
        return self.tiles.tile_m * self._beside

    @property
    def _layout(self) -> Layout:
        own = self.tiles.threads - self.tiles.preparing
        team, vector = 1, self._vector
        while team < WARP and (
            team * 2 * self._lines <= own or ceildiv(self._width, team * vector) * vector > HELD
        ):
            team *= 2
        layout = Layout(
            points=self._width, rows=self._lines, vector=vector, team=team, across=own // team
        )
        return replace(layout, once=0, wide=self.index == "int64_t")

    # --- text ---

    def store_tail(self) -> list[str]:
        """What is made of each result in the place where it is, then of each row."""
        return [
            *self._exact(),
            "{",
            *indented(self._each_result([self._summed_up, *self._in_place()])),
            "}",
            self.meeting,
            *self._on_rows(),
        ]

    def _in_place(self) -> list[str]:
        product = self._found.product
        last, number = product.stages[-1], len(product.stages) - 1
        value = f"s{number}v{last.body.results[0].number}" if number else "total"
        return [
            *self._repaired(),
            *tail_lines(product, self.gemm, self.region, self.output, self.index),
            f"ca::store<L>(memory + m * stride + n, ca::to<float>({value}));",
        ]

    def _row_text(self) -> list[str]:
        name, layout = self._found.tile, self._layout
        tile = Buffer(name, "temporary", torch.float32, (self._width,), (1,))
        region = replace(self.region, buffers={**self.region.buffers, name: tile})
        kernel = mark_cancelling(self._found.rows)
        program = RowProgram.of(kernel, layout, region)
        return TileRows(region, layout, program, self.device).text()

    def _on_rows(self) -> list[str]:
        c, t, layout, beside = self.gemm, self.tiles, self._layout, self._beside
        live = [f"line < {self._lines}"] if self._lines % layout.across else []
        live += [f"row0 + high < {c.m}"] if c.m % t.tile_m else []
        live += [f"column0 + wide < {c.n}"] if c.n % t.tile_n and c.n > t.tile_n else []
        name, last = self._found.tile, c.n - self._width
        high = f"min(line / {beside}, {t.tile_m - 1})"
        body = [
            f"const int line = turn * {layout.across} + r;",
            f"const int high = {high}, wide = line % {beside} * {self._width};",
            f"const bool live = {' && '.join(live) or 'true'};",
            f"const int row = min(row0 + high, {c.m - 1}), group = min(column0 + wide, {last}) / {self._width};",
            *decompose("row", c.rows, self.index),
            *decompose("group", c.columns[: -len(self._found.line)], self.index),
            f"const float* const m_{name} = memory + high * stride + wide;",
            *self._rows,
        ]
        lines = [
            "const int tid = threadIdx.x - first_thread;",
            f"const int t = tid % {layout.team}, r = tid / {layout.team}, segment = 0;",
            f"const int limit = {self._width};",
            f"constexpr {layout.index_type} first = 0;",
            "#pragma unroll 1",
            f"for (int turn = 0; turn < {ceildiv(self._lines, layout.across)}; ++turn) {{",
            *indented(body),
            "}",
        ]
        return [
            "{",
            *indented(lines),
            "}",
        ]  # a scope of its own, as it names things as a row's kernel does


def row_epilogue_writer(
    whole: RowMatch, tiles: Tiles, device: DeviceFacts, name: str = "k"
) -> RowEpilogueWriter:
    """Of the product and what goes over its rows under these tiles. Raises Unsupported where they do not fit."""
    return RowEpilogueWriter(whole.kernel, whole.gemm, whole.region, tiles, name, device, whole)


def emit_row_epilogue(
    whole: RowMatch, parameters: Mapping[str, Parameter], name: str, device: DeviceFacts
) -> Emitted:
    """The kernel of ``whole``. Raises Unsupported where the schedule does not fit."""
    return row_epilogue_writer(whole, read_tiles(parameters), device, name).emit()
