"""Which schedules of a kernel are worth trying on a device, best guess first."""

from __future__ import annotations

import itertools

from cuda_agent_backend.codegen.analysis.gemm import Contraction, numbers_of
from cuda_agent_backend.codegen.analysis.quantized_operand import fits
from cuda_agent_backend.codegen.cuda.channel_gather.writer import channel_schedules
from cuda_agent_backend.codegen.cuda.channels_last.writer import crossed_schedules
from cuda_agent_backend.codegen.cuda.conv.halo.schedules import halo_schedules
from cuda_agent_backend.codegen.cuda.conv.transposed.schedules import phased_schedules
from cuda_agent_backend.codegen.cuda.family import Parameters, Problem
from cuda_agent_backend.codegen.cuda.gemm.filter_taps import with_taps_apart
from cuda_agent_backend.codegen.cuda.gemm.schedules import contract_schedules
from cuda_agent_backend.codegen.cuda.gemm.short_k.writer import short_schedules
from cuda_agent_backend.codegen.cuda.gemm.skinny.writer import direct_schedules
from cuda_agent_backend.codegen.cuda.gemm.small.writer import small_schedules
from cuda_agent_backend.codegen.cuda.pointwise.family import Pointwise
from cuda_agent_backend.codegen.cuda.pointwise.writer import single_pass
from cuda_agent_backend.codegen.cuda.rows.schedules import row_schedules
from cuda_agent_backend.codegen.cuda.transpose.writer import transpose_schedules
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion

MOST = 14
FEW = 8
"""Rows or columns below which a sum of products may be done as one reduction for each result."""
EXACT_BOXES = 1
"""Of boxes in float32's accuracy, where eager may use TF32."""


def kernel_schedules(
    kernel: Kernel, region: LoweredRegion, device: DeviceFacts, most: int = MOST
) -> list[Parameters]:
    """One to ``most`` schedules; raises Unsupported where no sketch fits."""
    if single_pass(kernel) is not None:
        across = [
            *crossed_schedules(kernel),
            *channel_schedules(kernel, region),
            *transpose_schedules(kernel, region),
        ]
        return [*across, *Pointwise().proposals(Problem(kernel, region, device))][:most]
    split, contraction = with_taps_apart(kernel)
    if contraction is not None and not _reads_codes(contraction, region):
        contraction = None
    least = 0 if contraction is None else min(contraction.m, contraction.n)
    tiled: list[Parameters] = []
    direct: list[Parameters] = []
    if contraction is not None and least > 1:
        whole = numbers_of(kernel)
        small = small_schedules(whole) if whole is not None else []
        if whole is not None:
            direct = [*direct_schedules(whole, device), *short_schedules(kernel, whole, device)]
        plain = contract_schedules(split, contraction, region, device, most)
        boxed = _boxed_schedules(kernel, whole, region, device) if whole is not None else []
        tiled = [*small, *_by_turns(plain, boxed)]
    if tiled and least >= FEW:
        return [*direct, *tiled][:most]
    found = row_schedules(kernel, region, device, most)
    if not found and not tiled:
        raise Unsupported("no schedule fits the rows of this kernel")
    return [*direct, *_by_turns(found, tiled)][:most]


def _boxed_schedules(
    kernel: Kernel, whole: Contraction, region: LoweredRegion, device: DeviceFacts
) -> list[Parameters]:
    """Of convolutions whose blocks have boxes. Where TF32 is allowed most have numbers of two parts, which err less."""

    def of(products: int) -> list[Parameters]:
        found = phased_schedules(kernel, whole, region, device, products)
        return found or halo_schedules(kernel, whole, region, device, products)

    if not device.tf32:
        return of(6)
    exact, near = of(6)[:EXACT_BOXES], of(3)
    return [*near[:1], *exact, *near[1:]]


def _reads_codes(contraction: Contraction, region: LoweredRegion) -> bool:
    """Whether factors that are not numbers as they lie in memory are made of integers as small as codes are."""
    factors = (contraction.left, contraction.right)
    return all(f.zero is None or fits(region.buffers[f.buffer].dtype, f.zero) for f in factors)


def _by_turns(left: list[Parameters], right: list[Parameters]) -> list[Parameters]:
    """Of two ways to do the same, of which the device has to choose, the best of each first."""
    pairs = itertools.zip_longest(left, right)
    return [one for pair in pairs for one in pair if one is not None]
