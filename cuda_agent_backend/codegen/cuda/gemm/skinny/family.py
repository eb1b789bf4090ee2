"""The family of matrix products with few columns."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import KernelFamily, Parameters, Place, Problem
from cuda_agent_backend.codegen.cuda.gemm.skinny.match import skinny_loops_of
from cuda_agent_backend.codegen.cuda.gemm.skinny.schedules import (
    SKETCH,
    SkinnyParams,
    skinny_schedules,
)
from cuda_agent_backend.codegen.cuda.gemm.skinny.writer import emit_skinny
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Parameter


class Skinny(KernelFamily[SkinnyParams, GemmForm]):
    name = SKETCH
    title = "Products with few columns"
    docs = ""
    params = SkinnyParams
    place = Place.FIRST

    def match(self, problem: Problem) -> GemmForm | NotCovered:
        found = problem.numbers
        if found is None or skinny_loops_of(found) is None:
            return NotCovered("no matrix product of numbers with few columns")
        return found

    def schedules(self, match: GemmForm, problem: Problem) -> list[Parameters]:
        return skinny_schedules(match, problem.device)

    def emit(
        self, match: GemmForm, problem: Problem, given: Mapping[str, Parameter], name: str
    ) -> Emitted:
        return emit_skinny(problem, match, given, name)
