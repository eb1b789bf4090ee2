"""Which schedules of a pointwise kernel are worth trying, best guess first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.common.sizes import vectors
from cuda_agent_backend.codegen.cuda.family import Parameters
from cuda_agent_backend.codegen.cuda.pointwise.stencil import tile_loop, tile_rows
from cuda_agent_backend.codegen.cuda.pointwise.writer import map_dims
from cuda_agent_backend.codegen.cuda.rows.facts import item_bytes
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.ssa import GATHER

MANY_VECTORS = 1 << 18
"""Vectors of a pointwise kernel from which a thread may make several."""
SMALL_BLOCK = 256
"""Vectors of a pointwise kernel for each multiprocessor, below which threads make less than one each."""
_MAPS = (
    # share of the widest vector, then the parameters of MapLayout without the vector; best first
    (1, 1, 256, 0, 0, 0), (1, 2, 256, 0, 0, 0), (1, 1, 256, 0, 1, 0), (1, 1, 256, 0, 0, 1), (2, 4, 256, 0, 0, 0),
    (2, 8, 256, 0, 0, 0), (1, 4, 256, 0, 0, 0), (1, 2, 256, 0, 1, 1), (2, 2, 256, 0, 0, 0), (1, 1, 1024, 0, 0, 0),
    (1, 2, 512, 4, 0, 0), (4, 8, 256, 0, 0, 0),
)  # fmt: skip
_SMALL_MAPS = ((4, 1, 128, 0, 0, 0), (2, 1, 128, 0, 0, 0), (1, 1, 64, 0, 0, 0))
"""Where whole vectors would leave multiprocessors without work: there each thread's latency is the kernel's time."""
_GATHERING = ((1, 1, 1024, 0, 0, 0), (1, 1, 512, 0, 0, 0))
"""Larger blocks find more of what they gather in the L1 cache: 1.19 against 1.04 over Inductor within rows."""


def map_schedules(
    p: Pass, kernel: Kernel, region: LoweredRegion, device: DeviceFacts
) -> list[Parameters]:
    """Of the one pass of a kernel, best guess first."""
    dims = map_dims(kernel, p)
    widest = vectors(item_bytes(kernel, region), dims[-1][1] if dims else 1)[0]
    names = ("unroll", "threads", "blocks", "stream", "once")
    result = _tile_schedules(p, dims, widest)
    gathers = any(i.op == GATHER for s in kernel.stages for i in s.body.walk())
    count = math.prod(n for _, n in dims) // widest
    first = _GATHERING if gathers else ()
    small = _SMALL_MAPS if count < device.sm_count * SMALL_BLOCK else ()
    for share, *rest in (_MAPS[0], *first, *small, *_MAPS):
        found: Parameters = {
            "sketch": "map",
            "vector": max(1, widest // share),
            **dict(zip(names, rest, strict=True)),
        }
        if found not in result:
            result.append(found)
    return result


def _tile_schedules(p: Pass, dims: Sequence[Dim], widest: int) -> list[Parameters]:
    """Tiles of several rows where results share what they read; smaller ones first where there would be few threads."""
    if tile_loop(dims, p) is None:
        return []
    possible = tile_rows(dims, p)
    count = math.prod(n for _, n in dims) // widest
    order = (4, 2, 1, 8) if count >= MANY_VECTORS else (1, 2, 4)
    base: Parameters = {"sketch": "map", "unroll": 1, "blocks": 0, "stream": 0, "once": 0}
    tiles = [(widest, rows, 128) for rows in order if rows in possible]
    if widest > 1:
        tiles += [(widest // 2, rows, 128) for rows in (4, 2) if rows in possible]
    return [{**base, "vector": v, "rows": r, "threads": threads} for v, r, threads in tiles]
