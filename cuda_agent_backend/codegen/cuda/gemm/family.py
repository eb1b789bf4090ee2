"""The family of matrix products and convolutions in tiles for tensor cores."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.family import KernelFamily, Parameters, Place, Problem
from cuda_agent_backend.codegen.cuda.gemm.schedules import gemm_schedules
from cuda_agent_backend.codegen.cuda.gemm.tail_split import emit_gemm
from cuda_agent_backend.codegen.cuda.gemm.tiles import Tiles
from cuda_agent_backend.codegen.cuda.gemm.writer import HALF_PRELUDES, PRELUDES, SKETCH
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.schedule import Parameter


class Gemm(KernelFamily[Tiles, tuple[Kernel, GemmForm]]):
    name = SKETCH
    title = "Products and convolutions on tensor cores"
    docs = (
        "A product's M, N and K are the loops of its results' rows and columns, and of its terms. A block makes a tile "
        "of the results, and copies what that needs to shared memory piece by piece while it multiplies."
    )
    params = Tiles
    place = Place.TILED

    def match(self, problem: Problem) -> tuple[Kernel, GemmForm] | NotCovered:
        """The kernel and its product after taps of a filter have become loops of their own."""
        kernel, found = problem.product
        return NotCovered("no matrix product") if found is None else (kernel, found)

    def schedules(self, match: tuple[Kernel, GemmForm], problem: Problem) -> list[Parameters]:
        return gemm_schedules(*match, problem.region, problem.device, problem.most)

    def emit(
        self,
        match: tuple[Kernel, GemmForm],
        problem: Problem,
        given: Mapping[str, Parameter],
        name: str,
    ) -> Emitted:
        return emit_gemm(*match, problem.region, given, name, problem.device)

    def headers(self, given: Mapping[str, Parameter], halves: bool) -> tuple[str, ...]:
        return gemm_headers(halves)


def gemm_headers(halves: bool) -> tuple[str, ...]:
    """What kernels of products in tiles use. halves: whether buffers of 16 bits are among their region's."""
    return (*PRELUDES, *(HALF_PRELUDES if halves else ()))
