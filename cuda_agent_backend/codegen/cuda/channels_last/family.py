"""The family of windows over images whose results are stored channels last."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.cuda.channels_last.match import (
    SKETCH,
    ChannelsLastWindows,
    channels_last_of,
)
from cuda_agent_backend.codegen.cuda.channels_last.schedules import (
    ChannelsLastParams,
    channels_last_schedules,
)
from cuda_agent_backend.codegen.cuda.channels_last.writer import emit_channels_last
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import KernelFamily, Parameters, Place, Problem
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Parameter


class ChannelsLast(KernelFamily[ChannelsLastParams, ChannelsLastWindows]):
    name = SKETCH
    title = "Windows along an image, channels stored together"
    docs = (
        "A depthwise convolution before one that wants channels last is such a kernel. Along the channels it would "
        "read one element of each line of memory, along the image it would write one. So a block makes tiles of "
        "results along the image, for some channels of the same places, leaves them in shared memory, and stores the "
        "channels of a place together."
    )
    params = ChannelsLastParams
    place = Place.POINTWISE

    def match(self, problem: Problem) -> ChannelsLastWindows | NotCovered:
        return channels_last_of(problem.kernel) or NotCovered(
            "no windows whose results are stored channels last"
        )

    def schedules(self, match: ChannelsLastWindows, problem: Problem) -> list[Parameters]:
        return channels_last_schedules(problem.kernel)

    def emit(
        self,
        match: ChannelsLastWindows,
        problem: Problem,
        given: Mapping[str, Parameter],
        name: str,
    ) -> Emitted:
        return emit_channels_last(problem.kernel, problem.region, given, name)
