"""Pointwise kernels whose results run along one loop in memory and some of whose operands along another.

A block makes a tile of the two loops. Such operands are copied to shared memory first, with threads along their own
loop, and read from there across it: memory sees whole lines on both sides. Schedule parameters: the tile is `wide`
elements along the results' loop, and `tall` along the operands' (as many where it is left out); `joined`, if 1, takes
the loops that go on in memory where these end together with them, so that tiles lie across their ends; `vector`, how
many neighbours a thread loads and stores at a time where nothing but such operands is read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sympy

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
from cuda_agent_backend.codegen.cuda.pointwise.writer import map_dims, single_pass, stage_lines
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.printer import STORAGE_TYPES, c_place
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Store
from cuda_agent_backend.codegen.ir.schedule import Parameter
from cuda_agent_backend.codegen.ir.ssa import GATHER, PLACE, PLACE_EXPR, Instruction
from sandbox.plan.plan import Launch

SKETCH = "transpose"
THREADS = 256
SIDES = (32, 64)
LEAST, MOST = 8, 256
"""Elements of either loop below which most of a tile's lines would be empty; elements of a side at most."""
MOST_ELEMENTS = 8192
LONG = 1024
"""Elements of a loop at whose end tiles leave little empty."""
MANY_TILES = 256
VECTOR, WORD_BYTES = 4, 16
NO_VECTORS = frozenset((GATHER, PLACE, PLACE_EXPR, "index_expr"))
"""What is not the same function of each neighbour's values."""
SECTOR = 8
"""Elements of four bytes that memory moves at once."""
MOST_SHARED_BYTES = 48 << 10

Key = tuple[str, sympy.Expr]
"""A load: buffer and index."""


@dataclass(frozen=True)
class Crossing:
    """A kernel's one pass, and its loops, outermost first: those which `loads` run along, those which stores run along,
    and the others."""

    whole: Pass
    others: tuple[Dim, ...]
    rows: tuple[Dim, ...]
    columns: tuple[Dim, ...]
    loads: tuple[Key, ...]


def crossing_of(kernel: Kernel, joined: bool = False) -> Crossing | None:
    """None where nothing is read across, the kernel is not pointwise, or nothing can be `joined`."""
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
    loads = tuple(key for key in across if _runs_along(key, rows))
    others = tuple(d for d in dims[:-1] if d is not rows)
    found = Crossing(p, others, (rows,), (columns,), loads)
    if joined:
        found = _joined(found)
    fine = min(_size(found.rows), _size(found.columns)) >= LEAST
    return found if fine and (len(found.others) < len(others) or not joined) else None


def _joined(crossing: Crossing) -> Crossing:
    """With loops that go on where its rows or columns end, the shorter ones first."""
    loads = [index for _, index in crossing.loads]
    stores = [s.index for stage in crossing.whole.stages for s in stage.stores]
    sides = sorted(
        ((crossing.rows, loads), (crossing.columns, stores)), key=lambda side: _size(side[0])
    )
    for own, places in sides:
        ahead = _ahead(own, crossing.others, places) if _size(own) < LONG else None
        if ahead is None:
            continue
        others = tuple(dim for dim in crossing.others if dim is not ahead)
        if own is crossing.rows:
            return _joined(replace(crossing, rows=(ahead, *own), others=others))
        return _joined(replace(crossing, columns=(ahead, *own), others=others))
    return crossing


def _ahead(
    own: tuple[Dim, ...], others: tuple[Dim, ...], places: Sequence[sympy.Expr]
) -> Dim | None:
    """The loop that steps over as much as `own` takes, in all `places`."""
    for dim in others:
        steps = ((coefficient(index, dim[0]), coefficient(index, own[-1][0])) for index in places)
        if all(inner and step == inner * _size(own) for step, inner in steps):
            return dim
    return None


def _size(dims: Sequence[Dim]) -> int:
    return math.prod(size for _, size in dims)


def _loads(p: Pass) -> list[Key]:
    """Loads that every point does, masked ones left out."""
    found = (i for stage in p.stages for i in stage.body.instructions if i.op == "load")
    return [(i.buffer, i.index) for i in found if i.buffer is not None and i.index is not None]


def _runs_along(key: Key, dim: Dim) -> bool:
    return coefficient(key[1], dim[0]) in (1, -1)


def transpose_schedules(kernel: Kernel, region: LoweredRegion) -> list[dict[str, Parameter]]:
    """Best guess first: a side of 128 bytes, a line of the cache; then across the ends of loops, then tiles that the
    loops fill. None where nothing is read across."""
    crossing, further = crossing_of(kernel), crossing_of(kernel, True)
    found = _tile_schedules(crossing, region)
    joined = [{**it, "joined": 1} for it in _tile_schedules(further, region)]
    return [
        *_in_vectors(crossing, found, region),
        *_in_vectors(further, joined, region),
        *found[: len(SIDES)],
        *joined[: len(SIDES)],
        *found[len(SIDES) :],
    ]


def _in_vectors(
    crossing: Crossing | None, found: Sequence[dict[str, Parameter]], region: LoweredRegion
) -> list[dict[str, Parameter]]:
    """The squares of ``found`` and a taller tile, by vectors, where there can be some."""
    if crossing is None or not fits_vectors(crossing, region, VECTOR):
        return []
    squares = list(found[: len(SIDES)])
    if len(crossing.loads) == 1:  # longer lines of what is read, as far as shared memory goes
        squares.append({**squares[-1], "wide": max(SIDES), "tall": 2 * max(SIDES)})
    return [{**it, "vector": VECTOR} for it in squares]


def fits_vectors(crossing: Crossing, region: LoweredRegion, vector: int) -> bool:
    """Whether vectors of neighbours along either side lie whole in memory, and nothing else is read."""
    stages = crossing.whole.stages
    if any(i.op in NO_VECTORS or i.body is not None for s in stages for i in s.body.instructions):
        return False
    if set(_loads(crossing.whole)) != set(crossing.loads):
        return False
    stores = [(s.buffer, s.index) for stage in stages for s in stage.stores]
    sides = [(crossing.rows, key) for key in crossing.loads]
    sides += [(crossing.columns, key) for key in stores]
    return all(
        region.buffers[buffer].dtype.itemsize * vector <= WORD_BYTES
        and _size(own) % vector == 0
        and _is_whole(index, own, vector)
        for own, (buffer, index) in sides
    )


def _is_whole(index: sympy.Expr, own: tuple[Dim, ...], vector: int) -> bool:
    """Whether ``index`` runs upwards along the joined loops and starts at multiples of ``vector``."""
    rest, step = index, 1
    for symbol, size in reversed(own):
        if coefficient(index, symbol) != step:
            return False
        rest, step = rest - step * symbol, step * size
    factors = sympy.expand(rest).as_coefficients_dict().values()
    return all(c.is_Integer and int(c) % vector == 0 for c in factors)


def _tile_schedules(crossing: Crossing | None, region: LoweredRegion) -> list[dict[str, Parameter]]:
    if crossing is None:
        return []
    item = min(region.buffers[buffer].dtype.itemsize for buffer, _ in crossing.loads)
    sides = SIDES if item >= 4 else SIDES[::-1]
    found: list[dict[str, Parameter]] = [{"sketch": SKETCH, "wide": side} for side in sides]
    for wide, tall in dict.fromkeys(_filling(crossing, max(sides))):
        if wide != tall or wide not in SIDES:
            found.append({"sketch": SKETCH, "wide": wide, "tall": tall})
    return found


def _filling(crossing: Crossing, side: int) -> list[tuple[int, int]]:
    """Tiles of which few elements are beyond the loops' ends: of even parts, and of both loops, where that is small and
    there are many."""
    width, height = _size(crossing.columns), _size(crossing.rows)
    parts = _part(width, side), _part(height, side)
    small = max(width, height) <= MOST and width * height <= MOST_ELEMENTS
    many = _size(crossing.others) >= MANY_TILES
    return [parts, (width, height)] if small and many else [parts]


def _part(size: int, side: int) -> int:
    """The side of a tile when as few as are needed share a loop evenly, but for whole sectors."""
    count = ceildiv(size, side)
    return size if count == 1 else ceildiv(ceildiv(size, count), SECTOR) * SECTOR


def emit_transpose(
    kernel: Kernel, region: LoweredRegion, parameters: Mapping[str, Parameter], name: str
) -> Emitted:
    """Raises Unsupported where the schedule does not fit."""
    joined = parameters.get("joined", 0)
    crossing = crossing_of(kernel, joined == 1)
    wide, tall = parameters.get("wide"), parameters.get("tall", parameters.get("wide"))
    fits = all(type(n) is int and LEAST <= n <= MOST for n in (wide, tall))
    known = set(parameters) <= {"sketch", "wide", "tall", "joined", "vector"} and joined in (0, 1)
    vector = parameters.get("vector", 1)
    if crossing is None or not fits or not known or type(vector) is not int or vector < 1:
        raise Unsupported(f"a transposing schedule {dict(parameters)} that does not fit the kernel")
    assert isinstance(wide, int) and isinstance(tall, int)
    parted = wide % vector or tall % vector
    if vector > 1 and (parted or not fits_vectors(crossing, region, vector)):
        raise Unsupported(f"vectors of {vector} that do not lie whole along both sides of a tile")
    memory, tiles = _tiles(crossing, region, wide, tall)
    index = "int64_t" if needs_wide(region, kernel) else "int"
    width, height = _size(crossing.columns), _size(crossing.rows)
    across, down = ceildiv(width, wide), ceildiv(height, tall)
    inside = [
        *([f"x < {width}"] if width % wide else []),
        *([f"y < {height}"] if height % tall else []),
    ]
    inside += [f"e < {wide * tall // vector}"] if wide * tall // vector % THREADS else []
    there = f"if ({' && '.join(inside)}) " if inside else ""
    places = [
        *decompose("x", crossing.columns, index),
        *decompose("y", crossing.rows, index),
    ]
    body = [
        f"constexpr int L = {vector};",
        "extern __shared__ __align__(16) unsigned char shared[];",
        *memory.lines,
        f"const {index} block = blockIdx.x;",
        f"const {index} x0 = block % {across} * {wide}, y0 = block / {across} % {down} * {tall};",
        f"const {index} other = block / {across * down};",
        *decompose("other", crossing.others, index),
        *_each(wide * tall // vector, _place(tall, vector)),
        f"  const {index} x = x0 + slow, y = y0 + fast;",
        *indented(places),
        f"  {there}{{",
        *indented(_fetch(tiles, tall, vector), "    "),
        "  }",
        "}",
        "__syncthreads();",
        *_each(wide * tall // vector, _place(wide, vector)),
        f"  const {index} x = x0 + fast, y = y0 + slow;",
        *indented(places),
        f"  {there}{{",
        *indented(_body(kernel, crossing.whole, region, tiles, (tall, vector)), "    "),
        "  }",
        "}",
    ]
    reads, writes = buffers_of(kernel)
    head = f'extern "C" __global__ void __launch_bounds__({THREADS})'
    declared = ", ".join(parameters_of(region, reads, writes))
    text = "\n".join([head, f"{name}({declared}) {{", *indented(body), "}"])
    blocks = across * down * _size(crossing.others)
    launch = Launch(name, (blocks, 1, 1), (THREADS, 1, 1), memory.size, (*reads, *writes))
    return Emitted((text,), (launch,))


def _tiles(
    crossing: Crossing, region: LoweredRegion, wide: int, tall: int
) -> tuple[SharedMemory, dict[Key, str]]:
    memory, names = SharedMemory(), {}
    for number, key in enumerate(crossing.loads):
        names[key] = f"tile{number}"
        ctype = STORAGE_TYPES[region.buffers[key[0]].dtype]
        memory.take(names[key], ctype, wide * _pitch(tall), BYTES[ctype])
    if memory.size > MOST_SHARED_BYTES:
        raise Unsupported(f"{len(names)} tiles of {wide} by {tall} elements in shared memory")
    return memory, names


def _pitch(tall: int) -> int:
    """An odd one spreads a column's elements over the banks."""
    return tall | 1


def _place(side: int, vector: int) -> str:
    """Where a thread's vector is in a tile with sides so long."""
    times = f" * {vector}" if vector > 1 else ""
    parts = side // vector
    return f"const int fast = e % {parts}{times}, slow = e / {parts};"


def _each(elements: int, place: str) -> list[str]:
    """A thread's elements of the tile, and where they are in it."""
    return [
        "#pragma unroll",
        f"for (int u = 0; u < {ceildiv(elements, THREADS)}; ++u) {{",
        f"  const int e = threadIdx.x + {THREADS} * u;",
        f"  {place}",
    ]


def _fetch(tiles: Mapping[Key, str], tall: int, vector: int) -> list[str]:
    at = f"slow * {_pitch(tall)} + fast"
    if vector > 1:
        return [
            f"ca::store_unaligned<L>({name} + {at}, ca::load<L>(m_{buffer} + {c_place(index)}));"
            for (buffer, index), name in tiles.items()
        ]
    return [
        f"{name}[{at}] = m_{buffer}[{c_place(index)}];" for (buffer, index), name in tiles.items()
    ]


def _body(
    kernel: Kernel,
    p: Pass,
    region: LoweredRegion,
    tiles: Mapping[Key, str],
    shape: tuple[int, int],
) -> list[str]:
    """shape: how tall a tile is, and the elements of a vector."""
    tall, vector = shape
    at = f"fast * {_pitch(tall)} + slow"

    def at_hand(i: Instruction) -> str | None:
        if i.buffer is None or i.index is None or (i.buffer, i.index) not in tiles:
            return None
        place = f"{tiles[i.buffer, i.index]} + {at}"
        return (
            f"ca::load_strided<L>({place}, {_pitch(tall)})"
            if vector > 1
            else f"ca::broadcast<L>({place})"
        )

    made: dict[str, str] = {}
    printer = LanePrinter(
        None,
        lambda b: f"m_{b}",
        local_reader(made),
        lambda b: region.buffers[b].dtype,
        "",
        kept=at_hand,
    )

    def store(s: Store, value: str) -> str:
        if vector > 1:
            return f"ca::store<L>(m_{s.buffer} + {c_place(s.index)}, {value});"
        return printer.store(s.buffer, s.index, value)

    return stage_lines(kernel, p, printer, made, store)
