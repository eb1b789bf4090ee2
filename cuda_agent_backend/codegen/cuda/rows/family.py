"""The family of kernels that reduce, normalise or scan rows."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import KernelFamily, Parameters, Place, Problem
from cuda_agent_backend.codegen.cuda.rows.cooperative import PRELUDE
from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.cuda.rows.schedules import row_schedules
from cuda_agent_backend.codegen.cuda.rows.writer import emit_rows
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.schedule import Parameter


class Rows(KernelFamily[Layout, Kernel]):
    name = "row"
    title = "Reductions, norms, softmax, scans over rows"
    docs = (
        'The threads of one row are a *team*. With lanes "inner" a row is contiguous in memory: a thread holds '
        '`vector` neighbouring elements of it, a block `across` rows. With lanes "outer" neighbouring rows are '
        "contiguous: a thread holds `vector` rows, a block `across * vector` of them."
    )
    params = Layout
    place = Place.ROWS

    def match(self, problem: Problem) -> Kernel | NotCovered:
        return problem.kernel

    def schedules(self, match: Kernel, problem: Problem) -> list[Parameters]:
        return row_schedules(match, problem.region, problem.device, problem.most)

    def emit(
        self, match: Kernel, problem: Problem, given: Mapping[str, Parameter], name: str
    ) -> Emitted:
        return emit_rows(match, problem.region, given, name, problem.device)

    def headers(self, given: Mapping[str, Parameter], halves: bool) -> tuple[str, ...]:
        return (PRELUDE,) if given.get("exchange") == "grid" else ()
