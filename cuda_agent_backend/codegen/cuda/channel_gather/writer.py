"""Pointwise kernels that gather, at each place, along a loop whose elements lie apart in memory: channels of an image.

As they stand every element comes from a line of its own. Here what is gathered is copied first so that channels are
neighbours, and a block makes a tile of points and channels: threads along channels gather whole lines, and results go
through shared memory to where points are neighbours. Schedule parameters: a thread's ``vector`` of channels, and the
tile's points (``wide``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
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
    temporary,
)
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented
from cuda_agent_backend.codegen.cuda.pointwise.writer import map_dims, single_pass, stage_lines
from cuda_agent_backend.codegen.cuda.transpose.writer import (
    SECTOR,
    VECTOR,
    crossing_of,
    emit_transpose,
    fits_vectors,
)
from cuda_agent_backend.codegen.cuda.transpose.writer import SKETCH as TRANSPOSE
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, RowStage
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES
from cuda_agent_backend.codegen.ir.region import Buffer, LoweredRegion, Store
from cuda_agent_backend.codegen.ir.schedule import Parameter
from cuda_agent_backend.codegen.ir.ssa import GATHER, PLACE, Body, Instruction, Value, place_symbol
from cuda_agent_backend.codegen.ir.value_types import stage_dtype
from sandbox.plan.plan import Launch

SKETCH = "channels"
THREADS = 256
WIDE = (64, 32)
LEAST_CHANNELS, LEAST_POINTS = 8, 32
MOST_DEEP = 64
"""Channels of a tile."""
WORD_BYTES = 16


@dataclass(frozen=True)
class Table:
    """What is gathered (``source``), and its copy, whose innermost dimension are the channels.

    ``moved``: the copy's strides by those of the source that indices are written with.
    """

    source: Buffer
    copy: Buffer
    moved: Mapping[int, int]


@dataclass(frozen=True)
class Gathered:
    """A kernel's loops, outermost first: those around, its channels, its points; and what it gathers."""

    others: tuple[Dim, ...]
    channels: Dim
    points: tuple[Dim, ...]
    store: Store
    tables: tuple[Table, ...]

    @property
    def count(self) -> int:
        """Points of one turn of the other loops."""
        return math.prod(size for _, size in self.points)


def gathered_of(kernel: Kernel, region: LoweredRegion) -> Gathered | None:
    """None where the kernel is not pointwise, or nothing is gathered across the channels of results."""
    p = single_pass(kernel)
    dims = map_dims(kernel, p) if p is not None else ()
    stores = [s for stage in p.stages for s in stage.stores] if p is not None else []
    if (
        p is None
        or len(dims) < 2
        or len(stores) != 1
        or coefficient(stores[0].index, dims[-1][0]) != 1
    ):
        return None
    if any(i.body is not None for stage in p.stages for i in stage.body.instructions):
        return None
    for number in reversed(range(len(dims) - 1)):
        channels, points = dims[number], dims[number + 1 :]
        found = Gathered(dims[:number], channels, points, stores[0], _tables(p, channels, region))
        large = channels[1] >= LEAST_CHANNELS and found.count >= LEAST_POINTS
        if large and found.tables and _fit(p, channels):
            return found
    return None


def _fit(p: Pass, channels: Dim) -> bool:
    """Whether all that is loaded is the same for all channels, or neighbours."""
    loads = (i for stage in p.stages for i in stage.body.loads() if i.op == "load")
    return all(i.index is not None and coefficient(i.index, channels[0]) in (0, 1) for i in loads)


def _tables(p: Pass, channels: Dim, region: LoweredRegion) -> tuple[Table, ...]:
    """Of all gathers, or none."""
    found: dict[str, Table] = {}
    for stage in p.stages:
        made = {i.result: i for i in stage.body.instructions}
        for i in stage.body.instructions:
            if i.op != GATHER:
                continue
            table = _table(i, made, channels, region)
            if table is None:
                return ()
            found[table.source.name] = table
    return tuple(found.values())


def _table(
    i: Instruction, made: Mapping[Value, Instruction], channels: Dim, region: LoweredRegion
) -> Table | None:
    """None where the places are not those of the buffer's dimensions, or its channels are neighbours already."""
    assert i.buffer is not None and i.index is not None
    source = region.buffers[i.buffer]
    dims = {
        stride: size for size, stride in zip(source.shape, source.stride, strict=True) if size > 1
    }
    own = None
    places: dict[int, int] = {}
    for number, operand in enumerate(i.operands):
        place = made.get(operand) if isinstance(operand, Value) else None
        stride = coefficient(i.index, place_symbol(number))
        if place is None or place.op != PLACE or not stride or stride in places:
            return None
        places[stride] = int(str(place.operands[1]))
        if _is_channel(place, made, channels):
            own = stride
    whole = sum(place_symbol(n) * _stride(i, n) for n in range(len(i.operands)))
    if own is None or own == 1 or places != dims or sympy.expand(i.index - whole) != 0:
        return None
    order = [*sorted(dims.keys() - {own}, reverse=True), own]
    shape = tuple(dims[stride] for stride in order)
    steps = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
    copy = Buffer(f"{source.name}_turned", "temporary", source.dtype, shape, tuple(steps))
    return Table(source, copy, dict(zip(order, steps, strict=True)))


def _stride(i: Instruction, number: int) -> int:
    assert i.index is not None
    return coefficient(i.index, place_symbol(number)) or 0


def _is_channel(place: Instruction, made: Mapping[Value, Instruction], channels: Dim) -> bool:
    """Whether a place is the number of the channel, whatever integer it is in."""
    value = place.operands[0]
    source = made.get(value) if isinstance(value, Value) else None
    while source is not None and source.op == "to_dtype" and isinstance(source.operands[0], Value):
        source = made.get(source.operands[0])
    return source is not None and source.op == "index_expr" and source.index == channels[0]


def channel_schedules(kernel: Kernel, region: LoweredRegion) -> list[dict[str, Parameter]]:
    """Best guess first; none where nothing is gathered so, or less of it than the copy takes."""
    found = gathered_of(kernel, region)
    if found is None:
        return []
    turns = math.prod(size for _, size in found.others)
    taken = turns * found.count * found.channels[1]
    if taken < max(table.source.extent for table in found.tables):
        return []
    item = max(table.source.dtype.itemsize for table in found.tables)
    fits = [v for v in (4, 2, 1) if found.channels[1] % v == 0 and v * item <= WORD_BYTES]
    return [{"sketch": SKETCH, "vector": v, "wide": w} for v in fits[:2] for w in WIDE]


def emit_channels(
    kernel: Kernel, region: LoweredRegion, parameters: Mapping[str, Parameter], name: str
) -> Emitted:
    """Raises Unsupported where the schedule does not fit."""
    found = gathered_of(kernel, region)
    vector, wide = parameters.get("vector"), parameters.get("wide")
    fits = set(parameters) <= {"sketch", "vector", "wide"} and found is not None
    fits = fits and type(vector) is int and vector in (1, 2, 4)
    fits = fits and type(wide) is int and 8 <= wide <= 256
    if found is None or not fits or found.channels[1] % vector:  # type: ignore[operator]
        raise Unsupported(f"a schedule {dict(parameters)} that does not fit what is gathered")
    assert isinstance(vector, int) and isinstance(wide, int)
    found = replace(found, tables=tuple(_named(table, name) for table in found.tables))
    copies = {table.copy.name: table.copy for table in found.tables}
    region = replace(region, buffers={**region.buffers, **copies})
    made = [_copying(table, region, f"{name}_copy{n}") for n, table in enumerate(found.tables)]
    p = single_pass(kernel)
    assert p is not None
    turned = _turned(p, found)
    around = replace(kernel, stages=tuple(turned.stages))
    text, launch = _gathering(around, turned, found, region, (vector, wide), name)
    return Emitted(
        (*itertools.chain.from_iterable(one.functions for one in made), text),
        (*itertools.chain.from_iterable(one.launches for one in made), launch),
        tuple(temporary(b.name, b.dtype, b.extent) for b in copies.values()),
    )


def _named(table: Table, kernel: str) -> Table:
    """Another kernel of the region may gather from the same."""
    own = replace(table.copy, name=f"{kernel}_{table.copy.name}")
    return replace(table, copy=own)


def _copying(table: Table, region: LoweredRegion, name: str) -> Emitted:
    """The kernel that copies: a square of what lies along memory before and after at a time."""
    strides = sorted(table.moved, key=lambda stride: -table.moved[stride])
    dims = [
        (sympy.Symbol(f"c{n}", integer=True, nonnegative=True), size)
        for n, size in enumerate(table.copy.shape)
    ]
    read = sum(symbol * stride for (symbol, _), stride in zip(dims, strides, strict=True))
    written = sum(s * step for (s, _), step in zip(dims, table.copy.stride, strict=True))
    load = Instruction(Value(0), "load", buffer=table.source.name, index=sympy.sympify(read))
    store = Store(table.copy.name, sympy.sympify(written))
    stage = RowStage(
        table.copy.name, "map", "", table.source.dtype, (dims[-1],),
        Body([load], (Value(0),)), (store,), (),
    )  # fmt: skip
    kernel = Kernel(tuple(dims[:-1]), (stage,), {})
    crossing = crossing_of(kernel, True)
    joined, crossing = int(crossing is not None), crossing or crossing_of(kernel)
    side = ceildiv(min(dims[-1][1], MOST_DEEP), SECTOR) * SECTOR
    square: dict[str, Parameter] = {"sketch": TRANSPOSE, "wide": side, "tall": 64, "joined": joined}
    if crossing is not None and fits_vectors(crossing, region, VECTOR):
        square["vector"] = VECTOR
    return emit_transpose(kernel, region, square, name)


def _turned(p: Pass, found: Gathered) -> Pass:
    """The pass that gathers from the copies, by the channel's own number."""
    tables = {table.source.name: table for table in found.tables}

    def turned(old: Body) -> Body:
        made = {i.result: i for i in old.instructions}
        read = (_from_copy(i, made, tables, found.channels) for i in old.instructions)
        return Body(list(read), old.results)

    return replace(p, stages=tuple(replace(s, body=turned(s.body)) for s in p.stages))


def _from_copy(
    i: Instruction, made: Mapping[Value, Instruction], tables: Mapping[str, Table], channels: Dim
) -> Instruction:
    if i.op != GATHER or i.buffer is None:
        return i
    table = tables[i.buffer]
    index: sympy.Expr = channels[0]
    operands: list[Value] = []
    for number, operand in enumerate(i.operands):
        assert isinstance(operand, Value)
        if not _is_channel(made[operand], made, channels):
            index += place_symbol(len(operands)) * table.moved[_stride(i, number)]
            operands.append(operand)
    return replace(i, operands=tuple(operands), buffer=table.copy.name, index=index)


def _gathering(
    kernel: Kernel,
    p: Pass,
    found: Gathered,
    region: LoweredRegion,
    tile: tuple[int, int],
    name: str,
) -> tuple[str, Launch]:
    vector, wide = tile
    index = "int64_t" if needs_wide(region, kernel) else "int"
    channel, size = found.channels
    deep = min(size, MOST_DEEP)
    across, down = ceildiv(found.count, wide), ceildiv(size, deep)
    (stage,) = (stage for stage in p.stages if stage.stores)
    kind, memory = COMPUTE_TYPES[stage_dtype(stage)], SharedMemory()
    memory.take("tile", kind, deep * (wide + 1), BYTES[kind])
    ends = [*([f"point < {found.count}"] if found.count % wide else [])]
    ends += [f"{channel} < {size}"] if size % deep else []
    there = f"if ({' && '.join(ends)}) " if ends else ""
    body = [
        "extern __shared__ __align__(16) unsigned char shared[];",
        *memory.lines,
        f"const {index} block = blockIdx.x;",
        f"const {index} point0 = block % {across} * {wide}, first = block / {across} % {down} * {deep};",
        f"const {index} other = block / {across * down};",
        *decompose("other", found.others, index),
        *_each(wide * (deep // vector), f"slow = e / {deep // vector}, fast = e % {deep // vector} * {vector}"),
        f"  const {index} point = point0 + slow, {channel} = first + fast;",
        *indented(decompose("point", found.points, index)),
        f"  {there}{{",
        f"    constexpr int L = {vector};",
        *indented(_made(kernel, p, region, found, (vector, wide)), "    "),
        "  }",
        "}",
        "__syncthreads();",
        *_each(wide * deep, f"slow = e / {wide}, fast = e % {wide}"),
        f"  const {index} point = point0 + fast, {channel} = first + slow;",
        *indented(decompose("point", found.points, index)),
        "  constexpr int L = 1;",
        f"  {there}{_stored(region, found.store, f'ca::broadcast<L>(tile + slow * {wide + 1} + fast)')}",
        "}",
    ]  # fmt: skip
    reads, writes = buffers_of(kernel)
    head = f'extern "C" __global__ void __launch_bounds__({THREADS})'
    declared = ", ".join(parameters_of(region, reads, writes))
    text = "\n".join([head, f"{name}({declared}) {{", *indented(body), "}"])
    blocks = across * down * math.prod(n for _, n in found.others)
    return text, Launch(name, (blocks, 1, 1), (THREADS, 1, 1), memory.size, (*reads, *writes))


def _each(elements: int, place: str) -> Iterator[str]:
    """A thread's elements of the tile, and where they are in it."""
    yield "#pragma unroll"
    yield f"for (int u = 0; u < {ceildiv(elements, THREADS)}; ++u) {{"
    yield f"  const int e = threadIdx.x + {THREADS} * u, {place};"
    if elements % THREADS:
        yield f"  if (e >= {elements}) break;"


def _made(
    kernel: Kernel, p: Pass, region: LoweredRegion, found: Gathered, tile: tuple[int, int]
) -> list[str]:
    """A vector of channels at one point, left in the tile."""
    vector, wide = tile
    made: dict[str, str] = {}
    printer = LanePrinter(
        found.channels[0],
        lambda b: f"m_{b}",
        local_reader(made),
        lambda b: region.buffers[b].dtype,
        "",
        vector,
    )

    def kept(store: Store, value: str) -> str:
        dtype = COMPUTE_TYPES[region.buffers[store.buffer].dtype]
        to = f"tile[(fast + i) * {wide + 1} + slow] = ca::to<{dtype}>({value}).v[i];"
        return f"for (int i = 0; i < L; ++i) {to}"

    return stage_lines(kernel, p, printer, made, kept)


def _stored(region: LoweredRegion, store: Store, value: str) -> str:
    printer = LanePrinter(
        None, lambda b: f"m_{b}", local_reader({}), lambda b: region.buffers[b].dtype, ""
    )
    return printer.store(store.buffer, store.index, value)
