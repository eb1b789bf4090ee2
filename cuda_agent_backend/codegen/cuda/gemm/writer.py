"""GEMMs -> CUDA on tensor cores: kernels and their launches, with a pointwise epilogue on the tile of a block.

`facts` holds what is known of a kernel, `main_loop` the source that multiplies, `results` what is done with sums. Here
they become kernels, two where several blocks share the terms of a tile (``split``). Schedule parameters: see `tiles`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from cuda_agent_backend.codegen.analysis.gemm import points
from cuda_agent_backend.codegen.cuda.common.parts import (
    Emitted,
    parameters_of,
    temporary,
)
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented
from cuda_agent_backend.codegen.cuda.gemm.aligned_operands import copying
from cuda_agent_backend.codegen.cuda.gemm.banded import (
    BandedOperands,
    ends,
    noting,
)
from cuda_agent_backend.codegen.cuda.gemm.facts import MAX_BATCHES
from cuda_agent_backend.codegen.cuda.gemm.lines import find_lines
from cuda_agent_backend.codegen.cuda.gemm.main_loop import MainLoopWriter
from cuda_agent_backend.codegen.cuda.gemm.results import ResultsWriter
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from sandbox.plan.plan import Argument, Launch
from sandbox.plan.plan import Buffer as PlanBuffer

PRELUDES = ("cuda/gemm/gemm.cuh", "cuda/gemm/gemm_wide.cuh", "cuda/gemm/gemm_relay.cuh")
HALF_PRELUDES = (
    "cuda/gemm/gemm_half.cuh",
    "cuda/gemm/gemm_wide_half.cuh",
    "cuda/common/barrier.cuh",
    "cuda/gemm/gemm_tma.cuh",
)
SKETCH = "contract"
TAIL_THREADS = 256


class GemmWriter(MainLoopWriter, ResultsWriter):
    """Writes the kernels of one GEMM."""

    def emit(self) -> Emitted:
        """Raises Unsupported where the schedule does not fit."""
        self.tiles.check(self.shared_bytes, self.device, self.gemm.is_half)
        if self.gemm.batches > MAX_BATCHES:
            raise Unsupported(f"{self.gemm.batches} batches; at most {MAX_BATCHES}")
        parts = [self._at_once() if self.tiles.split == 1 else self._split()]
        if self.bands is not None:
            parts.insert(0, self._noting(self.bands))
        if self.copies:
            name = f"{self.name}_copy"
            text, launch = copying(self.copies, self.region, name, self.index, self.device)
            own = tuple(one.temporary for one in self.copies)
            parts.insert(0, Emitted((text,), (launch,), own))
        return Emitted(
            tuple(f for part in parts for f in part.functions),
            tuple(one for part in parts for one in part.launches),
            tuple(t for part in parts for t in part.temporaries),
        )

    def _at_once(self) -> Emitted:
        return Emitted((self._text(self.store_tail()),), (self._launch(),))

    def _noting(self, bands: BandedOperands) -> Emitted:
        texts, launches, batch = [], [], self.gemm.batch
        for side in self._noted(bands):
            size = points(side.rows.dims)
            find = find_lines(side, f"x < {size}", self.index, self._dtype, "find")
            text, launch = noting(side, batch, find, self.region, self.name, self.index)
            texts.append(text)
            launches.append(launch)
        made = (self.region.buffers[ends(self.name, side)] for side in bands.noted)
        temporaries = tuple(temporary(one.name, one.dtype, one.extent) for one in made)
        return Emitted(tuple(texts), tuple(launches), temporaries)

    def _launch(self) -> Launch:
        high, wide = self.grid
        blocks = (high * wide, self.tiles.split, self.gemm.batches)
        outputs = [self._partial] if self.tiles.split > 1 else self.writes
        reads = self._operands if self.tiles.split > 1 else self.reads
        arguments: tuple[Argument, ...] = (*reads, *outputs, *(one.map for one in self.boxes))
        return Launch(self.name, blocks, (self.tiles.threads, 1, 1), self.shared_bytes, arguments)

    def _text(self, tail: Sequence[str]) -> str:
        t = self.tiles
        parameters = self._parameters()
        for side in (self.left, self.right) if t.uses_tma else ():
            parameters.append(f"const __grid_constant__ ca::tensor_map map_{side.name}")
        threads = t.threads
        to = "n * stride + m" if self.output.by_rows else "m * stride + n"
        body = [
            "extern __shared__ __align__(16) unsigned char shared[];",  # as in every kernel of a source
            "float* const memory = reinterpret_cast<float*>(shared);",
            f"typedef {self._operand(self.left)} A;",
            f"typedef {self._operand(self.right)} B;",
            *self._place("blockIdx.x", "blockIdx.z"),
            *self._bounds(),
            *(self._places() if not t.uses_tma else []),
            f"{self._sums} sums;",
            *self._add(),
            f"constexpr int first_thread = {t.preparing}, own_threads = {threads - t.preparing};",
            f"constexpr int stride = {(t.tile_m if self.output.by_rows else t.tile_n) + 4};",
            f"sums.each([&](int m, int n, float v) {{ memory[{to}] = v; }});",
            self.meeting,
            *tail,
        ]
        head = f'extern "C" __global__ void __launch_bounds__({threads})'
        return "\n".join([head, f"{self.name}({', '.join(parameters)}) {{", *indented(body), "}"])

    def _parameters(self) -> list[str]:
        """Declarations, tensor maps apart."""
        if self.tiles.split == 1:
            return parameters_of(self.region, self.reads, self.writes)
        operands = parameters_of(self.region, self._operands, [])
        return [*operands, f"float* __restrict__ {self._partial}"]

    def _split(self) -> Emitted:
        c, t = self.gemm, self.tiles
        elements = c.batches * c.m * c.n
        partial: PlanBuffer = temporary(self._partial, torch.float32, elements * t.split)
        high, wide = (c.n, c.m) if self.output.by_rows else (c.m, c.n)
        keep = self._keep(high, wide)
        joined, launch = self._join(*self._made)
        return Emitted(
            (self._text(keep), joined),
            (self._launch(), launch),
            (partial,),
        )

    @property
    def _made(self) -> tuple[int, int, int]:
        """How many results the second kernel makes, and how many lines of how many a batch has of them."""
        c = self.gemm
        high, wide = (c.n, c.m) if self.output.by_rows else (c.m, c.n)
        return c.batches * c.m * c.n, high, wide

    def _keep(self, high: int, wide: int) -> list[str]:
        """Partial sums to memory, as the second kernel will read them."""
        c, t = self.gemm, self.tiles
        tile_high, tile_wide = (t.tile_n, t.tile_m) if self.output.by_rows else (t.tile_m, t.tile_n)
        slow, fast = ("column0", "row0") if self.output.by_rows else ("row0", "column0")
        at = f"((int64_t(blockIdx.y) * {c.batches} + batch) * {high} + y) * {wide} + x"
        return [
            f"for (int i = threadIdx.x - first_thread; i < {tile_high * tile_wide}; i += own_threads) {{",
            f"  const int own_y = i / {tile_wide}, own_x = i % {tile_wide}, y = {slow} + own_y, x = {fast} + own_x;",
            f"  if (y < {high} && x < {wide}) {self._partial}[{at}] = memory[own_y * stride + own_x];",
            "}",
        ]

    def _join(self, elements: int, high: int, wide: int) -> tuple[str, Launch]:
        c, v = self.gemm, self.output.vector
        name, extra = f"{self.name}_join", self.reads
        body = [
            f"constexpr int L = {v};",
            f"const {self.index} at = ({self.index}(blockIdx.x) * {TAIL_THREADS} + threadIdx.x) * L;",
            f"if (at >= {elements}) return;",
            f"const int x = at % {wide}, y = at / {wide} % {high}, end = {c.k};",
            *([f"const int batch = at / (int64_t({wide}) * {high});"] if c.batch else []),
            *self._joined_place(),
            *decompose("batch", c.batch, self.index),
            *([*self._find(self.left, c.m), *self._find(self.right, c.n)] if self._anew else []),
            *self._exact(),
            *self._joined_results(),
        ]
        parameters = [
            *parameters_of(self.region, extra, []),
            f"const float* __restrict__ {self._partial}",
            *parameters_of(self.region, [], self.writes),
        ]
        head = f'extern "C" __global__ void __launch_bounds__({TAIL_THREADS})'
        text = "\n".join([head, f"{name}({', '.join(parameters)}) {{", *indented(body), "}"])
        blocks = ceildiv(math.ceil(elements / v), TAIL_THREADS)
        launch = Launch(
            name, (blocks, 1, 1), (TAIL_THREADS, 1, 1), 0, (*extra, self._partial, *self.writes)
        )
        return text, launch

    def _joined_place(self) -> list[str]:
        """Which results a thread of the second kernel adds up."""
        if self.output.by_rows:
            return ["const int row = x, column = y;"]
        return ["const int row = y, column = x;"]

    def _joined_results(self) -> list[str]:
        """Their sums, and the tail."""
        return [*self._added_up("at"), *self._tail()]

    def _added_up(self, place: str) -> list[str]:
        """``total`` of what blocks found for the results at a place."""
        c = self.gemm
        elements = c.batches * c.m * c.n
        return [
            "auto total = ca::splat<float, L>(0.f);",
            "#pragma unroll",
            f"for (int s = 0; s < {self.tiles.split}; ++s)",
            f"  total = ca::add(total, ca::load<L>({self._partial} + int64_t(s) * {elements} + {place}));",
        ]
