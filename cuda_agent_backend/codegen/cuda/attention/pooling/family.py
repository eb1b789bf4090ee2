"""The family of attention pooling: tokens weighed by a softmax of their scores, and added up."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.cuda.attention.pooling.match import (
    PoolingMatch,
    attention_pooling_of,
)
from cuda_agent_backend.codegen.cuda.attention.pooling.schedules import (
    SKETCH,
    PoolingBlocks,
    attention_pooling_schedules,
)
from cuda_agent_backend.codegen.cuda.attention.pooling.writer import emit_attention_pooling
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import Joined, JoinFamily, Order, Parameters
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered, attempt
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter


class AttentionPooling(JoinFamily[PoolingBlocks, PoolingMatch]):
    name = SKETCH
    title = "Tokens weighed by a softmax of their scores"
    docs = (
        "One set for three kernels together, so that the schedule has two less. Some neighbouring threads hold a "
        "token. Sums are scaled to the highest score so far whenever that rises. A second kernel joins what the "
        "blocks came to."
    )
    params = PoolingBlocks
    order = Order.BEFORE_REDUCTION

    def match(
        self, region: LoweredRegion, kernels: tuple[Kernel, ...], number: int
    ) -> PoolingMatch | NotCovered:
        return attempt(lambda: attention_pooling_of(region, kernels, number))

    def schedules(
        self, match: PoolingMatch, region: LoweredRegion, device: DeviceFacts, most: int
    ) -> list[Parameters]:
        return attention_pooling_schedules(match, region, device, most)

    def joined(
        self, match: PoolingMatch, region: LoweredRegion, given: Mapping[str, Parameter]
    ) -> Joined:
        return region, match.kernels

    def emit(
        self,
        match: PoolingMatch,
        region: LoweredRegion,
        given: Mapping[str, Parameter],
        name: str,
        device: DeviceFacts,
    ) -> Emitted:
        return emit_attention_pooling(match, region, given, name)
