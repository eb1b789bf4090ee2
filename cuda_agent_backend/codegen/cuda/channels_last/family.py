"""The family of windows over images whose results are stored channels last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent_backend.codegen.cuda.channels_last.writer import (
    MOST_DEEP,
    SKETCH,
    WORD,
    Crossed,
    crossed_of,
    crossed_schedules,
    emit_crossed,
)
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import KernelFamily, Parameters, Place, Problem
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.parameters import integer
from cuda_agent_backend.codegen.ir.schedule import Parameter


@dataclass(frozen=True)
class ChannelsLastParams:
    vector: int = integer(
        "neighbouring results of a thread along the image's lines", among=(1, 2, WORD)
    )
    rows: int = integer("lines of such results that a thread makes")
    deep: int = integer("channels of a block", most=MOST_DEEP)


class ChannelsLast(KernelFamily[ChannelsLastParams, Crossed]):
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

    def match(self, problem: Problem) -> Crossed | NotCovered:
        return crossed_of(problem.kernel) or NotCovered(
            "no windows whose results are stored channels last"
        )

    def schedules(self, match: Crossed, problem: Problem) -> list[Parameters]:
        return crossed_schedules(problem.kernel)

    def emit(
        self, match: Crossed, problem: Problem, given: Mapping[str, Parameter], name: str
    ) -> Emitted:
        return emit_crossed(problem.kernel, problem.region, given, name)
