"""The estimated time of a GEMM under a schedule, to rank schedules by. Only ratios of estimates mean something."""

from __future__ import annotations

import math

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.gemm.tiles import (
    Tiles,
)
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv

FEW_RESIDENT = 2
"""Blocks with few rows or columns that a multiprocessor runs without either getting slower."""
ENOUGH_THREADS = 256
"""On a multiprocessor, to hide what one of them waits for."""
JOIN_COST, HALF_JOIN_COST = 0.02, 0.1
"""What a second kernel costs, as a share of the time of a wave of blocks for each share of a tile; of 16-bit operands
a wave takes less time."""
LAUNCH, HALF_LAUNCH = 0.8e6, 4.4e6
"""What launching it costs, 3 us, in products that a multiprocessor adds up meanwhile with tiles of a share of 1."""


def blocks_of(c: GemmForm, t: Tiles) -> int:
    """Tiles of all batches."""
    return c.batches * ceildiv(c.m, t.tile_m) * ceildiv(c.n, t.tile_n)


def seconds_of(c: GemmForm, t: Tiles, share: float, device: DeviceFacts) -> float:
    """Relative: the work of the busiest multiprocessor, whose blocks share its rate."""
    blocks = blocks_of(c, t) * t.split / device.sm_count
    terms = ceildiv(ceildiv(c.k, t.split), t.step) * t.step
    threads = min(t.resident, max(1.0, blocks)) * t.threads
    busy = share * min(1.0, threads / ENOUGH_THREADS) ** 0.5
    waves = waves_of(blocks)
    if t.warps_k > 1:
        waves = max(1.0, math.ceil(blocks / FEW_RESIDENT))
    join = (HALF_JOIN_COST if c.is_half else JOIN_COST) * t.split * (t.split > 1)
    return float(waves * t.tile_m * t.tile_n * terms / busy * (1 + join))


def waves_of(blocks: float) -> float:
    """Of so many blocks for each multiprocessor."""
    # one that finishes early makes room for the next, so that less than a whole wave may be lost
    return max(1.0, (blocks + math.ceil(blocks)) / 2)
