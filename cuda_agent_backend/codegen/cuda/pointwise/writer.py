"""Pointwise kernels: every thread makes ``unroll`` vectors of ``vector`` elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cuda_agent_backend.codegen.analysis.passes import Pass, passes
from cuda_agent_backend.codegen.cuda.common.flat_loops import POSITION, flat_body, flatten
from cuda_agent_backend.codegen.cuda.common.lane_printer import (
    LanePrinter,
    local_reader,
    memory_printer,
)
from cuda_agent_backend.codegen.cuda.common.parts import (
    Emitted,
    buffers_of,
    local_types,
    needs_wide,
    parameters_of,
)
from cuda_agent_backend.codegen.cuda.common.text import indented, kernel_lines
from cuda_agent_backend.codegen.cuda.pointwise.stencil import tile_body, tile_loop
from cuda_agent_backend.codegen.cuda.rows.program import read_once
from cuda_agent_backend.codegen.ir.device import MAX_THREADS, DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.parameters import integer, require, switch
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Store
from cuda_agent_backend.codegen.ir.schedule import Parameter
from cuda_agent_backend.codegen.ir.ssa import Body
from sandbox.plan.plan import Launch

MAX_UNROLL = 16


@dataclass(frozen=True)
class MapLayout:
    """Schedule parameters of a pointwise kernel."""

    vector: int = integer(
        "neighbouring elements that a thread loads and stores at a time", default=1
    )
    unroll: int = integer("vectors of a thread, a block apart", most=MAX_UNROLL, default=1)
    threads: int = integer("threads of a block", most=MAX_THREADS, default=256)
    blocks: int = integer(
        "blocks for each multiprocessor that stay and loop; 0: as many as there is work",
        least=0,
        default=0,
    )
    stream: int = switch("1 for stores that leave the L2 cache first", default=0, flips=True)
    once: int = switch("1 for loads that leave the L2 cache first", default=0, flips=True)
    rows: int = integer(
        "rows of a vector that a thread makes together, so that windows which overlap are read once; 0: vectors on "
        "their own",
        least=0,
        default=0,
    )


def single_pass(kernel: Kernel) -> Pass | None:
    """The one pass of a kernel of maps; None if it is no such kernel."""
    if not kernel.is_map:
        return None
    grouped = passes(kernel)
    return grouped[0] if len(grouped) == 1 else None


def map_dims(kernel: Kernel, p: Pass) -> tuple[Dim, ...]:
    """All loops of the kernel, outermost first."""
    return (*kernel.outer, *p.inner)


def _read(parameters: Mapping[str, Parameter], dims: Sequence[Dim], loop: int | None) -> MapLayout:
    layout = require(MapLayout, parameters)
    line = dims[-1][1] if dims else 1
    most_rows = dims[loop][1] if loop is not None else 0
    if layout.rows > most_rows or line % layout.vector:
        raise Unsupported("a pointwise schedule that does not fit the sizes")
    return layout


def emit_map(
    kernel: Kernel,
    region: LoweredRegion,
    parameters: Mapping[str, Parameter],
    name: str,
    device: DeviceFacts,
) -> Emitted:
    """Raises Unsupported where the schedule does not fit."""
    p = single_pass(kernel)
    if p is None:
        raise Unsupported("a pointwise schedule for a kernel of several passes")
    dims = map_dims(kernel, p)
    loop = tile_loop(dims, p) if parameters.get("rows") else None
    layout = _read(parameters, dims, loop)
    vectors = math.prod(n for _, n in dims) // layout.vector
    if layout.rows and loop is not None:
        vectors = vectors // dims[loop][1] * ceildiv(dims[loop][1], layout.rows)
    tiles = ceildiv(vectors, layout.threads * layout.unroll)
    lines = _tile_lines(kernel, region, p, layout, (tiles, vectors))
    reads, writes = buffers_of(kernel)
    text = kernel_lines(name, layout.threads, parameters_of(region, reads, writes), lines)
    grid = min(tiles, layout.blocks * device.sm_count) if layout.blocks else tiles
    launch = Launch(name, (grid, 1, 1), (layout.threads, 1, 1), 0, (*reads, *writes))
    return Emitted(("\n".join(text),), (launch,))


def _tile_lines(
    kernel: Kernel, region: LoweredRegion, p: Pass, layout: MapLayout, counts: tuple[int, int]
) -> list[str]:
    """What a thread does with its vectors of each of its block's tiles. counts: tiles, and vectors."""
    tiles, vectors = counts
    index = "int64_t" if needs_wide(region, kernel) else "int"
    if layout.rows:
        shape = layout.rows, layout.vector
        body = tile_body(kernel, region, p, map_dims(kernel, p), shape, index)
    else:
        body = [f"const {index} j = at * L;", *_body(kernel, region, p, layout, index)]
    if vectors % (layout.threads * layout.unroll):
        body = [f"if (at < {vectors}) {{", *indented(body), "}"]
    start = f"const {index} at = ({index}(tile) * {layout.unroll} + u) * {layout.threads} + threadIdx.x;"
    around = f"for (int tile = blockIdx.x; tile < {tiles}; tile += gridDim.x) {{"
    return [
        f"  constexpr int L = {layout.vector};",
        f"  {around}" if layout.blocks else "  { const int tile = blockIdx.x;",
        "#pragma unroll",
        f"    for (int u = 0; u < {layout.unroll}; ++u) {{",
        *indented([start, *body], "      "),
        "    }",
        "  }",
    ]


def _body(
    kernel: Kernel, region: LoweredRegion, p: Pass, layout: MapLayout, index: str
) -> list[str]:
    dims = map_dims(kernel, p)
    flat = flatten(dims, index)
    made: dict[str, str] = {}
    elements = math.prod(n for _, n in dims)
    once = read_once([(p, flat)], {}, elements, region) if layout.once else frozenset()
    printer = memory_printer(
        region, local_reader(made), POSITION, layout.vector, once=once, named={}
    )
    return [
        *flat.statements,
        *stage_lines(
            kernel,
            p,
            printer,
            made,
            lambda s, value: printer.store(
                s.buffer, flat.of(s.index), value, stream=bool(layout.stream)
            ),
            lambda body: flat_body(body, flat),
        ),
    ]


def stage_lines(
    kernel: Kernel,
    p: Pass,
    printer: LanePrinter,
    made: dict[str, str],
    store: Callable[[Store, str], str],
    change: Callable[[Body], Body] = lambda body: body,
) -> list[str]:
    """All stages of a pointwise kernel, one after another.

    made: is told what arrays that stages pass on are in. store: what becomes of a value that goes to memory.
    """
    types, out = local_types(kernel), list[str]()
    for number, stage in enumerate(p.stages):
        prefix = f"s{number}v"
        out += printer.lines(change(stage.body), prefix)
        value = f"{prefix}{stage.body.results[0].number}"
        out += [store(s, value) for s in stage.stores]
        for s in stage.local_stores:
            made[s.buffer] = f"ca::to<{types[s.buffer]}>({value})"
    return out
