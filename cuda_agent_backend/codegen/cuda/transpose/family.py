"""The family of pointwise kernels that read across two loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import KernelFamily, Parameters, Place, Problem
from cuda_agent_backend.codegen.cuda.transpose.writer import (
    LEAST,
    MOST,
    SKETCH,
    Crossing,
    crossing_of,
    emit_transpose,
    transpose_schedules,
)
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.parameters import integer, switch
from cuda_agent_backend.codegen.ir.schedule import Parameter


@dataclass(frozen=True)
class TransposeParams:
    wide: int = integer("elements of a tile along the results' loop", least=LEAST, most=MOST)
    tall: int = integer(
        "elements along the operands' loop, as many as along the other where it is left out",
        least=LEAST,
        most=MOST,
        default=0,
    )
    joined: int = switch(
        "1 takes the loops that go on in memory where these end together with them, so that tiles lie across their "
        "ends",
        default=0,
    )
    vector: int = integer(
        "neighbours that a thread loads and stores at a time, where nothing but such operands is read",
        default=1,
    )


class Transpose(KernelFamily[TransposeParams, Crossing]):
    name = SKETCH
    title = "Pointwise work across two loops"
    docs = (
        "A block makes a tile of the two loops. Operands that lie along the other loop than the results are copied to "
        "shared memory first, with threads along their own loop, and read from there across it: memory sees whole "
        "lines on both sides."
    )
    params = TransposeParams
    place = Place.POINTWISE

    def match(self, problem: Problem) -> Crossing | NotCovered:
        found = crossing_of(problem.kernel) or crossing_of(problem.kernel, True)
        return found or NotCovered(
            "a transposing schedule of a kernel that reads nothing across its loops"
        )

    def schedules(self, match: Crossing, problem: Problem) -> list[Parameters]:
        return transpose_schedules(problem.kernel, problem.region)

    def emit(
        self, match: Crossing, problem: Problem, given: Mapping[str, Parameter], name: str
    ) -> Emitted:
        return emit_transpose(problem.kernel, problem.region, given, name)
