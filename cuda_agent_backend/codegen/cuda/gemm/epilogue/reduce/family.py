"""The family of matrix products that are reduced in their tiles."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import Joined, JoinFamily, Order, Parameters
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.directions import shape_of
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.match import ReduceMatch, match_reduction
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.schedules import reduce_schedules
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.writer import SKETCH, emit_reduce_epilogue
from cuda_agent_backend.codegen.cuda.gemm.family import gemm_headers
from cuda_agent_backend.codegen.cuda.gemm.tiles import Tiles, read_tiles
from cuda_agent_backend.codegen.cuda.gemm.writer import SKETCH as GEMM
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered, attempt
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter


class Reduce(JoinFamily[Tiles, ReduceMatch]):
    name = SKETCH
    title = "Products that are reduced in their tiles"
    docs = (
        "A `split` of 1 and a `last_wave` of 0. A line of the tile is what is reduced to one; some neighbouring "
        "threads share a line, and as many as fit go at once, until all lines are done."
    )
    params = Tiles
    like = GEMM
    order = Order.REDUCTION

    def match(
        self, region: LoweredRegion, kernels: tuple[Kernel, ...], number: int
    ) -> ReduceMatch | NotCovered:
        return attempt(lambda: match_reduction(region, kernels, number))

    def schedules(
        self, match: ReduceMatch, region: LoweredRegion, device: DeviceFacts, most: int
    ) -> list[Parameters]:
        return reduce_schedules(match, device, most)

    def joined(
        self, match: ReduceMatch, region: LoweredRegion, given: Mapping[str, Parameter]
    ) -> Joined:
        return match.in_tiles(shape_of(read_tiles(given)))

    def emit(
        self,
        match: ReduceMatch,
        region: LoweredRegion,
        given: Mapping[str, Parameter],
        name: str,
        device: DeviceFacts,
    ) -> Emitted:
        return emit_reduce_epilogue(match, given, name, device)

    def headers(self, given: Mapping[str, Parameter], halves: bool) -> tuple[str, ...]:
        return gemm_headers(halves)
