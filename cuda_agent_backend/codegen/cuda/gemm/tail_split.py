"""GEMMs -> CUDA, where several blocks share each tile of the tail wave (``last_wave``), as in Stream-K.

Tiles of whole waves are computed as ever, with their epilogue in place. Blocks of the tail wave come after them, each
with a part of the terms of its tile. They keep their sums in memory, in the order in which the epilogue takes them. A
second kernel adds up the parts of a tile, in a fixed order, and does the epilogue on those tiles alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.common.parts import Emitted, parameters_of, temporary
from cuda_agent_backend.codegen.cuda.common.text import indented
from cuda_agent_backend.codegen.cuda.gemm.tail_wave import tail_wave_of
from cuda_agent_backend.codegen.cuda.gemm.tiles import Tiles, read_tiles
from cuda_agent_backend.codegen.cuda.gemm.writer import TAIL_THREADS, GemmWriter
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter
from sandbox.plan.plan import Launch


@dataclass
class TailSplitWriter(GemmWriter):
    """Writes a GEMM whose last wave of tiles is shared."""

    def __post_init__(self) -> None:
        super().__post_init__()
        c, t, shared = self.gemm, self.tiles, self.shared_bytes
        t.check(shared, self.device, c.is_half)
        if self.bands is not None or self.needed.bounds:
            raise Unsupported("a last wave of tiles that have unequal numbers of terms")
        high, wide = self.grid
        self.wave = tail_wave_of(t, shared, c.batches * high * wide, c.k, self.device)

    def _at_once(self) -> Emitted:
        size = self.wave.rest * self.wave.parts * self._tile_size
        joined, join = self._join_tiles()
        partial = temporary(self._partial, torch.float32, size)
        text = self._text([*self._keep_part(), *self.store_tail()])
        return Emitted((text, joined), (self._launch(), join), (partial,))

    def _launch(self) -> Launch:
        plain = super()._launch()
        before = len(self.reads) + len(self.writes)
        arguments = (*plain.args[:before], self._partial, *plain.args[before:])
        return replace(plain, grid=(self.wave.blocks, 1, 1), args=arguments)

    @property
    def _tile_size(self) -> int:
        return self.tiles.tile_m * self.tiles.tile_n

    # --- the product ---

    def _parameters(self) -> list[str]:
        return [*super()._parameters(), f"float* __restrict__ {self._partial}"]

    def _place(self, number: str, batch: str) -> list[str]:
        """As where each tile has a block, but for the tile's number: parts that run together share what they read."""
        wave = self.wave
        return [
            f"const int beyond = int(blockIdx.x) - {wave.whole};",
            f"const int part = beyond < 0 ? 0 : beyond / {wave.rest};",
            f"const int tile = beyond < 0 ? int(blockIdx.x) : {wave.whole} + beyond % {wave.rest};",
            *self._tile_of("tile"),
        ]

    def _tile_of(self, number: str) -> list[str]:
        high, wide = self.grid
        return super()._place(f"{number} % {high * wide}", f"{number} / {high * wide}")

    def _own_terms(self, terms: str) -> tuple[str, str]:
        share = self._share(terms, self.wave.parts)
        return f"part * ({share})", f"beyond < 0 ? {terms} : min(first + {share}, {terms})"

    def _keep_part(self) -> list[str]:
        """What a block of the last wave does with its results."""
        to = f"{self._partial} + int64_t(beyond) * {self._tile_size} + i * L"
        kept = self._each_result([self._summed_up, f"ca::store<L>({to}, total);"])
        return ["if (beyond >= 0) {", *indented([*kept, "return;"]), "}"]

    # --- the second kernel ---

    def _join_tiles(self) -> tuple[str, Launch]:
        """Each block adds up a piece of a tile."""
        c, wave = self.gemm, self.wave
        pieces = ceildiv(self._made_of_tile // self.output.vector, TAIL_THREADS)
        body = [
            f"const int beyond = blockIdx.x / {pieces}, tile = {wave.whole} + beyond, end = {c.k};",
            *self._tile_of("tile"),
            *([*self._find(self.left, c.m), *self._find(self.right, c.n)] if self._anew else []),
            *self._exact(),
            f"const int first_thread = -int(blockIdx.x % {pieces} * {TAIL_THREADS});",
            f"constexpr int own_threads = {pieces * TAIL_THREADS};",
            *self._each_joined(),
        ]
        name, parameters = (
            f"{self.name}_join",
            [
                *parameters_of(self.region, self.reads, []),
                f"const float* __restrict__ {self._partial}",
                *parameters_of(self.region, [], self.writes),
            ],
        )
        head = f'extern "C" __global__ void __launch_bounds__({TAIL_THREADS})'
        text = "\n".join([head, f"{name}({', '.join(parameters)}) {{", *indented(body), "}"])
        blocks, arguments = (wave.rest * pieces, 1, 1), (*self.reads, self._partial, *self.writes)
        return text, Launch(name, blocks, (TAIL_THREADS, 1, 1), 0, arguments)

    @property
    def _made_of_tile(self) -> int:
        """How many results are made of a tile."""
        return self._tile_size

    def _each_joined(self) -> list[str]:
        return self._each_result([*self._joined("i * L"), *self._tail()])

    def _joined(self, place: str) -> list[str]:
        """``total``: sums of all parts for the results at a place of a tile, always in the same order."""
        at = f"(int64_t(s) * {self.wave.rest} + beyond) * {self._tile_size} + {place}"
        return [
            "auto total = ca::splat<float, L>(0.f);",
            "#pragma unroll 16",
            f"for (int s = 0; s < {self.wave.parts}; ++s)",
            f"  total = ca::add(total, ca::load<L>({self._partial} + {at}));",
        ]


def writer_of(
    kernel: Kernel,
    gemm: GemmForm,
    region: LoweredRegion,
    tiles: Tiles,
    name: str,
    device: DeviceFacts,
) -> GemmWriter:
    """The writer of a schedule. Raises Unsupported where that does not fit."""
    kind = TailSplitWriter if tiles.last_wave else GemmWriter
    return kind(kernel, gemm, region, tiles, name, device)


def emit_gemm(
    kernel: Kernel,
    gemm: GemmForm | None,
    region: LoweredRegion,
    parameters: Mapping[str, Parameter],
    name: str,
    device: DeviceFacts,
) -> Emitted:
    """Raises Unsupported where the kernel is no GEMM, or the schedule does not fit."""
    if gemm is None:
        raise Unsupported("no sum of products")
    tiles = read_tiles(parameters)
    return writer_of(kernel, gemm, region, tiles, name, device).emit()
