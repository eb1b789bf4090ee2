"""Windows over images that lie line by line, whose results are stored with their channels next to each other.

A depthwise convolution before one that wants channels last is such a kernel. Along the channels it would read one
element of each line of memory, along the image it would write one. So a block makes tiles of results as other kernels
of windows do (`stencil`), along the image, for some channels (``deep``) of the same places, leaves them in shared
memory, and stores the channels of a place together. Schedule parameters: ``vector`` by ``rows`` results of a thread.

In shared memory the results of a channel are a line of vectors. Which of eight neighbouring ones a vector is depends on
the channel as well, so that neither side's threads meet in one bank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch

from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.common.access import LanePrinter, local_reader
from cuda_agent_backend.codegen.cuda.common.parts import (
    BYTES,
    Emitted,
    SharedMemory,
    buffers_of,
    needs_wide,
    parameters_of,
)
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented
from cuda_agent_backend.codegen.cuda.pointwise.stencil import has_taps, tile_body, tile_rows
from cuda_agent_backend.codegen.cuda.pointwise.writer import map_dims, single_pass
from cuda_agent_backend.codegen.ir.device import WARP, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Store
from cuda_agent_backend.codegen.ir.schedule import Parameter
from cuda_agent_backend.codegen.ir.ssa import GATHER
from cuda_agent_backend.codegen.ir.value_types import stage_dtype
from sandbox.plan.plan import Launch

SKETCH = "crossed"
THREADS = 256
SPOTS = WARP
"""Tiles of a channel in a block, side by side."""
LEAST = 8
"""Channels, and elements of a line, below which threads side by side would have little to share."""
FARTHEST = 2
"""Elements from one place of a line to the next."""
WORD = 4
BANKED = 8
"""Vectors of four words that a warp reads at a time without two in one bank."""
MOST_DEEP = 256
MOST_SHARED_BYTES = 64 << 10
_TILES = ((4, 32), (2, 32), (4, 16), (2, 64), (1, 32))
"""Rows of a thread's results, channels of a block; best first."""


@dataclass(frozen=True)
class Crossed:
    """The one pass of a kernel with its loops: those around, and those of its channels, rows and places in a row."""

    whole: Pass
    others: tuple[Dim, ...]
    channels: Dim
    rows: Dim
    line: Dim
    store: Store

    @property
    def dims(self) -> tuple[Dim, ...]:
        return (*self.others, self.channels, self.rows, self.line)


def crossed_of(kernel: Kernel) -> Crossed | None:
    """None where the kernel has no windows, or reads along the loop that it stores along."""
    p = single_pass(kernel)
    dims = map_dims(kernel, p) if p is not None else ()
    if p is None or len(dims) < 3 or not has_taps(p):
        return None
    stores = [s for stage in p.stages for s in stage.stores]
    channels = dims[-1]
    if len(stores) != 1 or coefficient(stores[0].index, channels[0]) != 1:
        return None
    if any(i.op == GATHER for stage in p.stages for i in stage.body.walk()):
        return None
    loads = [i.index for stage in p.stages for i in stage.body.loads() if i.index is not None]
    lines = [d for d in dims[:-1] if _is_line(loads, d, channels)]
    if len(lines) != 1 or min(channels[1], lines[0][1]) < LEAST:
        return None
    rows = _nearest(loads, lines[0], [d for d in dims[:-1] if d is not lines[0]])
    if rows is None:
        return None
    others = tuple(d for d in dims[:-1] if d not in (lines[0], rows))
    return Crossed(p, others, channels, rows, lines[0], stores[0])


def _is_line(loads: Sequence[sympy.Expr], dim: Dim, channels: Dim) -> bool:
    """Whether what differs along ``dim`` lies near each other along it, and some of it not along the channels."""
    own = [index for index in loads if dim[0] in index.free_symbols]
    steps = [coefficient(index, dim[0]) or 0 for index in own]
    across = [coefficient(index, channels[0]) for index in own]
    near = all(0 < abs(step) <= FARTHEST for step in steps)
    return bool(own) and near and not {1, -1} & set(across) and set(across) != {0}


def _nearest(loads: Sequence[sympy.Expr], line: Dim, dims: Sequence[Dim]) -> Dim | None:
    """The loop with the shortest steps among what differs along ``line``."""
    own = [index for index in loads if line[0] in index.free_symbols]
    steps = {d: [abs(coefficient(index, d[0]) or 0) for index in own] for d in dims}
    known = [d for d in dims if all(steps[d])]
    return min(known, key=lambda d: steps[d], default=None)


def crossed_schedules(kernel: Kernel) -> list[dict[str, Parameter]]:
    """Best guess first; none where this sketch does not fit."""
    found = crossed_of(kernel)
    if found is None:
        return []
    possible = tile_rows(found.dims, found.whole)
    vector = next(v for v in (WORD, 2, 1) if found.line[1] % v == 0)
    result: list[dict[str, Parameter]] = []
    for rows, deep in _TILES:
        bytes_of_tile = _memory(found, (vector, rows, deep)).size
        if rows in possible and bytes_of_tile <= MOST_SHARED_BYTES:
            result.append({"sketch": SKETCH, "vector": vector, "rows": rows, "deep": deep})
    return result


def emit_crossed(
    kernel: Kernel, region: LoweredRegion, parameters: Mapping[str, Parameter], name: str
) -> Emitted:
    """Raises Unsupported where the schedule does not fit."""
    found = crossed_of(kernel)
    sizes = [parameters.get(key) for key in ("vector", "rows", "deep")]
    if found is None or len(parameters) != 4 or not all(type(n) is int and n > 0 for n in sizes):
        raise Unsupported(f"a schedule {dict(parameters)} that does not fit the windows")
    vector, rows, deep = (int(n) for n in sizes if n is not None)
    fits = vector in (1, 2, WORD) and found.line[1] % vector == 0
    fits = fits and rows in tile_rows(found.dims, found.whole)
    if not fits or deep > MOST_DEEP or deep % WORD:
        raise Unsupported(f"a schedule {dict(parameters)} that does not fit the windows")
    memory = _memory(found, (vector, rows, deep))
    if memory.size > MOST_SHARED_BYTES:
        raise Unsupported(f"{memory.size} bytes of shared memory")
    return _Writer(kernel, region, found, (vector, rows, deep)).emitted(name, memory)


def _memory(found: Crossed, tile: tuple[int, int, int]) -> SharedMemory:
    memory, kind = SharedMemory(), _kind(found)
    memory.take("made", kind, math.prod(tile) * SPOTS, BYTES[kind])
    return memory


def _kind(found: Crossed) -> str:
    (stage,) = (stage for stage in found.whole.stages if stage.stores)
    return COMPUTE_TYPES[stage_dtype(stage)]


@dataclass(frozen=True)
class _Writer:
    """``tile``: the vector and rows of a thread's results, and the channels of a block."""

    kernel: Kernel
    region: LoweredRegion
    found: Crossed
    tile: tuple[int, int, int]

    @property
    def _index(self) -> str:
        return "int64_t" if needs_wide(self.region, self.kernel) else "int"

    @property
    def _spots(self) -> tuple[int, int]:
        """Tiles below each other and side by side, of one channel."""
        vector, rows, _ = self.tile
        return ceildiv(self.found.rows[1], rows), self.found.line[1] // vector

    def emitted(self, name: str, memory: SharedMemory) -> Emitted:
        found, (_, _, deep) = self.found, self.tile
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
        head = f'extern "C" __global__ void __launch_bounds__({THREADS})'
        declared = ", ".join(parameters_of(self.region, reads, writes))
        text = "\n".join([head, f"{name}({declared}) {{", *indented(lines), "}"])
        blocks = across * down * math.prod(n for _, n in found.others)
        launch = Launch(name, (blocks, 1, 1), (THREADS, 1, 1), memory.size, (*reads, *writes))
        return Emitted((text,), (launch,))

    def _making(self, spots: int) -> list[str]:
        """Tiles of results to shared memory, those of a channel side by side first."""
        found, index = self.found, self._index
        vector, rows, deep = self.tile

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
        vector, rows, deep = self.tile
        turned = f"{channel} / {WORD} * {max(1, BANKED * WORD // deep)} % {BANKED}"
        return f"({channel} * {rows * SPOTS} + (({number}) ^ ({turned}))) * {vector}"

    def _storing(self, spots: int) -> list[str]:
        """Results to memory, those of a place side by side first."""
        found, index = self.found, self._index
        vector, rows, deep = self.tile
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
            f"  ca::vec<{_kind(found)}, L> value;",
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
