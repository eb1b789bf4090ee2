"""Copies of what is gathered, with the channels next to each other, and the pass that gathers from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy

from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.channel_gather.match import (
    ChannelGathers,
    Table,
    gather_stride,
    is_channel,
)
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.transpose.match import SKETCH as TRANSPOSE
from cuda_agent_backend.codegen.cuda.transpose.match import fits_vectors, transposition_of
from cuda_agent_backend.codegen.cuda.transpose.schedules import SECTOR, VECTOR
from cuda_agent_backend.codegen.cuda.transpose.writer import emit_transpose
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, RowStage
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Store
from cuda_agent_backend.codegen.ir.schedule import Parameter
from cuda_agent_backend.codegen.ir.ssa import GATHER, Body, Instruction, Value, place_symbol

MOST_DEEP = 64
"""Channels of a tile."""


def named_for(table: Table, kernel: str) -> Table:
    """Another kernel of the region may gather from the same."""
    own = replace(table.copy, name=f"{kernel}_{table.copy.name}")
    return replace(table, copy=own)


def copy_kernel(table: Table, region: LoweredRegion, name: str) -> Emitted:
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
    crossing = transposition_of(kernel, True)
    joined, crossing = int(crossing is not None), crossing or transposition_of(kernel)
    side = ceildiv(min(dims[-1][1], MOST_DEEP), SECTOR) * SECTOR
    square: dict[str, Parameter] = {"sketch": TRANSPOSE, "wide": side, "tall": 64, "joined": joined}
    if crossing is not None and fits_vectors(crossing, region, VECTOR):
        square["vector"] = VECTOR
    return emit_transpose(kernel, region, square, name)


def gathering_from_copies(p: Pass, found: ChannelGathers) -> Pass:
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
        if not is_channel(made[operand], made, channels):
            index += place_symbol(len(operands)) * table.moved[gather_stride(i, number)]
            operands.append(operand)
    return replace(i, operands=tuple(operands), buffer=table.copy.name, index=index)
