"""The family of transposed convolutions with all phases of their stride in a block."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.conv.halo.family import by_accuracy, halo_headers
from cuda_agent_backend.codegen.cuda.conv.halo.params import BoxParams
from cuda_agent_backend.codegen.cuda.conv.halo.writer import SKETCH as HALO
from cuda_agent_backend.codegen.cuda.conv.transposed.schedules import sub_pixel_schedules
from cuda_agent_backend.codegen.cuda.conv.transposed.writer import PRELUDE, SKETCH, sub_pixel_writer
from cuda_agent_backend.codegen.cuda.family import KernelFamily, Parameters, Place, Problem
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Parameter


class TransposedConvolution(KernelFamily[BoxParams, GemmForm]):
    name = SKETCH
    title = "Transposed convolutions with all phases in a block"
    docs = (
        "Results whose places leave the same rest by the stride are a phase. `tile_n` and `warp_n` count output "
        "channels, of each of which a block, or a warp, has all phases."
    )
    params = BoxParams
    like = HALO
    place = Place.BOXED

    def match(self, problem: Problem) -> GemmForm | NotCovered:
        return problem.numbers or NotCovered("no matrix product of numbers")

    def schedules(self, match: GemmForm, problem: Problem) -> list[Parameters]:
        return by_accuracy(problem.device, lambda n: sub_pixel_schedules(problem, match, n))

    def emit(
        self, match: GemmForm, problem: Problem, given: Mapping[str, Parameter], name: str
    ) -> Emitted:
        return sub_pixel_writer(problem, match, given, name).emit()

    def headers(self, given: Mapping[str, Parameter], halves: bool) -> tuple[str, ...]:
        return (*halo_headers(halves), PRELUDE)
