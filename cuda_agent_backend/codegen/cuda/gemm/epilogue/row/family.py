"""The family of matrix products whose rows are reduced and mapped in their tiles."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import Joined, JoinFamily, Order, Parameters
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.match import RowMatch, match_rows
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.schedules import row_schedules
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.writer import SKETCH, emit_row_epilogue
from cuda_agent_backend.codegen.cuda.gemm.family import gemm_headers
from cuda_agent_backend.codegen.cuda.gemm.tiles import Tiles
from cuda_agent_backend.codegen.cuda.gemm.writer import SKETCH as GEMM
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered, attempt
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter


class RowEpilogue(JoinFamily[Tiles, RowMatch]):
    name = SKETCH
    title = "Products with whole rows done in their tiles"
    docs = (
        "A `split` of 1 and a `last_wave` of 0, for the product and what goes over its rows together: the schedule has "
        "one kernel less. `tile_n` is at least the product's columns, or a multiple of a row that is a part of them. "
        "Some neighbouring threads share a row, and as many rows as fit go at once."
    )
    params = Tiles
    like = GEMM
    order = Order.BEFORE_REDUCTION

    def match(
        self, region: LoweredRegion, kernels: tuple[Kernel, ...], number: int
    ) -> RowMatch | NotCovered:
        return attempt(lambda: match_rows(region, kernels, number))

    def schedules(
        self, match: RowMatch, region: LoweredRegion, device: DeviceFacts, most: int
    ) -> list[Parameters]:
        return row_schedules(match, device, most)

    def joined(
        self, match: RowMatch, region: LoweredRegion, given: Mapping[str, Parameter]
    ) -> Joined:
        return region, match.kernels

    def emit(
        self,
        match: RowMatch,
        region: LoweredRegion,
        given: Mapping[str, Parameter],
        name: str,
        device: DeviceFacts,
    ) -> Emitted:
        return emit_row_epilogue(match, given, name, device)

    def headers(self, given: Mapping[str, Parameter], halves: bool) -> tuple[str, ...]:
        return gemm_headers(halves)
