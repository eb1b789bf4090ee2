"""GEMMs -> CUDA on tensor cores, pooled in the tile that a block has summed up (see `match`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cuda_agent_backend.codegen.analysis.gemm import points
from cuda_agent_backend.codegen.cuda.common.lane_printer import local_reader, memory_printer
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.match import PoolMatch
from cuda_agent_backend.codegen.cuda.gemm.lines import later_stages, tail_lines
from cuda_agent_backend.codegen.cuda.gemm.operands import Output, output_of
from cuda_agent_backend.codegen.cuda.gemm.tiles import Tiles, read_tiles
from cuda_agent_backend.codegen.cuda.gemm.writer import GemmWriter
from cuda_agent_backend.codegen.ir.banded import ALL
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Dim, RowStage
from cuda_agent_backend.codegen.ir.schedule import Parameter
from cuda_agent_backend.codegen.ir.ssa import Instruction

SKETCH = "contract_pool"


@dataclass
class PoolEpilogueWriter(GemmWriter):
    """Writes a GEMM that ends in a pooling. ``buffer``: what there are windows of."""

    buffer: str = ""

    def __post_init__(self) -> None:
        if self.tiles.uses_tma:
            raise Unsupported("boxes of an operand whose rows are numbered by windows")
        if self.tiles.split != 1 or self.tiles.last_wave:
            raise Unsupported("a split sum that is pooled in its tile")
        if self.tiles.banded:
            raise Unsupported("terms left out of a sum that is pooled in its tile")
        if points(self.gemm.window) > self.tiles.tile_m:
            raise Unsupported("windows that are larger than a tile")
        super().__post_init__()
        self.needed = ALL

    def _output(self) -> Output:
        """Results lie in shared memory as what is pooled of them is stored; vectors are of results."""
        c = self.gemm
        found = output_of(self.kernel, replace(c, rows=self._windows))
        size = (c.rows if found.by_rows else c.columns)[-1][1]
        return Output(found.by_rows, next(v for v in (4, 2, 1) if size % v == 0))

    @property
    def share(self) -> float:
        """With the rows that a tile has in vain."""
        return super().share * self.tiles.tile_m / self.own_rows

    @property
    def _before(self) -> int:
        """How many of the kernel's stages come before those that work on windows."""
        stored = [any(s.buffer == self.buffer for s in t.local_stores) for t in self.kernel.stages]
        return stored.index(True) + 1

    @property
    def _windows(self) -> tuple[Dim, ...]:
        """The loops over windows."""
        c = self.gemm
        return c.rows[: len(c.rows) - len(c.window)]

    # --- text ---

    def store_tail(self) -> list[str]:
        """What is made of each result in the place where it is, then of each window."""
        return [
            *self._exact(),
            "{",
            *indented(self._each_result([self._summed_up, *self._in_place()])),
            "}",
            self.meeting,
            *self._on_windows(),
        ]

    def _in_place(self) -> list[str]:
        stages = self.kernel.stages[: self._before]
        kernel = replace(self.kernel, stages=stages)
        value = "total" if len(stages) == 1 else _name(len(stages) - 1, stages[-1])
        place = "memory + n * stride + m" if self.output.by_rows else "memory + m * stride + n"
        return [
            *self._repaired(),
            *tail_lines(kernel, self.gemm, self.region, self.output, self.index),
            f"ca::store<L>({place}, ca::to<float>({value}));",
        ]

    def _on_windows(self) -> list[str]:
        """Neighbouring threads store what lies nearest: vectors of columns, or windows one by one."""
        c, t, by_rows = self.gemm, self.tiles, self.output.by_rows
        count, v = self.own_rows // points(c.window), 1 if by_rows else self._columns_at_once
        wide = count if by_rows else t.tile_n // v
        near, far = f"i % {wide}", f"i / {wide}"
        own, column = (near, far) if by_rows else (far, f"{near} * {v}")
        inside = [f"window < {points(self._windows)}"] if c.m % self.own_rows else []
        inside += [f"column < {c.n}"] if c.n % t.tile_n else []
        body = [
            f"const int own = {own}, n = {column};",
            f"const int window = tile_m * {count} + own, column = column0 + n;",
            *([f"if (!({' && '.join(inside)})) continue;"] if inside else []),
            *decompose("window", self._windows, self.index),
            *decompose("column", c.columns, self.index),
            *(self._elements() if by_rows else []),
            *self._pooled(v),
        ]
        return [
            f"constexpr int L = {v};",
            f"for (int i = threadIdx.x - first_thread; i < {count * t.tile_n // v}; i += own_threads) {{",
            *indented(body),
            "}",
        ]

    @property
    def _columns_at_once(self) -> int:
        c = self.gemm
        return output_of(self.kernel, replace(c, rows=self._windows)).vector

    def _elements(self) -> list[str]:
        """A window that lies in one piece, in registers: read in vectors, which do not meet in a bank."""
        size = points(self.gemm.window)
        wide = next(v for v in (4, 2, 1) if size % v == 0)
        return [
            f"float elements[{size}];",
            "#pragma unroll",
            f"for (int e = 0; e < {size}; e += {wide}) {{",
            f"  const auto some = ca::load<{wide}>(memory + n * stride + own * {size} + e);",
            "#pragma unroll",
            f"  for (int j = 0; j < {wide}; ++j) elements[e + j] = some.v[j];",
            "}",
        ]

    def _pooled(self, width: int) -> list[str]:
        """The stages that work on windows, and what they store."""
        size, made = points(self.gemm.window), dict[str, str]()

        def local(i: Instruction) -> str:
            if i.buffer != self.buffer:
                return local_reader(made)(i)
            if self.output.by_rows:
                return f"ca::splat<float, L>(elements[{i.index}])"
            return f"ca::load<L>(memory + (own * {size} + {i.index}) * stride + n)"

        lane = None if width == 1 else self.gemm.columns[-1][0]
        printer = memory_printer(self.region, local, lane, width)
        return later_stages(self.kernel, self._before, printer, made)


def _name(number: int, stage: RowStage) -> str:
    """Of a stage's result."""
    return f"s{number}v{stage.body.results[0].number}"


def pool_epilogue_writer(
    pooling: PoolMatch, tiles: Tiles, device: DeviceFacts, name: str = "k"
) -> PoolEpilogueWriter:
    """Of the product and its pooling under these tiles. Raises Unsupported where they do not fit."""
    kernel, c = pooling.kernel, pooling.gemm
    return PoolEpilogueWriter(kernel, c, pooling.region, tiles, name, device, pooling.buffer)


def emit_pool_epilogue(
    pooling: PoolMatch, parameters: Mapping[str, Parameter], name: str, device: DeviceFacts
) -> Emitted:
    """The kernel of ``pooling``. Raises Unsupported where the schedule does not fit."""
    return pool_epilogue_writer(pooling, read_tiles(parameters), device, name).emit()
