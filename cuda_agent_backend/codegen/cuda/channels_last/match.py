"""Windows over images that lie line by line, whose results are stored with their channels next to each other.

A depthwise convolution before one that wants channels last is such a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.pointwise.stencil import has_taps
from cuda_agent_backend.codegen.cuda.pointwise.writer import map_dims, single_pass
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.region import Store
from cuda_agent_backend.codegen.ir.ssa import GATHER

SKETCH = "crossed"
LEAST = 8
"""Channels, and elements of a line, below which threads side by side would have little to share."""
FARTHEST = 2
"""Elements from one place of a line to the next."""


@dataclass(frozen=True)
class ChannelsLastWindows:
    """The one pass of a kernel with its loops: those around, and those of its channels, rows and places in a row."""

    whole: Pass
    others: tuple[Dim, ...]
    channels: Dim
    rows: Dim
    line: Dim
    store: Store

    @property
    def dims(self) -> tuple[Dim, ...]:
        return (*self.others, self.channels, self.rows, self.line)


def channels_last_of(kernel: Kernel) -> ChannelsLastWindows | None:
    """None where the kernel has no windows, or reads along the loop that it stores along."""
    p = single_pass(kernel)
    dims = map_dims(kernel, p) if p is not None else ()
    if p is None or len(dims) < 3 or not has_taps(p):
        return None
    stores = [s for stage in p.stages for s in stage.stores]
    channels = dims[-1]
    if len(stores) != 1 or coefficient(stores[0].index, channels[0]) != 1:
        return None
    if any(i.op == GATHER for stage in p.stages for i in stage.body.walk()):
        return None
    loads = [i.index for stage in p.stages for i in stage.body.loads() if i.index is not None]
    lines = [d for d in dims[:-1] if _is_line(loads, d, channels)]
    if len(lines) != 1 or min(channels[1], lines[0][1]) < LEAST:
        return None
    rows = _nearest(loads, lines[0], [d for d in dims[:-1] if d is not lines[0]])
    if rows is None:
        return None
    others = tuple(d for d in dims[:-1] if d not in (lines[0], rows))
    return ChannelsLastWindows(p, others, channels, rows, lines[0], stores[0])


def _is_line(loads: Sequence[sympy.Expr], dim: Dim, channels: Dim) -> bool:
    """Whether what differs along ``dim`` lies near each other along it, and some of it not along the channels."""
    own = [index for index in loads if dim[0] in index.free_symbols]
    steps = [coefficient(index, dim[0]) or 0 for index in own]
    across = [coefficient(index, channels[0]) for index in own]
    near = all(0 < abs(step) <= FARTHEST for step in steps)
    return bool(own) and near and not {1, -1} & set(across) and set(across) != {0}


def _nearest(loads: Sequence[sympy.Expr], line: Dim, dims: Sequence[Dim]) -> Dim | None:
    """The loop with the shortest steps among what differs along ``line``."""
    own = [index for index in loads if line[0] in index.free_symbols]
    steps = {d: [abs(coefficient(index, d[0]) or 0) for index in own] for d in dims}
    known = [d for d in dims if all(steps[d])]
    return min(known, key=lambda d: steps[d], default=None)
