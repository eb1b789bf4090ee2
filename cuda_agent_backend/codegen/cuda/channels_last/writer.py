"""Windows stored channels last -> CUDA.

Along the channels such a kernel would read one element of each line of memory, along the image it would write one. So a
block makes tiles of results as other kernels of windows do (see `stencil`), along the image, for some channels of the
same places, leaves them in shared memory, and stores the channels of a place together.

In shared memory the results of a channel are a line of vectors. Which of eight neighbouring ones a vector is depends on
the channel as well, so that neither side's threads meet in one bank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import sympy
import torch

from cuda_agent_backend.codegen.cuda.channels_last.match import (
    ChannelsLastWindows,
    channels_last_of,
)
from cuda_agent_backend.codegen.cuda.channels_last.schedules import (
    MOST_SHARED_BYTES,
    SPOTS,
    WORD,
    ChannelsLastParams,
    result_type,
    tile_memory,
)
from cuda_agent_backend.codegen.cuda.common.lane_printer import LanePrinter, local_reader
from cuda_agent_backend.codegen.cuda.common.parts import (
    Emitted,
    SharedMemory,
    buffers_of,
    needs_wide,
    parameters_of,
)
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented, kernel_text
from cuda_agent_backend.codegen.cuda.pointwise.stencil import tile_body, tile_rows
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.parameters import read
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter
from sandbox.plan.plan import Launch

THREADS = 256
BANKED = 8
"""Vectors of four words that a warp reads at a time without two in one bank."""


def emit_channels_last(
    kernel: Kernel, region: LoweredRegion, parameters: Mapping[str, Parameter], name: str
) -> Emitted:
    """The kernel, called ``name``. Raises Unsupported where the schedule does not fit."""
    tile, found = read(ChannelsLastParams, parameters), channels_last_of(kernel)
    if isinstance(tile, NotCovered):
        raise Unsupported(tile.reason)
    fits = found is not None and found.line[1] % tile.vector == 0 and tile.deep % WORD == 0
    if found is None or not fits or tile.rows not in tile_rows(found.dims, found.whole):
        raise Unsupported(f"a schedule {dict(parameters)} that does not fit the windows")
    memory = tile_memory(found, tile)
    if memory.size > MOST_SHARED_BYTES:
        raise Unsupported(f"{memory.size} bytes of shared memory")
    return _Writer(kernel, region, found, tile).emitted(name, memory)


@dataclass(frozen=True)
class _Writer:
    """Writes the kernel."""

    kernel: Kernel
    region: LoweredRegion
    found: ChannelsLastWindows
    tile: ChannelsLastParams

    @property
    def _index(self) -> str:
        return "int64_t" if needs_wide(self.region, self.kernel) else "int"

    @property
    def _spots(self) -> tuple[int, int]:
        """Tiles below each other and side by side, of one channel."""
        rows = ceildiv(self.found.rows[1], self.tile.rows)
        return rows, self.found.line[1] // self.tile.vector

    def emitted(self, name: str, memory: SharedMemory) -> Emitted:
        found, deep = self.found, self.tile.deep
        spots = math.prod(self._spots)
        across, down = ceildiv(spots, SPOTS), ceildiv(found.channels[1], deep)
        index = self._index
        reads, writes = buffers_of(self.kernel)
        lines = [
            "extern __shared__ __align__(16) unsigned char shared[];",
            *memory.lines,
            f"const {index} block = blockIdx.x;",
            f"const {index} spot0 = block % {across} * {SPOTS}, channel0 = block / {across} % {down} * {deep};",
            f"const {index} other = block / {across * down};",
            *self._making(spots),
            "__syncthreads();",
            *self._storing(spots),
        ]
        text = kernel_text(name, THREADS, parameters_of(self.region, reads, writes), lines)
        blocks = across * down * math.prod(n for _, n in found.others)
        launch = Launch(name, (blocks, 1, 1), (THREADS, 1, 1), memory.size, (*reads, *writes))
        return Emitted((text,), (launch,))

    def _making(self, spots: int) -> list[str]:
        """Tiles of results to shared memory, those of a channel side by side first."""
        found, index = self.found, self._index
        vector, rows, deep = self.tile.vector, self.tile.rows, self.tile.deep

        def kept(value: str, row: str) -> str:
            place = self._place("own", f"({row} - first) * {SPOTS} + spot")
            return f"ca::store<L>(made + {place}, {value});"

        body = tile_body(
            self.kernel, self.region, found.whole, found.dims, (rows, vector), index, kept
        )
        return [
            "#pragma unroll 1",
            f"for (int e = threadIdx.x; e < {deep * SPOTS}; e += {THREADS}) {{",
            f"  constexpr int L = {vector};",
            f"  const int spot = e % {SPOTS}, own = e / {SPOTS};",
            f"  if (spot0 + spot >= {spots} || channel0 + own >= {found.channels[1]}) continue;",
            f"  const {index} at = (other * {found.channels[1]} + channel0 + own) * {spots} + spot0 + spot;",
            *indented(body),
            "}",
        ]

    def _place(self, channel: str, number: str) -> str:
        """Where vector ``number`` of a channel's results begins."""
        vector, rows, deep = self.tile.vector, self.tile.rows, self.tile.deep
        turned = f"{channel} / {WORD} * {max(1, BANKED * WORD // deep)} % {BANKED}"
        return f"({channel} * {rows * SPOTS} + (({number}) ^ ({turned}))) * {vector}"

    def _storing(self, spots: int) -> list[str]:
        """Results to memory, those of a place side by side first."""
        found, index = self.found, self._index
        vector, rows, deep = self.tile.vector, self.tile.rows, self.tile.deep
        (row, height), (line, _), (channel, count) = found.rows, found.line, found.channels
        width, lanes = self._spots[1], self._lanes
        first = f"ca::imin({index}(spot / {width} * {rows}), {height - rows})"
        place = self._place("(own + n)", "e / " + f"{deep // lanes * vector}")
        printer = LanePrinter(
            channel, lambda b: f"m_{b}", local_reader({}), self._dtype_of, "", lanes
        )
        return [
            "#pragma unroll 4",
            f"for (int e = threadIdx.x; e < {deep // lanes * vector * rows * SPOTS}; e += {THREADS}) {{",
            f"  constexpr int L = {lanes};",
            f"  const int own = e % {deep // lanes} * L, lane = e / {deep // lanes} % {vector};",
            f"  const int turn = e / {deep // lanes * vector * SPOTS};",
            f"  const {index} spot = spot0 + e / {deep // lanes * vector} % {SPOTS}, {channel} = channel0 + own;",
            f"  if (spot >= {spots} || {channel} >= {count}) continue;",
            f"  const {index} {row} = {first} + turn, {line} = spot % {width} * {vector} + lane;",
            *indented(decompose("other", found.others, index)),
            f"  ca::vec<{result_type(found)}, L> value;",
            "#pragma unroll",
            f"  for (int n = 0; n < L; ++n) value.v[n] = made[{place} + lane];",
            f"  {printer.store(found.store.buffer, found.store.index, 'value')}",
            "}",
        ]

    @property
    def _lanes(self) -> int:
        """Channels that a thread stores at a time."""
        steps = sympy.expand(self.found.store.index).as_coefficients_dict()
        item = self._dtype_of(self.found.store.buffer).itemsize
        whole = all(
            int(step) % WORD == 0 for term, step in steps.items() if term != self.found.channels[0]
        )
        return WORD if whole and self.found.channels[1] % WORD == 0 and item <= WORD else 1

    def _dtype_of(self, buffer: str) -> torch.dtype:
        return self.region.buffers[buffer].dtype
