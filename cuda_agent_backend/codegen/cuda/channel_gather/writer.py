"""Gathers along channels that lie apart -> CUDA.

As they stand every element comes from a line of its own. Here what is gathered is copied first so that channels are
neighbours, and a block makes a tile of points and channels: threads along channels gather whole lines, and results go
through shared memory to where points are neighbours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.channel_gather.copies import (
    MOST_DEEP,
    copy_kernel,
    gathering_from_copies,
    named_for,
)
from cuda_agent_backend.codegen.cuda.channel_gather.match import ChannelGathers, channel_gathers_of
from cuda_agent_backend.codegen.cuda.channel_gather.schedules import ChannelGatherParams
from cuda_agent_backend.codegen.cuda.common.lane_printer import local_reader, memory_printer
from cuda_agent_backend.codegen.cuda.common.parts import (
    BYTES,
    Emitted,
    SharedMemory,
    buffers_of,
    needs_wide,
    parameters_of,
    temporary,
)
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented, kernel_text
from cuda_agent_backend.codegen.cuda.pointwise.writer import single_pass, stage_lines
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.parameters import read
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Store
from cuda_agent_backend.codegen.ir.schedule import Parameter
from cuda_agent_backend.codegen.ir.value_types import stage_dtype
from sandbox.plan.plan import Launch

THREADS = 256


def emit_channel_gather(
    kernel: Kernel, region: LoweredRegion, parameters: Mapping[str, Parameter], name: str
) -> Emitted:
    """The copies, and the kernel ``name`` that gathers. Raises Unsupported where the schedule does not fit."""
    found, tile = channel_gathers_of(kernel, region), read(ChannelGatherParams, parameters)
    if isinstance(tile, NotCovered):
        raise Unsupported(tile.reason)
    p = single_pass(kernel)
    if found is None or p is None or found.channels[1] % tile.vector:
        raise Unsupported(f"a schedule {dict(parameters)} that does not fit what is gathered")
    found = replace(found, tables=tuple(named_for(table, name) for table in found.tables))
    copies = {table.copy.name: table.copy for table in found.tables}
    region = replace(region, buffers={**region.buffers, **copies})
    made = [copy_kernel(table, region, f"{name}_copy{n}") for n, table in enumerate(found.tables)]
    gathering = gathering_from_copies(p, found)
    around = replace(kernel, stages=tuple(gathering.stages))
    text, launch = _TileWriter(around, gathering, found, region, tile).written(name)
    return Emitted(
        (*itertools.chain.from_iterable(one.functions for one in made), text),
        (*itertools.chain.from_iterable(one.launches for one in made), launch),
        tuple(temporary(b.name, b.dtype, b.extent) for b in copies.values()),
    )


@dataclass(frozen=True)
class _TileWriter:
    """Writes the kernel that gathers. whole: its pass, which reads the copies."""

    kernel: Kernel
    whole: Pass
    found: ChannelGathers
    region: LoweredRegion
    tile: ChannelGatherParams

    @property
    def _index(self) -> str:
        return "int64_t" if needs_wide(self.region, self.kernel) else "int"

    @property
    def _deep(self) -> int:
        """Channels of a tile."""
        return min(self.found.channels[1], MOST_DEEP)

    @property
    def _pitch(self) -> int:
        """Elements from channel to channel in shared memory."""
        return self.tile.wide + 1

    def written(self, name: str) -> tuple[str, Launch]:
        """The function, and its launch."""
        found, index, wide, deep = self.found, self._index, self.tile.wide, self._deep
        across, down = ceildiv(found.count, wide), ceildiv(found.channels[1], deep)
        memory = self._memory()
        lines = [
            "extern __shared__ __align__(16) unsigned char shared[];",
            *memory.lines,
            f"const {index} block = blockIdx.x;",
            f"const {index} point0 = block % {across} * {wide}, first = block / {across} % {down} * {deep};",
            f"const {index} other = block / {across * down};",
            *decompose("other", found.others, index),
            *self._gathering(),
            "__syncthreads();",
            *self._storing(),
        ]
        reads, writes = buffers_of(self.kernel)
        text = kernel_text(name, THREADS, parameters_of(self.region, reads, writes), lines)
        blocks = across * down * math.prod(n for _, n in found.others)
        return text, Launch(name, (blocks, 1, 1), (THREADS, 1, 1), memory.size, (*reads, *writes))

    def _memory(self) -> SharedMemory:
        (stage,) = (stage for stage in self.whole.stages if stage.stores)
        kind, memory = COMPUTE_TYPES[stage_dtype(stage)], SharedMemory()
        memory.take("tile", kind, self._deep * self._pitch, BYTES[kind])
        return memory

    def _gathering(self) -> list[str]:
        """Vectors of channels to the tile, neighbours of a point side by side."""
        vectors = self._deep // self.tile.vector
        return self._each(
            self.tile.wide * vectors,
            f"slow = e / {vectors}, fast = e % {vectors} * {self.tile.vector}",
            f"point = point0 + slow, {self.found.channels[0]} = first + fast",
            [
                f"  {self._inside}{{",
                f"    constexpr int L = {self.tile.vector};",
                *indented(self._made(), "    "),
                "  }",
            ],
        )

    def _storing(self) -> list[str]:
        """Results from the tile to memory, points side by side."""
        wide = self.tile.wide
        value = f"ca::broadcast<L>(tile + slow * {self._pitch} + fast)"
        return self._each(
            wide * self._deep,
            f"slow = e / {wide}, fast = e % {wide}",
            f"point = point0 + fast, {self.found.channels[0]} = first + slow",
            ["  constexpr int L = 1;", f"  {self._inside}{self._stored(value)}"],
        )

    def _each(self, elements: int, place: str, position: str, body: Sequence[str]) -> list[str]:
        """``body`` at each of a thread's elements of the tile. place, position: where that is in it, and in all."""
        return [
            "#pragma unroll",
            f"for (int u = 0; u < {ceildiv(elements, THREADS)}; ++u) {{",
            f"  const int e = threadIdx.x + {THREADS} * u, {place};",
            *([f"  if (e >= {elements}) break;"] if elements % THREADS else []),
            f"  const {self._index} {position};",
            *indented(decompose("point", self.found.points, self._index)),
            *body,
            "}",
        ]

    @property
    def _inside(self) -> str:
        """The test for a place to be within the loops; nothing where all are."""
        channel, size = self.found.channels
        tests = [f"point < {self.found.count}"] * (self.found.count % self.tile.wide > 0)
        tests += [f"{channel} < {size}"] * (size % self._deep > 0)
        return f"if ({' && '.join(tests)}) " if tests else ""

    def _made(self) -> list[str]:
        """A vector of channels at one point, left in the tile."""
        made: dict[str, str] = {}
        buffers, channel = self.region.buffers, self.found.channels[0]
        printer = memory_printer(self.region, local_reader(made), channel, self.tile.vector)

        def kept(store: Store, value: str) -> str:
            dtype = COMPUTE_TYPES[buffers[store.buffer].dtype]
            to = f"tile[(fast + i) * {self._pitch} + slow] = ca::to<{dtype}>({value}).v[i];"
            return f"for (int i = 0; i < L; ++i) {to}"

        return stage_lines(self.kernel, self.whole, printer, made, kept)

    def _stored(self, value: str) -> str:
        store, printer = self.found.store, memory_printer(self.region, local_reader({}))
        return printer.store(store.buffer, store.index, value)
