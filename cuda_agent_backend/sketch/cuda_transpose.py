"""Pointwise kernels whose results run along one loop in memory and some of whose operands along another.

A block makes a square of the two loops. Such operands are copied to shared memory first, with threads along their own
loop, and read from there across it: memory sees whole lines on both sides. Schedule parameter `wide`: the square's
side, in elements.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import sympy

from cuda_agent_backend.sketch.cuda_access import LanePrinter, local_reader
from cuda_agent_backend.sketch.cuda_frame import decompose, indented
from cuda_agent_backend.sketch.cuda_layout import ceildiv
from cuda_agent_backend.sketch.cuda_map import map_dims, single_pass
from cuda_agent_backend.sketch.cuda_parts import (
    BYTES,
    Emitted,
    SharedMemory,
    buffers_of,
    local_types,
    needs_wide,
    parameters_of,
)
from cuda_agent_backend.sketch.lower import LoweredRegion
from cuda_agent_backend.sketch.nest import Dim, Kernel, coefficient
from cuda_agent_backend.sketch.passes import Pass
from cuda_agent_backend.sketch.printer import STORAGE_TYPES, c_place
from cuda_agent_backend.sketch.schedule import Parameter
from cuda_agent_backend.sketch.ssa import Instruction, Unsupported
from sandbox.plan import Launch

SKETCH = "transpose"
THREADS = 256
SIDES = (32, 64)
LEAST = 8
"""Elements of either loop below which most of a square's lines would be empty."""
MOST_SHARED_BYTES = 48 << 10

Key = tuple[str, sympy.Expr]
"""A load: buffer and index."""


@dataclass(frozen=True)
class Crossing:
    """A kernel's one pass, and its loops: that which `loads` run along, that which stores run along, and the others."""

    whole: Pass
    others: tuple[Dim, ...]
    rows: Dim
    columns: Dim
    loads: tuple[Key, ...]


def crossing_of(kernel: Kernel) -> Crossing | None:
    """None where nothing is read across, or the kernel is not pointwise."""
    p = single_pass(kernel)
    dims = map_dims(kernel, p) if p is not None else ()
    if p is None or len(dims) < 2:
        return None
    columns = dims[-1]
    across = [
        key
        for key in dict.fromkeys(_loads(p))
        if coefficient(key[1], columns[0]) not in (0, 1, -1, None)
    ]
    along = Counter(dim for dim in dims[:-1] for key in across if _runs_along(key, dim))
    if not along:
        return None
    rows = along.most_common(1)[0][0]
    if min(rows[1], columns[1]) < LEAST:
        return None
    loads = tuple(key for key in across if _runs_along(key, rows))
    return Crossing(p, tuple(d for d in dims[:-1] if d is not rows), rows, columns, loads)


def _loads(p: Pass) -> list[Key]:
    """Loads that every point does, masked ones left out."""
    found = (i for stage in p.stages for i in stage.body.instructions if i.op == "load")
    return [(i.buffer, i.index) for i in found if i.buffer is not None and i.index is not None]


def _runs_along(key: Key, dim: Dim) -> bool:
    return coefficient(key[1], dim[0]) in (1, -1)


def transpose_schedules(kernel: Kernel, region: LoweredRegion) -> list[dict[str, Parameter]]:
    """Best guess first: a side of 128 bytes, a line of the cache. None where nothing is read across."""
    crossing = crossing_of(kernel)
    if crossing is None:
        return []
    item = min(region.buffers[buffer].dtype.itemsize for buffer, _ in crossing.loads)
    sides = SIDES if item >= 4 else SIDES[::-1]
    return [{"sketch": SKETCH, "wide": side} for side in sides]


def emit_transpose(
    kernel: Kernel, region: LoweredRegion, parameters: Mapping[str, Parameter], name: str
) -> Emitted:
    """Raises Unsupported where the schedule does not fit."""
    crossing, side = crossing_of(kernel), parameters.get("wide")
    if crossing is None or side not in SIDES or set(parameters) != {"sketch", "wide"}:
        raise Unsupported(f"a transposing schedule {dict(parameters)} that does not fit the kernel")
    assert isinstance(side, int)
    memory, tiles = _tiles(crossing, region, side)
    index = "int64_t" if needs_wide(region, kernel) else "int"
    (x, width), (y, height) = crossing.columns, crossing.rows
    across, down = ceildiv(width, side), ceildiv(height, side)
    there = f"{x} < {width} && {y} < {height}"
    body = [
        "constexpr int L = 1;",
        "extern __shared__ __align__(16) unsigned char shared[];",
        *memory.lines,
        f"const int fast = threadIdx.x % {side}, slow = threadIdx.x / {side};",
        f"const {index} block = blockIdx.x;",
        f"const {index} x0 = block % {across} * {side}, y0 = block / {across} % {down} * {side};",
        f"const {index} other = block / {across * down};",
        *decompose("other", crossing.others, index),
        *_each(side, index, (f"x0 + slow + {THREADS // side} * u", "y0 + fast"), (x, y)),
        f"  if ({there}) {{",
        *indented(_fetch(tiles, side), "    "),
        "  }",
        "}",
        "__syncthreads();",
        *_each(side, index, ("x0 + fast", f"y0 + slow + {THREADS // side} * u"), (x, y)),
        f"  if ({there}) {{",
        *indented(_body(kernel, crossing.whole, region, tiles, side), "    "),
        "  }",
        "}",
    ]
    reads, writes = buffers_of(kernel)
    head = f'extern "C" __global__ void __launch_bounds__({THREADS})'
    declared = ", ".join(parameters_of(region, reads, writes))
    text = "\n".join([head, f"{name}({declared}) {{", *indented(body), "}"])
    blocks = across * down * math.prod(size for _, size in crossing.others)
    launch = Launch(name, (blocks, 1, 1), (THREADS, 1, 1), memory.size, (*reads, *writes))
    return Emitted((text,), (launch,))


def _tiles(
    crossing: Crossing, region: LoweredRegion, side: int
) -> tuple[SharedMemory, dict[Key, str]]:
    memory, names = SharedMemory(), {}
    for number, key in enumerate(crossing.loads):
        names[key] = f"tile{number}"
        ctype = STORAGE_TYPES[region.buffers[key[0]].dtype]
        memory.take(names[key], ctype, side * (side + 1), BYTES[ctype])
    if memory.size > MOST_SHARED_BYTES:
        raise Unsupported(f"{len(names)} squares of {side} elements in shared memory")
    return memory, names


def _each(
    side: int, index: str, places: tuple[str, str], names: tuple[sympy.Symbol, sympy.Symbol]
) -> list[str]:
    """A thread's elements of the square."""
    declared = ", ".join(f"{name} = {place}" for name, place in zip(names, places, strict=True))
    return [
        "#pragma unroll",
        f"for (int u = 0; u < {side * side // THREADS}; ++u) {{",
        f"  const {index} {declared};",
    ]


def _fetch(tiles: Mapping[Key, str], side: int) -> list[str]:
    """The padding spreads a column's elements over the banks."""
    at = f"(slow + {THREADS // side} * u) * {side + 1} + fast"
    return [
        f"{name}[{at}] = m_{buffer}[{c_place(index)}];" for (buffer, index), name in tiles.items()
    ]


def _body(
    kernel: Kernel, p: Pass, region: LoweredRegion, tiles: Mapping[Key, str], side: int
) -> list[str]:
    at = f"fast * {side + 1} + slow + {THREADS // side} * u"

    def at_hand(i: Instruction) -> str | None:
        if i.buffer is None or i.index is None or (i.buffer, i.index) not in tiles:
            return None
        return f"ca::broadcast<L>({tiles[i.buffer, i.index]} + {at})"

    types, made = local_types(kernel), dict[str, str]()
    printer = LanePrinter(
        None,
        lambda b: f"m_{b}",
        local_reader(made),
        lambda b: region.buffers[b].dtype,
        "",
        kept=at_hand,
    )
    out: list[str] = []
    for number, stage in enumerate(p.stages):
        prefix = f"s{number}v"
        out += printer.lines(stage.body, prefix)
        value = f"{prefix}{stage.body.results[0].number}"
        out += [printer.store(s.buffer, s.index, value) for s in stage.stores]
        for s in stage.local_stores:
            made[s.buffer] = f"ca::to<{types[s.buffer]}>({value})"
    return out
