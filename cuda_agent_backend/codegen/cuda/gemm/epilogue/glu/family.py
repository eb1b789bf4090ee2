"""The family of matrix products whose columns, or who with another, are combined in their tiles (GLU)."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import Joined, JoinFamily, Order, Parameters
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.dual_gemm import match_glu_or_dual_gemm
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.match import GluMatch
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.schedules import glu_schedules
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.writer import SKETCH, emit_glu
from cuda_agent_backend.codegen.cuda.gemm.family import gemm_headers
from cuda_agent_backend.codegen.cuda.gemm.tiles import Tiles
from cuda_agent_backend.codegen.cuda.gemm.writer import SKETCH as GEMM
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered, attempt
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter


class Glu(JoinFamily[Tiles, GluMatch]):
    name = SKETCH
    title = "Products whose parts are combined in their tiles"
    docs = (
        "One set for the product and what combines its parts together: the schedule has one kernel less. A tile has as "
        "many columns of each part as are whole in `tile_n`."
    )
    params = Tiles
    like = GEMM
    order = Order.AFTER_REDUCTION

    def match(
        self, region: LoweredRegion, kernels: tuple[Kernel, ...], number: int
    ) -> GluMatch | NotCovered:
        return attempt(lambda: match_glu_or_dual_gemm(region, kernels, number))

    def schedules(
        self, match: GluMatch, region: LoweredRegion, device: DeviceFacts, most: int
    ) -> list[Parameters]:
        return glu_schedules(match, device, most)

    def joined(
        self, match: GluMatch, region: LoweredRegion, given: Mapping[str, Parameter]
    ) -> Joined:
        return region, match.kernels

    def emit(
        self,
        match: GluMatch,
        region: LoweredRegion,
        given: Mapping[str, Parameter],
        name: str,
        device: DeviceFacts,
    ) -> Emitted:
        return emit_glu(match, given, name, device)

    def headers(self, given: Mapping[str, Parameter], halves: bool) -> tuple[str, ...]:
        return gemm_headers(halves)
