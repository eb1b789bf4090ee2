"""Pointwise kernels that gather, at each place, along a loop whose elements lie apart in memory, such as channels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import sympy

from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.pointwise.writer import map_dims, single_pass
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.region import Buffer, LoweredRegion, Store
from cuda_agent_backend.codegen.ir.ssa import (
    GATHER,
    PLACE,
    Instruction,
    Value,
    place_symbol,
)

SKETCH = "channels"
LEAST_CHANNELS, LEAST_POINTS = 8, 32


@dataclass(frozen=True)
class Table:
    """What is gathered (``source``), and its copy, whose innermost dimension are the channels.

    moved: the copy's strides by those of the source that indices are written with.
    """

    source: Buffer
    copy: Buffer
    moved: Mapping[int, int]


@dataclass(frozen=True)
class ChannelGathers:
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


def channel_gathers_of(kernel: Kernel, region: LoweredRegion) -> ChannelGathers | None:
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
        found = ChannelGathers(
            dims[:number], channels, points, stores[0], _tables(p, channels, region)
        )
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
        if is_channel(place, made, channels):
            own = stride
    whole = sum(place_symbol(n) * gather_stride(i, n) for n in range(len(i.operands)))
    if own is None or own == 1 or places != dims or sympy.expand(i.index - whole) != 0:
        return None
    order = [*sorted(dims.keys() - {own}, reverse=True), own]
    shape = tuple(dims[stride] for stride in order)
    steps = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
    copy = Buffer(f"{source.name}_turned", "temporary", source.dtype, shape, tuple(steps))
    return Table(source, copy, dict(zip(order, steps, strict=True)))


def gather_stride(i: Instruction, number: int) -> int:
    assert i.index is not None
    return coefficient(i.index, place_symbol(number)) or 0


def is_channel(place: Instruction, made: Mapping[Value, Instruction], channels: Dim) -> bool:
    """Whether a place is the number of the channel, whatever integer it is in."""
    value = place.operands[0]
    source = made.get(value) if isinstance(value, Value) else None
    while source is not None and source.op == "to_dtype" and isinstance(source.operands[0], Value):
        source = made.get(source.operands[0])
    return source is not None and source.op == "index_expr" and source.index == channels[0]
