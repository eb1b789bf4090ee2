"""The family of convolutions that copy their image once, with its halo."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.conv.halo.params import BoxParams
from cuda_agent_backend.codegen.cuda.conv.halo.schedules import halo_schedules
from cuda_agent_backend.codegen.cuda.conv.halo.writer import PRELUDE, SKETCH, halo_writer
from cuda_agent_backend.codegen.cuda.family import KernelFamily, Parameters, Place, Problem
from cuda_agent_backend.codegen.cuda.gemm.family import gemm_headers
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.multiply_precision import EXACT
from cuda_agent_backend.codegen.ir.schedule import Parameter

TWO_PARTS = 3
"""Products of parts for one of float32 numbers that are split in two."""
EXACT_BOXES = 1
"""Of boxes in float32's accuracy, where eager may use TF32."""


class Halo(KernelFamily[BoxParams, GemmForm]):
    name = SKETCH
    title = "Convolutions that copy their image once"
    docs = (
        "A block copies and splits what it needs of the image once, for all places of the filter."
    )
    params = BoxParams
    place = Place.BOXED

    def match(self, problem: Problem) -> GemmForm | NotCovered:
        return problem.numbers or NotCovered("no matrix product of numbers")

    def schedules(self, match: GemmForm, problem: Problem) -> list[Parameters]:
        return by_accuracy(problem.device, lambda n: halo_schedules(problem, match, n))

    def emit(
        self, match: GemmForm, problem: Problem, given: Mapping[str, Parameter], name: str
    ) -> Emitted:
        return halo_writer(problem, match, given, name).emit()

    def headers(self, given: Mapping[str, Parameter], halves: bool) -> tuple[str, ...]:
        return halo_headers(halves)


def halo_headers(halves: bool) -> tuple[str, ...]:
    """What kernels that work in boxes of an image use."""
    return (*gemm_headers(halves), PRELUDE)


def by_accuracy(
    device: DeviceFacts, schedules: Callable[[int], list[Parameters]]
) -> list[Parameters]:
    """``schedules`` by how many products a number takes. Where TF32 is allowed most have numbers of two parts, which
    err less."""
    if not device.tf32:
        return schedules(EXACT)
    exact, near = schedules(EXACT)[:EXACT_BOXES], schedules(TWO_PARTS)
    return [*near[:1], *exact, *near[1:]]
