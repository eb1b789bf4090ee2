"""The family of convolutions that copy their image once, with its halo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.conv.halo.schedules import halo_schedules
from cuda_agent_backend.codegen.cuda.conv.halo.writer import PARTS, PRELUDE, SKETCH, emit_halo
from cuda_agent_backend.codegen.cuda.family import KernelFamily, Parameters, Place, Problem
from cuda_agent_backend.codegen.cuda.gemm.family import gemm_headers
from cuda_agent_backend.codegen.ir.device import MAX_THREADS, DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.multiply_precision import EXACT
from cuda_agent_backend.codegen.ir.parameters import integer, string
from cuda_agent_backend.codegen.ir.schedule import Parameter

TWO_PARTS = 3
"""Products of parts for one of float32 numbers that are split in two."""
EXACT_BOXES = 1
"""Of boxes in float32's accuracy, where eager may use TF32."""


@dataclass(frozen=True)
class BoxParams:
    box: str = string('the places of the output that a block has, by loop, as "1x8x16"')
    tile_n: int = integer("output channels of a block", most=MAX_THREADS)
    warp_m: int = integer(
        "places of a warp, a multiple of 16; the tile has as many more places than the box as its warps do"
    )
    warp_n: int = integer("channels of a warp, a multiple of 8 that divides the tile's")
    products: int = integer(
        "6, which need not be said, or, where TF32 will do, 3: of numbers that are split into two parts, which err by "
        "a 32nd of what TF32 does",
        among=tuple(PARTS),
        default=EXACT,
        fixed=True,
    )


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
        kernel, region, device = problem.kernel, problem.region, problem.device
        return by_accuracy(device, lambda n: halo_schedules(kernel, match, region, device, n))

    def emit(
        self, match: GemmForm, problem: Problem, given: Mapping[str, Parameter], name: str
    ) -> Emitted:
        return emit_halo(problem.kernel, match, problem.region, given, name, problem.device)

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
