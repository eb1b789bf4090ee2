"""Pointwise kernels: every thread makes ``unroll`` vectors of ``vector`` elements.

Schedule parameters: ``vector``; ``unroll`` (vectors of a thread, a block apart); ``threads`` of a block; ``blocks``
for each multiprocessor (0: as many as there is work, each makes one tile; else they stay and loop); ``stream`` (1:
stores past the caches).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cuda_agent_backend.sketch.cuda_access import POSITION, LanePrinter, flat_body, flatten
from cuda_agent_backend.sketch.cuda_layout import DeviceFacts, ceildiv
from cuda_agent_backend.sketch.cuda_parts import (
    Emitted,
    buffers_of,
    local_types,
    needs_wide,
    parameters_of,
)
from cuda_agent_backend.sketch.lower import LoweredRegion
from cuda_agent_backend.sketch.nest import Dim, Kernel
from cuda_agent_backend.sketch.passes import Pass, passes
from cuda_agent_backend.sketch.schedule import Parameter
from cuda_agent_backend.sketch.ssa import Instruction, Unsupported
from sandbox.plan import Launch


def single_pass(kernel: Kernel) -> Pass | None:
    """The one pass of a kernel of maps; None if it is no such kernel."""
    if not kernel.is_map:
        return None
    grouped = passes(kernel)
    return grouped[0] if len(grouped) == 1 else None


def map_dims(kernel: Kernel, p: Pass) -> tuple[Dim, ...]:
    return (*kernel.outer, *p.inner)


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
    numbers = {k: v for k, v in parameters.items() if k != "sketch"}
    unknown = set(numbers) - {"vector", "unroll", "threads", "blocks", "stream"}
    if unknown or not all(isinstance(v, int) for v in numbers.values()):
        raise Unsupported(f"schedule parameters {sorted(numbers)} of a pointwise kernel")
    vector, unroll, threads, blocks, stream = (
        int(numbers.get(k, d))
        for k, d in (("vector", 1), ("unroll", 1), ("threads", 256), ("blocks", 0), ("stream", 0))
    )
    dims = map_dims(kernel, p)
    points = math.prod(n for _, n in dims)
    if not (1 <= threads <= 1024 and 1 <= unroll <= 16 and vector >= 1) or (
        dims and dims[-1][1] % vector
    ):
        raise Unsupported("pointwise schedule that does not fit the sizes")
    vectors = points // vector
    tiles = ceildiv(vectors, threads * unroll)
    index = "int64_t" if needs_wide(region, kernel) else "int"
    body = _body(kernel, region, p, dims, vector, bool(stream), index)
    whole = vectors % (threads * unroll) == 0
    guard = "" if whole else f"if (at < {vectors}) "
    loop = (
        f"for (int tile = blockIdx.x; tile < {tiles}; tile += gridDim.x) {{"
        if blocks
        else "{ const int tile = blockIdx.x;"
    )
    reads, writes = buffers_of(kernel)
    text = [
        f'extern "C" __global__ void __launch_bounds__({threads}) {name}({", ".join(parameters_of(region, reads, writes))}) {{',
        f"  constexpr int L = {vector};",
        f"  {loop}",
        "#pragma unroll",
        f"    for (int u = 0; u < {unroll}; ++u) {{",
        f"      const {index} at = ({index}(tile) * {unroll} + u) * {threads} + threadIdx.x;",
        f"      {guard}{{",
        f"        const {index} j = at * L; (void)j;",
        *["        " + line for line in body],
        "      }",
        "    }",
        "  }",
        "}",
    ]
    grid = min(tiles, blocks * device.sm_count) if blocks else tiles
    return Emitted(
        ("\n".join(text),), (Launch(name, (grid, 1, 1), (threads, 1, 1), 0, (*reads, *writes)),)
    )


def _body(
    kernel: Kernel,
    region: LoweredRegion,
    p: Pass,
    dims: tuple[Dim, ...],
    vector: int,
    stream: bool,
    index: str,
) -> list[str]:
    flat = flatten(dims, index)
    types, made = local_types(kernel), {}

    def local(i: Instruction) -> str:
        if i.buffer not in made:
            raise Unsupported("pointwise kernel with an array read out of order")
        return made[i.buffer]

    printer = LanePrinter(
        POSITION, lambda b: f"m_{b}", local, lambda b: region.buffers[b].dtype, "", vector
    )
    out = list(flat.statements)
    for number, stage in enumerate(p.stages):
        prefix = f"s{number}v"
        out += printer.lines(flat_body(stage.body, flat), prefix)
        value = f"{prefix}{stage.body.results[0].number}"
        out += [
            printer.store(s.buffer, flat.of(s.index), value, stream=stream) for s in stage.stores
        ]
        for s in stage.local_stores:
            made[s.buffer] = f"ca::to<{types[s.buffer]}>({value})"
    return out
