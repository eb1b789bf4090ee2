"""Schedules of a GEMM whose parts are combined in its tiles, best guess first."""

from __future__ import annotations

from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.match import GluMatch
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.writer import SKETCH as GLU
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.writer import glu_writer
from cuda_agent_backend.codegen.cuda.gemm.schedules import ranked_schedules
from cuda_agent_backend.codegen.cuda.gemm.tiles import (
    Tiles,
)
from cuda_agent_backend.codegen.cuda.gemm.writer import GemmWriter
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.schedule import Parameter


def glu_schedules(gating: GluMatch, device: DeviceFacts, most: int) -> list[dict[str, Parameter]]:
    """Up to ``most`` schedules for the GEMM and what combines its parts; none where none fits."""

    def writer(tiles: Tiles) -> GemmWriter:
        return glu_writer(gating, tiles, device)

    return ranked_schedules(GLU, gating.gemm, gating.region, device, most, writer)
