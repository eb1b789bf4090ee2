"""The family of pointwise kernels that read across two loops."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import KernelFamily, Parameters, Place, Problem
from cuda_agent_backend.codegen.cuda.transpose.match import SKETCH, Transposition, transposition_of
from cuda_agent_backend.codegen.cuda.transpose.schedules import TransposeParams, transpose_schedules
from cuda_agent_backend.codegen.cuda.transpose.writer import emit_transpose
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Parameter


class Transpose(KernelFamily[TransposeParams, Transposition]):
    name = SKETCH
    title = "Pointwise work across two loops"
    docs = (
        "A block makes a tile of the two loops. Operands that lie along the other loop than the results are copied to "
        "shared memory first, with threads along their own loop, and read from there across it: memory sees whole "
        "lines on both sides."
    )
    params = TransposeParams
    place = Place.POINTWISE

    def match(self, problem: Problem) -> Transposition | NotCovered:
        found = transposition_of(problem.kernel) or transposition_of(problem.kernel, True)
        return found or NotCovered(
            "a transposing schedule of a kernel that reads nothing across its loops"
        )

    def schedules(self, match: Transposition, problem: Problem) -> list[Parameters]:
        return transpose_schedules(problem.kernel, problem.region)

    def emit(
        self, match: Transposition, problem: Problem, given: Mapping[str, Parameter], name: str
    ) -> Emitted:
        return emit_transpose(problem.kernel, problem.region, given, name)
