"""Which schedules of a kernel are worth trying on a device, best guess first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from cuda_agent_backend.codegen.analysis.gemm import Contraction, numbers_of
from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.analysis.quantized_operand import fits
from cuda_agent_backend.codegen.cuda.channel_gather.writer import channel_schedules
from cuda_agent_backend.codegen.cuda.channels_last.writer import crossed_schedules
from cuda_agent_backend.codegen.cuda.conv.halo.schedules import halo_schedules
from cuda_agent_backend.codegen.cuda.conv.transposed.schedules import phased_schedules
from cuda_agent_backend.codegen.cuda.gemm.filter_taps import with_taps_apart
from cuda_agent_backend.codegen.cuda.gemm.schedules import contract_schedules
from cuda_agent_backend.codegen.cuda.gemm.short_k.writer import short_schedules
from cuda_agent_backend.codegen.cuda.gemm.skinny.writer import direct_schedules
from cuda_agent_backend.codegen.cuda.gemm.small.writer import small_schedules
from cuda_agent_backend.codegen.cuda.pointwise.stencil import tile_loop, tile_rows
from cuda_agent_backend.codegen.cuda.pointwise.writer import map_dims, single_pass
from cuda_agent_backend.codegen.cuda.rows.estimate import (
    item_bytes,
)
from cuda_agent_backend.codegen.cuda.rows.schedules import Parameters, _vectors, row_schedules
from cuda_agent_backend.codegen.cuda.transpose.writer import transpose_schedules
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.nest import Dim, Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.ssa import GATHER, Unsupported

MOST = 14
FEW = 8
"""Rows or columns below which a sum of products may be done as one reduction for each result."""
MANY_VECTORS = 1 << 18
"""Vectors of a pointwise kernel from which a thread may make several."""
SMALL_BLOCK = 256
"""Vectors of a pointwise kernel for each multiprocessor, below which threads make less than one each."""
EXACT_BOXES = 1
"""Of boxes in float32's accuracy, where eager may use TF32."""


def kernel_schedules(
    kernel: Kernel, region: LoweredRegion, device: DeviceFacts, most: int = MOST
) -> list[Parameters]:
    """One to ``most`` schedules; raises Unsupported where no sketch fits."""
    if single_pass(kernel) is not None:
        across = [
            *crossed_schedules(kernel),
            *channel_schedules(kernel, region),
            *transpose_schedules(kernel, region),
        ]
        return [*across, *_map_schedules(kernel, region, device)][:most]
    split, contraction = with_taps_apart(kernel)
    if contraction is not None and not _reads_codes(contraction, region):
        contraction = None
    least = 0 if contraction is None else min(contraction.m, contraction.n)
    tiled: list[Parameters] = []
    direct: list[Parameters] = []
    if contraction is not None and least > 1:
        whole = numbers_of(kernel)
        small = small_schedules(whole) if whole is not None else []
        if whole is not None:
            direct = [*direct_schedules(whole, device), *short_schedules(kernel, whole, device)]
        plain = contract_schedules(split, contraction, region, device, most)
        boxed = _boxed_schedules(kernel, whole, region, device) if whole is not None else []
        tiled = [*small, *_by_turns(plain, boxed)]
    if tiled and least >= FEW:
        return [*direct, *tiled][:most]
    found = row_schedules(kernel, region, device, most)
    if not found and not tiled:
        raise Unsupported("no schedule fits the rows of this kernel")
    return [*direct, *_by_turns(found, tiled)][:most]


def _boxed_schedules(
    kernel: Kernel, whole: Contraction, region: LoweredRegion, device: DeviceFacts
) -> list[Parameters]:
    """Of convolutions whose blocks have boxes. Where TF32 is allowed most have numbers of two parts, which err less."""

    def of(products: int) -> list[Parameters]:
        found = phased_schedules(kernel, whole, region, device, products)
        return found or halo_schedules(kernel, whole, region, device, products)

    if not device.tf32:
        return of(6)
    exact, near = of(6)[:EXACT_BOXES], of(3)
    return [*near[:1], *exact, *near[1:]]


def _reads_codes(contraction: Contraction, region: LoweredRegion) -> bool:
    """Whether factors that are not numbers as they lie in memory are made of integers as small as codes are."""
    factors = (contraction.left, contraction.right)
    return all(f.zero is None or fits(region.buffers[f.buffer].dtype, f.zero) for f in factors)


def _by_turns(left: list[Parameters], right: list[Parameters]) -> list[Parameters]:
    """Of two ways to do the same, of which the device has to choose, the best of each first."""
    pairs = itertools.zip_longest(left, right)
    return [one for pair in pairs for one in pair if one is not None]


# --- pointwise ----------------------------------------------------------------------------------------------------

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


def _map_schedules(kernel: Kernel, region: LoweredRegion, device: DeviceFacts) -> list[Parameters]:
    p = single_pass(kernel)
    dims = map_dims(kernel, p) if p is not None else ()
    widest = _vectors(item_bytes(kernel, region), dims[-1][1] if dims else 1)[0]
    names = ("unroll", "threads", "blocks", "stream", "once")
    result = _tile_schedules(p, dims, widest) if p is not None else []
    gathers = any(i.op == GATHER for s in kernel.stages for i in s.body.walk())
    vectors = math.prod(n for _, n in dims) // widest
    first = _GATHERING if gathers else ()
    small = _SMALL_MAPS if vectors < device.sm_count * SMALL_BLOCK else ()
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
    vectors = math.prod(n for _, n in dims) // widest
    order = (4, 2, 1, 8) if vectors >= MANY_VECTORS else (1, 2, 4)
    base: Parameters = {"sketch": "map", "unroll": 1, "blocks": 0, "stream": 0, "once": 0}
    tiles = [(widest, rows, 128) for rows in order if rows in possible]
    if widest > 1:
        tiles += [(widest // 2, rows, 128) for rows in (4, 2) if rows in possible]
    return [{**base, "vector": v, "rows": r, "threads": threads} for v, r, threads in tiles]


# --- rows -----------------------------------------------------------------------------------------------------------
