"""The family of attention pooling: tokens weighed by a softmax of their scores, and added up."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.cuda.attention.pooling.match import Weighing, weighing_of
from cuda_agent_backend.codegen.cuda.attention.pooling.writer import (
    SKETCH,
    Blocks,
    emit_weighing,
    weighing_schedules,
)
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import Joined, JoinFamily, Order, Parameters
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered, attempt
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter


class AttentionPooling(JoinFamily[Blocks, Weighing]):
    name = SKETCH
    title = "Tokens weighed by a softmax of their scores"
    docs = (
        "One set for three kernels together, so that the schedule has two less. Some neighbouring threads hold a "
        "token. Sums are scaled to the highest score so far whenever that rises. A second kernel joins what the "
        "blocks came to."
    )
    params = Blocks
    order = Order.BEFORE_REDUCTION

    def match(
        self, region: LoweredRegion, kernels: tuple[Kernel, ...], number: int
    ) -> Weighing | NotCovered:
        return attempt(lambda: weighing_of(region, kernels, number))

    def schedules(
        self, match: Weighing, region: LoweredRegion, device: DeviceFacts, most: int
    ) -> list[Parameters]:
        return weighing_schedules(match, region, device, most)

    def joined(
        self, match: Weighing, region: LoweredRegion, given: Mapping[str, Parameter]
    ) -> Joined:
        return region, match.kernels

    def emit(
        self,
        match: Weighing,
        region: LoweredRegion,
        given: Mapping[str, Parameter],
        name: str,
        device: DeviceFacts,
    ) -> Emitted:
        return emit_weighing(match, region, given, name)
