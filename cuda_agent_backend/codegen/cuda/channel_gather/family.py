"""The family of gathers along channels that lie apart in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent_backend.codegen.cuda.channel_gather.writer import (
    SKETCH,
    Gathered,
    channel_schedules,
    emit_channels,
    gathered_of,
)
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import KernelFamily, Parameters, Place, Problem
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.parameters import integer
from cuda_agent_backend.codegen.ir.schedule import Parameter


@dataclass(frozen=True)
class ChannelGatherParams:
    vector: int = integer("channels of a thread", among=(1, 2, 4))
    wide: int = integer("points of a tile", least=8, most=256)


class ChannelGather(KernelFamily[ChannelGatherParams, Gathered]):
    name = SKETCH
    title = "Gathers along channels that lie apart"
    docs = (
        "As they stand every element comes from a line of its own. Here what is gathered is copied first so that "
        "channels are neighbours, and a block makes a tile of points and channels: threads along channels gather "
        "whole lines, and results go through shared memory to where points are neighbours."
    )
    params = ChannelGatherParams
    place = Place.POINTWISE

    def match(self, problem: Problem) -> Gathered | NotCovered:
        found = gathered_of(problem.kernel, problem.region)
        return found or NotCovered("nothing is gathered along channels that lie apart")

    def schedules(self, match: Gathered, problem: Problem) -> list[Parameters]:
        return channel_schedules(problem.kernel, problem.region)

    def emit(
        self, match: Gathered, problem: Problem, given: Mapping[str, Parameter], name: str
    ) -> Emitted:
        return emit_channels(problem.kernel, problem.region, given, name)
