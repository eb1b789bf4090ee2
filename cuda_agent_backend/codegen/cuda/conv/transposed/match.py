"""Transposed convolutions with a stride: their sub-pixel phases, and which phase has weights for which taps.

A phase is the results at one remainder of their place by the stride. Each phase is a plain convolution of the image.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import sympy

from cuda_agent_backend.codegen.analysis.gemm import GemmForm, by_memory, points
from cuda_agent_backend.codegen.cuda.conv.halo.match import Halo, halo_of, with_any_weights
from cuda_agent_backend.codegen.cuda.gemm.filter_taps import holds, is_known
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.ssa import Body

Visit = tuple[int, int]
"""A tap and a phase that has weights for it."""
Pair = tuple[int, int, int]
"""Two taps, the second one the number of taps where there is none, and a phase."""


@dataclass(frozen=True)
class SubPixelPhases:
    """``gemm``: with columns in this order: phases that are stored apart, channels, phases next to each other;
    ``dims``: the phases' loops; ``near``: how many are next to each other; ``taps``: by phase, which have weights."""

    gemm: GemmForm
    halo: Halo
    dims: tuple[Dim, ...]
    near: int
    taps: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        return points(self.dims)

    @property
    def outputs(self) -> int:
        """Channels of the output."""
        return self.gemm.n // self.count

    @property
    def visits(self) -> list[Visit]:
        """All that a chunk of the image is multiplied by, tap by tap."""
        return sorted((tap, phase) for phase, taps in enumerate(self.taps) for tap in taps)

    @property
    def pairs(self) -> list[Pair]:
        """The same, two taps at a time."""
        none = self.halo.tap_count
        return [
            (taps[at], taps[at + 1] if at + 1 < len(taps) else none, phase)
            for phase, taps in enumerate(self.taps)
            for at in range(0, len(taps), 2)
        ]


def phases_of(kernel: Kernel, c: GemmForm) -> SubPixelPhases | None:
    """None where this is no convolution, or no loop of its columns is one of phases."""
    halo = halo_of(with_any_weights(c))
    if halo is None or (c.right.mask is not None and not c.right.absent):
        return None
    stored = next(s.index for stage in reversed(kernel.stages) for s in stage.stores)
    lacking = c.right.mask_symbols
    dims = tuple(
        d for d in by_memory(c.columns, stored) if d[0] in lacking or d in _woven(c, stored)
    )
    apart = tuple(d for d in c.columns if d not in dims)
    mask = c.right.mask
    known = mask is None or (is_known(mask) and lacking <= {s for s, _ in (*dims, *halo.taps)})
    if not dims or not apart or not known:
        return None
    steps = [coefficient(stored, d[0]) or 0 for d in (dims[-1], c.rows[-1])]
    front, last = (dims[:-1], dims[-1:]) if 0 < steps[0] < steps[1] else (dims, ())
    ordered = replace(c, columns=(*front, *apart, *last))
    taps = tuple(tuple(_taps_of(mask, halo, dims, phase)) for phase in _points(dims))
    return SubPixelPhases(ordered, halo, dims, points(last), taps)


def _woven(c: GemmForm, stored: sympy.Expr) -> list[Dim]:
    """Loops of the columns whose results lie between those of neighbouring rows and fill what is there."""
    steps = {coefficient(stored, s) for s, _ in c.rows}
    found = [d for d in c.columns if d[1] * (coefficient(stored, d[0]) or 0) in steps]
    # channels fill an image of the batch
    return (
        [d for d in found if d != by_memory(c.columns, stored)[0]]
        if len(found) == len(c.columns)
        else found
    )


def _taps_of(
    mask: Body | None, halo: Halo, dims: tuple[Dim, ...], phase: tuple[int, ...]
) -> Iterator[int]:
    """Numbers of the taps that a phase has weights for."""
    loops = [s for s, _ in (*dims, *halo.taps)]
    for number, tap in enumerate(_points(halo.taps)):
        if mask is None or holds(mask, dict(zip(loops, (*phase, *tap), strict=True))):
            yield number


def _points(dims: tuple[Dim, ...]) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*(range(n) for _, n in dims))
