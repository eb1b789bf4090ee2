"""The family of rows whose results become one number, as those of losses do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import Joined, JoinFamily, Order, Parameters
from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.cuda.rows.loss.match import LossReduction, loss_reduction_of
from cuda_agent_backend.codegen.cuda.rows.loss.schedules import loss_schedules
from cuda_agent_backend.codegen.cuda.rows.loss.writer import MOST_STAYING, SKETCH, emit_loss
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered, attempt
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.parameters import integer
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter


@dataclass(frozen=True)
class LossParams(Layout):
    """Those of rows, and one more."""

    stay: int = integer(
        "blocks for each multiprocessor that go from rows to rows until none are left; 0: a block for each of its own",
        least=0,
        most=MOST_STAYING,
        default=0,
    )


class Loss(JoinFamily[LossParams, LossReduction]):
    name = SKETCH
    title = "Rows that are made one number of"
    docs = (
        "One set for both kernels together, so that the schedule has one less. A block adds up what its rows give, in "
        "double where they are float32, and leaves one partial result. A second kernel joins those, always in the same "
        "order. Nothing counts blocks, so there is nothing to reset and nothing to wait for."
    )
    params = LossParams
    like = "row"
    order = Order.AFTER_REDUCTION

    def match(
        self, region: LoweredRegion, kernels: tuple[Kernel, ...], number: int
    ) -> LossReduction | NotCovered:
        return attempt(lambda: loss_reduction_of(region, kernels, number))

    def schedules(
        self, match: LossReduction, region: LoweredRegion, device: DeviceFacts, most: int
    ) -> list[Parameters]:
        return loss_schedules(match, region, device, most)

    def joined(
        self, match: LossReduction, region: LoweredRegion, given: Mapping[str, Parameter]
    ) -> Joined:
        return region, match.kernels

    def emit(
        self,
        match: LossReduction,
        region: LoweredRegion,
        given: Mapping[str, Parameter],
        name: str,
        device: DeviceFacts,
    ) -> Emitted:
        return emit_loss(match, region, given, name, device)
