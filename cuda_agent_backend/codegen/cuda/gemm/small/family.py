"""The family of batches of small matrix products."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import KernelFamily, Parameters, Place, Problem
from cuda_agent_backend.codegen.cuda.gemm.small.writer import (
    SKETCH,
    SmallLayout,
    emit_small,
    is_small,
    small_schedules,
)
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Parameter


class Small(KernelFamily[SmallLayout, GemmForm]):
    name = SKETCH
    title = "Many small products"
    docs = ""
    params = SmallLayout
    place = Place.TILED_FIRST

    def match(self, problem: Problem) -> GemmForm | NotCovered:
        found = problem.numbers
        if found is None or not is_small(found):
            return NotCovered("no matrix product of numbers, of which there are many small ones")
        return found

    def schedules(self, match: GemmForm, problem: Problem) -> list[Parameters]:
        return small_schedules(match)

    def emit(
        self, match: GemmForm, problem: Problem, given: Mapping[str, Parameter], name: str
    ) -> Emitted:
        return emit_small(problem, match, given, name)
