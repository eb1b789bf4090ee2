"""Which schedules of a kernel are worth trying on a device, best guess first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.analysis.quantized_operand import fits
from cuda_agent_backend.codegen.cuda.family import Parameters, Place, Problem
from cuda_agent_backend.codegen.cuda.pointwise.writer import single_pass
from cuda_agent_backend.codegen.cuda.registry import KERNELS
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion

MOST = 14
FEW = 8
"""Rows or columns below which a sum of products may be done as one reduction for each result."""


def kernel_schedules(
    kernel: Kernel, region: LoweredRegion, device: DeviceFacts, most: int = MOST
) -> list[Parameters]:
    """One to ``most`` schedules; raises Unsupported where no family fits."""
    problem = Problem(kernel, region, device, most)
    if single_pass(kernel) is not None:
        return _all(problem, Place.POINTWISE)[:most]
    first: list[Parameters] = []
    tiled: list[Parameters] = []
    narrower = _narrower_side(problem)
    if narrower > 1:
        first = _all(problem, Place.FIRST)
        boxed: list[Parameters] = next(filter(None, _each(problem, Place.BOXED)), [])
        tiled = [*_all(problem, Place.TILED_FIRST), *_by_turns(_all(problem, Place.TILED), boxed)]
    if tiled and narrower >= FEW:
        return [*first, *tiled][:most]
    rows = _all(problem, Place.ROWS)
    if not rows and not tiled:
        raise Unsupported("no schedule fits the rows of this kernel")
    return [*first, *_by_turns(rows, tiled)][:most]


def _each(problem: Problem, place: Place) -> Iterator[list[Parameters]]:
    """What each family of a place proposes."""
    return (family.proposals(problem) for family in KERNELS if family.place is place)


def _all(problem: Problem, place: Place) -> list[Parameters]:
    return list(itertools.chain.from_iterable(_each(problem, place)))


def _narrower_side(problem: Problem) -> int:
    """Rows or columns of a matrix product, whichever are fewer; 0 where a kernel is none."""
    _, product = problem.product
    if product is None or not _reads_codes(product, problem.region):
        return 0
    return min(product.m, product.n)


def _reads_codes(gemm: GemmForm, region: LoweredRegion) -> bool:
    """Whether factors that are not numbers as they lie in memory are made of integers as small as codes are."""
    factors = (gemm.left, gemm.right)
    return all(f.zero is None or fits(region.buffers[f.buffer].dtype, f.zero) for f in factors)


def _by_turns(left: list[Parameters], right: list[Parameters]) -> list[Parameters]:
    """Of two ways to do the same, of which the device has to choose, the best of each first."""
    pairs = itertools.zip_longest(left, right)
    return [one for pair in pairs for one in pair if one is not None]
