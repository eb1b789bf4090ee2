"""The family of matrix products that are pooled in their tiles."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import Joined, JoinFamily, Order, Parameters
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.match import PoolMatch, match_pool
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.schedules import pool_schedules
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.writer import SKETCH, emit_pool_epilogue
from cuda_agent_backend.codegen.cuda.gemm.family import gemm_headers
from cuda_agent_backend.codegen.cuda.gemm.tiles import Tiles
from cuda_agent_backend.codegen.cuda.gemm.writer import SKETCH as GEMM
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered, attempt
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter


class Pool(JoinFamily[Tiles, PoolMatch]):
    name = SKETCH
    title = "Products that are pooled in their tiles"
    docs = (
        "A `split` of 1 and a `last_wave` of 0, for the product and its pooling together: the schedule has one kernel "
        "less. A tile has as many windows as are whole in `tile_m` rows."
    )
    params = Tiles
    like = GEMM
    order = Order.AFTER_REDUCTION

    def match(
        self, region: LoweredRegion, kernels: tuple[Kernel, ...], number: int
    ) -> PoolMatch | NotCovered:
        return attempt(lambda: match_pool(region, kernels, number))

    def schedules(
        self, match: PoolMatch, region: LoweredRegion, device: DeviceFacts, most: int
    ) -> list[Parameters]:
        return pool_schedules(match, device, most)

    def joined(
        self, match: PoolMatch, region: LoweredRegion, given: Mapping[str, Parameter]
    ) -> Joined:
        return region, match.kernels

    def emit(
        self,
        match: PoolMatch,
        region: LoweredRegion,
        given: Mapping[str, Parameter],
        name: str,
        device: DeviceFacts,
    ) -> Emitted:
        return emit_pool_epilogue(match, given, name, device)

    def headers(self, given: Mapping[str, Parameter], halves: bool) -> tuple[str, ...]:
        return gemm_headers(halves)
