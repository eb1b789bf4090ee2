"""Which tiles of points and channels are worth trying, best guess first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cuda_agent_backend.codegen.cuda.channel_gather.match import SKETCH, channel_gathers_of
from cuda_agent_backend.codegen.cuda.common.sizes import WORD_BYTES
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.parameters import integer
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter

WIDE = (64, 32)


@dataclass(frozen=True)
class ChannelGatherParams:
    """The schedule's parameters."""

    vector: int = integer("channels of a thread", among=(1, 2, 4))
    wide: int = integer("points of a tile", least=8, most=256)


def channel_gather_schedules(kernel: Kernel, region: LoweredRegion) -> list[dict[str, Parameter]]:
    """Best guess first; none where nothing is gathered so, or less of it than the copy takes."""
    found = channel_gathers_of(kernel, region)
    if found is None:
        return []
    turns = math.prod(size for _, size in found.others)
    taken = turns * found.count * found.channels[1]
    if taken < max(table.source.extent for table in found.tables):
        return []
    item = max(table.source.dtype.itemsize for table in found.tables)
    fits = [v for v in (4, 2, 1) if found.channels[1] % v == 0 and v * item <= WORD_BYTES]
    return [{"sketch": SKETCH, "vector": v, "wide": w} for v in fits[:2] for w in WIDE]
