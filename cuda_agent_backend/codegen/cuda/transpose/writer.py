"""Transpositions -> CUDA: a block makes a tile of the loop that results run along and the one that operands run along.

Such operands are copied to shared memory first, with threads along their own loop, and read from there across it:
memory sees whole lines on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cuda_agent_backend.codegen.cuda.common.lane_printer import local_reader, memory_printer
from cuda_agent_backend.codegen.cuda.common.parts import (
    BYTES,
    Emitted,
    SharedMemory,
    buffers_of,
    needs_wide,
    parameters_of,
)
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented, kernel_text
from cuda_agent_backend.codegen.cuda.pointwise.writer import stage_lines
from cuda_agent_backend.codegen.cuda.transpose.match import (
    Key,
    Transposition,
    fits_vectors,
    size_of,
    transposition_of,
)
from cuda_agent_backend.codegen.cuda.transpose.schedules import TransposeParams
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.parameters import require
from cuda_agent_backend.codegen.ir.printer import STORAGE_TYPES, c_place
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Store
from cuda_agent_backend.codegen.ir.schedule import Parameter
from cuda_agent_backend.codegen.ir.ssa import Instruction
from sandbox.plan.plan import Launch

THREADS = 256
MOST_SHARED_BYTES = 48 << 10


def emit_transpose(
    kernel: Kernel, region: LoweredRegion, parameters: Mapping[str, Parameter], name: str
) -> Emitted:
    """The kernel, called ``name``. Raises Unsupported where the schedule does not fit."""
    given = require(TransposeParams, parameters)
    found = transposition_of(kernel, given.joined == 1)
    if found is None:
        raise Unsupported(f"a transposing schedule {dict(parameters)} that does not fit the kernel")
    wide, tall, vector = given.wide, given.tall or given.wide, given.vector
    parted = wide % vector or tall % vector
    if vector > 1 and (parted or not fits_vectors(found, region, vector)):
        raise Unsupported(f"vectors of {vector} that do not lie whole along both sides of a tile")
    return _TileWriter(kernel, region, found, wide, tall, vector).emitted(name)


@dataclass(frozen=True)
class _TileWriter:
    """Writes the kernel whose blocks make tiles of ``wide`` columns by ``tall`` rows.

    vector: neighbours that a thread loads and stores at a time.
    """

    kernel: Kernel
    region: LoweredRegion
    found: Transposition
    wide: int
    tall: int
    vector: int

    @property
    def _index(self) -> str:
        return "int64_t" if needs_wide(self.region, self.kernel) else "int"

    @property
    def _tiles_across(self) -> int:
        return ceildiv(size_of(self.found.columns), self.wide)

    @property
    def _tiles_down(self) -> int:
        return ceildiv(size_of(self.found.rows), self.tall)

    @property
    def _vectors(self) -> int:
        """Vectors of a tile."""
        return self.wide * self.tall // self.vector

    @property
    def _pitch(self) -> int:
        """Elements from column to column in shared memory: an odd number spreads a row over the banks."""
        return self.tall | 1

    @cached_property
    def _names(self) -> dict[Key, str]:
        """Tiles in shared memory, by what is loaded to them."""
        return {key: f"tile{number}" for number, key in enumerate(self.found.loads)}

    def emitted(self, name: str) -> Emitted:
        memory, index = self._memory(), self._index
        across, down = self._tiles_across, self._tiles_down
        lines = [
            f"constexpr int L = {self.vector};",
            "extern __shared__ __align__(16) unsigned char shared[];",
            *memory.lines,
            f"const {index} block = blockIdx.x;",
            f"const {index} x0 = block % {across} * {self.wide}, y0 = block / {across} % {down} * {self.tall};",
            f"const {index} other = block / {across * down};",
            *decompose("other", self.found.others, index),
            *self._each(self.tall, "x = x0 + slow, y = y0 + fast", self._fetch()),
            "__syncthreads();",
            *self._each(self.wide, "x = x0 + fast, y = y0 + slow", self._results()),
        ]
        reads, writes = buffers_of(self.kernel)
        text = kernel_text(name, THREADS, parameters_of(self.region, reads, writes), lines)
        blocks = across * down * size_of(self.found.others)
        launch = Launch(name, (blocks, 1, 1), (THREADS, 1, 1), memory.size, (*reads, *writes))
        return Emitted((text,), (launch,))

    def _memory(self) -> SharedMemory:
        memory = SharedMemory()
        for (buffer, _), tile in self._names.items():
            ctype = STORAGE_TYPES[self.region.buffers[buffer].dtype]
            memory.take(tile, ctype, self.wide * self._pitch, BYTES[ctype])
        if memory.size > MOST_SHARED_BYTES:
            count = len(self._names)
            raise Unsupported(
                f"{count} tiles of {self.wide} by {self.tall} elements in shared memory"
            )
        return memory

    def _each(self, side: int, place: str, body: list[str]) -> list[str]:
        """``body`` at each of a thread's vectors of the tile, which lie along the side of ``side`` elements.

        place: the column ``x`` and row ``y``, given the place along that side (``fast``) and across it (``slow``).
        """
        times = f" * {self.vector}" if self.vector > 1 else ""
        parts, index = side // self.vector, self._index
        return [
            "#pragma unroll",
            f"for (int u = 0; u < {ceildiv(self._vectors, THREADS)}; ++u) {{",
            f"  const int e = threadIdx.x + {THREADS} * u;",
            f"  const int fast = e % {parts}{times}, slow = e / {parts};",
            f"  const {index} {place};",
            *indented(decompose("x", self.found.columns, index)),
            *indented(decompose("y", self.found.rows, index)),
            f"  {self._inside()}{{",
            *indented(body, "    "),
            "  }",
            "}",
        ]

    def _inside(self) -> str:
        """The test for a place to be within the loops and the tile; nothing where all are."""
        width, height = size_of(self.found.columns), size_of(self.found.rows)
        tests = [f"x < {width}"] * (width % self.wide > 0)
        tests += [f"y < {height}"] * (height % self.tall > 0)
        tests += [f"e < {self._vectors}"] * (self._vectors % THREADS > 0)
        return f"if ({' && '.join(tests)}) " if tests else ""

    def _fetch(self) -> list[str]:
        """Operands to shared memory, along their own loop."""
        at = f"slow * {self._pitch} + fast"
        if self.vector > 1:
            return [
                f"ca::store_unaligned<L>({tile} + {at}, ca::load<L>(m_{buffer} + {c_place(index)}));"
                for (buffer, index), tile in self._names.items()
            ]
        return [
            f"{tile}[{at}] = m_{buffer}[{c_place(index)}];"
            for (buffer, index), tile in self._names.items()
        ]

    def _results(self) -> list[str]:
        """Results, of operands read from shared memory across their loop."""
        made: dict[str, str] = {}
        printer = memory_printer(self.region, local_reader(made), kept=self._at_hand)

        def store(s: Store, value: str) -> str:
            if self.vector > 1:
                return f"ca::store<L>(m_{s.buffer} + {c_place(s.index)}, {value});"
            return printer.store(s.buffer, s.index, value)

        return stage_lines(self.kernel, self.found.whole, printer, made, store)

    def _at_hand(self, i: Instruction) -> str | None:
        """What to print for a load that a tile has; None for others."""
        if i.buffer is None or i.index is None or (i.buffer, i.index) not in self._names:
            return None
        place = f"{self._names[i.buffer, i.index]} + fast * {self._pitch} + slow"
        if self.vector > 1:
            return f"ca::load_strided<L>({place}, {self._pitch})"
        return f"ca::broadcast<L>({place})"
