"""Which tiles of windows that are stored channels last are worth trying, best guess first."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent_backend.codegen.cuda.channels_last.match import (
    SKETCH,
    ChannelsLastWindows,
    channels_last_of,
)
from cuda_agent_backend.codegen.cuda.common.parts import BYTES, SharedMemory
from cuda_agent_backend.codegen.cuda.pointwise.stencil import tile_rows
from cuda_agent_backend.codegen.ir.device import WARP
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.parameters import integer
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES
from cuda_agent_backend.codegen.ir.schedule import Parameter
from cuda_agent_backend.codegen.ir.value_types import stage_dtype

SPOTS = WARP
"""Tiles of a channel in a block, side by side."""
WORD = 4
MOST_DEEP = 256
MOST_SHARED_BYTES = 64 << 10
_TILES = ((4, 32), (2, 32), (4, 16), (2, 64), (1, 32))
"""Rows of a thread's results, channels of a block; best first."""


@dataclass(frozen=True)
class ChannelsLastParams:
    """The schedule's parameters."""

    vector: int = integer(
        "neighbouring results of a thread along the image's lines", among=(1, 2, WORD)
    )
    rows: int = integer("lines of such results that a thread makes")
    deep: int = integer("channels of a block", most=MOST_DEEP)

    @property
    def results(self) -> int:
        """Of a block."""
        return self.vector * self.rows * self.deep * SPOTS


def channels_last_schedules(kernel: Kernel) -> list[dict[str, Parameter]]:
    """Best guess first; none where this family does not fit."""
    found = channels_last_of(kernel)
    if found is None:
        return []
    possible = tile_rows(found.dims, found.whole)
    vector = next(v for v in (WORD, 2, 1) if found.line[1] % v == 0)
    result: list[dict[str, Parameter]] = []
    for rows, deep in _TILES:
        bytes_of_tile = tile_memory(found, ChannelsLastParams(vector, rows, deep)).size
        if rows in possible and bytes_of_tile <= MOST_SHARED_BYTES:
            result.append({"sketch": SKETCH, "vector": vector, "rows": rows, "deep": deep})
    return result


def tile_memory(found: ChannelsLastWindows, tile: ChannelsLastParams) -> SharedMemory:
    """The shared memory of a block: all of its results."""
    memory, kind = SharedMemory(), result_type(found)
    memory.take("made", kind, tile.results, BYTES[kind])
    return memory


def result_type(found: ChannelsLastWindows) -> str:
    """In C."""
    (stage,) = (stage for stage in found.whole.stages if stage.stores)
    return COMPUTE_TYPES[stage_dtype(stage)]
