"""The family of pointwise kernels."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import KernelFamily, Parameters, Place, Problem
from cuda_agent_backend.codegen.cuda.pointwise.schedules import map_schedules
from cuda_agent_backend.codegen.cuda.pointwise.writer import MapLayout, emit_map, single_pass
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Parameter


class Pointwise(KernelFamily[MapLayout, Pass]):
    name = "map"
    title = "Pointwise work"
    docs = ""
    params = MapLayout
    place = Place.POINTWISE

    def match(self, problem: Problem) -> Pass | NotCovered:
        return single_pass(problem.kernel) or NotCovered(
            "a pointwise schedule for a kernel of several passes"
        )

    def schedules(self, match: Pass, problem: Problem) -> list[Parameters]:
        return map_schedules(match, problem.kernel, problem.region, problem.device)

    def emit(
        self, match: Pass, problem: Problem, given: Mapping[str, Parameter], name: str
    ) -> Emitted:
        return emit_map(problem.kernel, problem.region, given, name, problem.device)
