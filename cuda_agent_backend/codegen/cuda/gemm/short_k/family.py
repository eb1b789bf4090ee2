"""The family of matrix products of few terms."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import KernelFamily, Parameters, Place, Problem
from cuda_agent_backend.codegen.cuda.gemm.family import gemm_headers
from cuda_agent_backend.codegen.cuda.gemm.short_k.writer import (
    SKETCH,
    ShortLayout,
    emit_short,
    short_schedules,
)
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Parameter


class ShortK(KernelFamily[ShortLayout, GemmForm]):
    name = SKETCH
    title = "Sums of few terms with many results"
    docs = ""
    params = ShortLayout
    place = Place.FIRST

    def match(self, problem: Problem) -> GemmForm | NotCovered:
        return problem.numbers or NotCovered("no matrix product of numbers")

    def schedules(self, match: GemmForm, problem: Problem) -> list[Parameters]:
        return short_schedules(problem.kernel, match, problem.device)

    def emit(
        self, match: GemmForm, problem: Problem, given: Mapping[str, Parameter], name: str
    ) -> Emitted:
        return emit_short(problem, match, given, name)

    def headers(self, given: Mapping[str, Parameter], halves: bool) -> tuple[str, ...]:
        return gemm_headers(halves)
