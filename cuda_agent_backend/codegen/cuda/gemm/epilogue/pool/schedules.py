"""Schedules of a GEMM that is pooled in its tiles, best guess first."""

from __future__ import annotations

from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.match import PoolMatch
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.writer import SKETCH as POOL
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.writer import pool_epilogue_writer
from cuda_agent_backend.codegen.cuda.gemm.schedules import ranked_schedules
from cuda_agent_backend.codegen.cuda.gemm.tiles import (
    Tiles,
)
from cuda_agent_backend.codegen.cuda.gemm.writer import GemmWriter
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.schedule import Parameter


def pool_schedules(
    pooling: PoolMatch, device: DeviceFacts, most: int
) -> list[dict[str, Parameter]]:
    """Up to ``most`` schedules for the GEMM and its pooling together; none where none fits."""

    def writer(tiles: Tiles) -> GemmWriter:
        return pool_epilogue_writer(pooling, tiles, device)

    return ranked_schedules(POOL, pooling.gemm, pooling.region, device, most, writer)
