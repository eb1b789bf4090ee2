"""GEMMs -> CUDA on tensor cores, whose columns are parts that are combined in their tile (see `match`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cuda_agent_backend.codegen.analysis.gemm import points
from cuda_agent_backend.codegen.cuda.common.lane_printer import local_reader, memory_printer
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.match import GluMatch
from cuda_agent_backend.codegen.cuda.gemm.lines import later_stages, tail_lines
from cuda_agent_backend.codegen.cuda.gemm.operands import Output, output_of
from cuda_agent_backend.codegen.cuda.gemm.tail_split import TailSplitWriter
from cuda_agent_backend.codegen.cuda.gemm.tiles import Tiles, read_tiles
from cuda_agent_backend.codegen.cuda.gemm.writer import GemmWriter
from cuda_agent_backend.codegen.ir.banded import ALL
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Dim, RowStage
from cuda_agent_backend.codegen.ir.schedule import Parameter
from cuda_agent_backend.codegen.ir.ssa import Instruction

SKETCH = "contract_gate"


@dataclass
class GluWriter(GemmWriter):
    """Writes a GEMM whose parts are combined. ``buffer``: what there are parts of."""

    buffer: str = ""

    def __post_init__(self) -> None:
        if self.tiles.uses_tma:
            raise Unsupported("boxes of an operand whose columns are numbered by parts")
        if self.tiles.banded:
            raise Unsupported("terms left out of a sum whose parts are combined in its tile")
        own = self.gemm.columns_within(self.tiles.tile_n)
        if own == 0:
            raise Unsupported("parts of which a tile does not have a column each")
        if own < self.tiles.tile_n and self.tiles.split > 1:
            raise Unsupported("a split sum of tiles with columns in vain")
        super().__post_init__()
        self.needed = ALL

    def _output(self) -> Output:
        """As what is made of the parts is stored."""
        found = output_of(self.kernel, replace(self.gemm, columns=self._columns))
        return replace(found, across=0)

    @property
    def share(self) -> float:
        """With the columns that a tile has in vain."""
        return super().share * self.tiles.tile_n / self.own_columns

    @property
    def _columns(self) -> tuple[Dim, ...]:
        """The loops over columns of one part."""
        c = self.gemm
        return tuple(d for d in c.columns if d not in c.parts)

    @property
    def _count(self) -> int:
        """Of parts."""
        return points(self.gemm.parts)

    @property
    def _before(self) -> int:
        """How many of the kernel's stages come before those that combine parts."""
        stored = [any(s.buffer == self.buffer for s in t.local_stores) for t in self.kernel.stages]
        return stored.index(True) + 1

    # --- text ---

    def store_tail(self) -> list[str]:
        """What is made of the parts, for results next to each other."""
        return [*self._exact(), *self._each_gate([self._summed_up])]

    def _each_gate(self, total: Sequence[str]) -> list[str]:
        """The tail for each ``L`` results of it, from those of the first part at `m`, `n`, `row` and `column` on.

        ``total``: declares as many sums of one part, where `n` and `column` are that part's.
        """
        c, t, v = self.gemm, self.tiles, self.output.vector
        own = self.own_columns // self._count
        if self.output.by_rows:
            count, place = own * t.tile_m // v, f"i / {t.tile_m // v}"
            m = f"i % {t.tile_m // v} * {v}"
        else:
            count, place, m = t.tile_m * own // v, f"i % {own // v} * {v}", f"i / {own // v}"
        inside = [f"row < {c.m}"] if c.m % self.own_rows else []
        inside += [f"column < {c.n}"] if c.n % self.own_columns else []
        body = [
            f"const int place = {place}, m = {m}, n = {self._first('place')};",
            "const int row = row0 + m, column = column0 + n;",
            *([f"if (!({' && '.join(inside)})) continue;"] if inside else []),
            *self._gate(total, "n", "column"),
        ]
        return [
            f"constexpr int L = {v};",
            f"for (int i = threadIdx.x - first_thread; i < {count}; i += own_threads) {{",
            *indented(body),
            "}",
        ]

    def _first(self, place: str) -> str:
        """The column of the first part, by number of what the parts become."""
        chunk = self.gemm.chunk
        if chunk == 1:
            return f"{place} * {self._count}"
        return f"{place} / {chunk} * {self._count * chunk} + {place} % {chunk}"

    def _gate(self, total: Sequence[str], *columns: str) -> list[str]:
        """The parts at ``columns`` of the first one, and what is made of them."""
        chunk = self.gemm.chunk
        kernel = replace(self.kernel, stages=self.kernel.stages[: self._before])
        last = len(kernel.stages) - 1
        value = "total" if not last else _name(last, kernel.stages[last])
        body = [
            f"const int {', '.join(f'{c} = first_{c} + part * {chunk}' for c in columns)};",
            *total,
            *self._repaired(),
            *tail_lines(kernel, self.gemm, self.region, self.output, self.index),
            f"parts[part] = ca::to<float>({value});",
        ]
        return [
            f"ca::vec<float, L> parts[{self._count}];",
            f"const int {', '.join(f'first_{c} = {c}' for c in columns)};",
            "#pragma unroll",
            f"for (int part = 0; part < {self._count}; ++part) {{",
            *indented(body),
            "}",
            *decompose("row", self.gemm.rows, self.index),
            *decompose("column", self.gemm.columns, self.index),
            *self._combined(),
        ]

    def _combined(self) -> list[str]:
        """The stages that combine parts, and what they store."""
        width, made = self.output.vector, dict[str, str]()
        near = self.gemm.rows if self.output.by_rows else self._columns

        def local(i: Instruction) -> str:
            return f"parts[{i.index}]" if i.buffer == self.buffer else local_reader(made)(i)

        printer = memory_printer(self.region, local, near[-1][0], width)
        return later_stages(self.kernel, self._before, printer, made)

    # --- sums shared by several blocks ---

    @property
    def _made(self) -> tuple[int, int, int]:
        c = self.gemm
        own = c.n // self._count
        high, wide = (own, c.m) if self.output.by_rows else (c.m, own)
        return c.batches * c.m * own, high, wide

    def _joined_place(self) -> list[str]:
        row, place = ("x", "y") if self.output.by_rows else ("y", "x")
        return [f"const int row = {row}, column = {self._first(place)};"]

    def _joined_results(self) -> list[str]:
        c = self.gemm
        place = f"int64_t(row) * {c.n} + column"
        if self.output.by_rows:
            place = f"int64_t(column) * {c.m} + row"
        batch = f"int64_t(batch) * {c.n * c.m} + " if c.batch else ""
        return self._gate(self._added_up(batch + place), "column")


@dataclass
class TailSplitGluWriter(GluWriter, TailSplitWriter):
    """The same where blocks share the last wave of tiles."""

    @property
    def _made_of_tile(self) -> int:
        return self.tiles.tile_m * self.own_columns // self._count

    def _each_joined(self) -> list[str]:
        t = self.tiles
        place = f"n * {t.tile_m} + m" if self.output.by_rows else f"m * {t.tile_n} + n"
        return self._each_gate(self._joined(f"({place})"))


def _name(number: int, stage: RowStage) -> str:
    """Of a stage's result."""
    return f"s{number}v{stage.body.results[0].number}"


def glu_writer(gating: GluMatch, tiles: Tiles, device: DeviceFacts, name: str = "k") -> GluWriter:
    """Of the product and what combines its parts. Raises Unsupported where the tiles do not fit."""
    kind = TailSplitGluWriter if tiles.last_wave else GluWriter
    kernel, c = gating.kernel, gating.gemm
    return kind(kernel, c, gating.region, tiles, name, device, gating.buffer)


def emit_glu(
    gating: GluMatch, parameters: Mapping[str, Parameter], name: str, device: DeviceFacts
) -> Emitted:
    """The kernels of ``gating``. Raises Unsupported where the schedule does not fit."""
    return glu_writer(gating, read_tiles(parameters), device, name).emit()
