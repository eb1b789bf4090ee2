"""A lowered region: loop nests over buffers, as read off Inductor's lowering."""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch

from cuda_agent_backend.codegen.ir.banded import Band
from cuda_agent_backend.codegen.ir.ssa import Body

ARG_REDUCTIONS = ("argmax", "argmin")


@dataclass(frozen=True)
class Buffer:
    """Memory with a fixed layout; ``role`` is input, output or temporary.

    ``band``: beside it all matrices of a temporary, over its last two dimensions, are zero.
    """

    name: str
    role: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    band: Band | None = None

    @property
    def extent(self) -> int:
        """Number of elements the layout spans."""
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))


@dataclass(frozen=True)
class Store:
    """``buffer[index] = value`` (for a Welford reduction: field 0 mean, 1 sum of squared deviations, 2 count)."""

    buffer: str
    index: sympy.Expr
    field: int = 0


@dataclass(frozen=True)
class Stage:
    """One loop nest: for each point of ``outer`` a map, a reduction or a scan over ``inner``.

    ``outer`` and ``inner`` are (variable, size) pairs without size-1 dimensions. A map has all its
    dimensions in ``outer``. The dtype is the one values are stored in.
    """

    name: str
    kind: str
    combine: str
    dtype: torch.dtype
    outer: tuple[tuple[sympy.Symbol, int], ...]
    inner: tuple[tuple[sympy.Symbol, int], ...]
    body: Body
    stores: tuple[Store, ...]

    def reads(self) -> set[str]:
        return {i.buffer for i in self.body.accesses() if i.buffer is not None}

    def writes(self) -> set[str]:
        return {s.buffer for s in self.stores}


@dataclass(frozen=True)
class LoweredRegion:
    """Stages in execution order, and every buffer by name. ``outputs`` are names in task order."""

    stages: tuple[Stage, ...]
    buffers: dict[str, Buffer]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
