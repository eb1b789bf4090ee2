"""Kernels as loop nests: stages that run over common rows.

A kernel has common ``outer`` loops; one point of them is a *row*. Each of its stages loops over its own ``inner``
dimensions within the row. A buffer that is made and read within a row is *local*: it lives in registers, a thread's own
memory or shared memory. `transform.fusion` makes kernels of a region's stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import sympy
import torch

from cuda_agent_backend.codegen.ir.region import Buffer, LoweredRegion, Store
from cuda_agent_backend.codegen.ir.ssa import Body

Dim = tuple[sympy.Symbol, int]
"""A loop: its variable and how many points it has."""


@dataclass(frozen=True)
class Local:
    """A buffer that lives within a row. ``size`` 1 is a scalar, else a dense array of that many elements."""

    name: str
    size: int


@dataclass(frozen=True)
class RowStage:
    """A stage in terms of the kernel's outer symbols and its own inner dimensions (merged, in loop order).

    Loads and stores of local buffers carry their index within the row. ``stores`` are writes to memory,
    ``local_stores`` writes to locals; both index by outer and inner symbols.
    """

    name: str
    kind: str
    """"map", "reduce" or "scan"."""
    combine: str
    dtype: torch.dtype
    inner: tuple[Dim, ...]
    body: Body
    stores: tuple[Store, ...]
    local_stores: tuple[Store, ...]

    @property
    def points(self) -> int:
        return math.prod(n for _, n in self.inner)


@dataclass(frozen=True)
class Kernel:
    """Stages over common rows. ``locals`` by buffer name; a local that is also kept has a memory store too."""

    outer: tuple[Dim, ...]
    stages: tuple[RowStage, ...]
    locals: dict[str, Local]

    @property
    def rows(self) -> int:
        return math.prod(n for _, n in self.outer)

    @property
    def is_map(self) -> bool:
        return all(s.kind == "map" for s in self.stages)


Nests = tuple[LoweredRegion, tuple[Kernel, ...]]
"""A region and its kernels."""


def temporaries(region: LoweredRegion, kernels: Iterable[Kernel]) -> list[Buffer]:
    """What goes through memory from kernel to kernel."""
    written = {s.buffer for k in kernels for stage in k.stages for s in stage.stores}
    return [b for b in region.buffers.values() if b.role == "temporary" and b.name in written]
