"""The family of gathers along channels that lie apart in memory."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.cuda.channel_gather.match import (
    SKETCH,
    ChannelGathers,
    channel_gathers_of,
)
from cuda_agent_backend.codegen.cuda.channel_gather.schedules import (
    ChannelGatherParams,
    channel_gather_schedules,
)
from cuda_agent_backend.codegen.cuda.channel_gather.writer import emit_channel_gather
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import KernelFamily, Parameters, Place, Problem
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Parameter


class ChannelGather(KernelFamily[ChannelGatherParams, ChannelGathers]):
    name = SKETCH
    title = "Gathers along channels that lie apart"
    docs = (
        "As they stand every element comes from a line of its own. Here what is gathered is copied first so that "
        "channels are neighbours, and a block makes a tile of points and channels: threads along channels gather "
        "whole lines, and results go through shared memory to where points are neighbours."
    )
    params = ChannelGatherParams
    place = Place.POINTWISE

    def match(self, problem: Problem) -> ChannelGathers | NotCovered:
        found = channel_gathers_of(problem.kernel, problem.region)
        return found or NotCovered("nothing is gathered along channels that lie apart")

    def schedules(self, match: ChannelGathers, problem: Problem) -> list[Parameters]:
        return channel_gather_schedules(problem.kernel, problem.region)

    def emit(
        self, match: ChannelGathers, problem: Problem, given: Mapping[str, Parameter], name: str
    ) -> Emitted:
        return emit_channel_gather(problem.kernel, problem.region, given, name)
