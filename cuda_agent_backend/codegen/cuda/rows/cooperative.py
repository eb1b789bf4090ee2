"""Row kernels whose rows are spread over a group of blocks that stay on the device and meet by way of memory.

The launch is cooperative: as many blocks as fit the device at once. A group of ``segments`` blocks takes one row after
another and keeps it, so that rows that no cluster holds are read from memory once. At the end of a pass that reduces,
each block leaves its partial results in memory, waits until it finds those of its whole group, and joins them in order.

* What is found has the number of the meeting beside it (``cooperative.cuh``). What is in memory before is not known,
  so a small launch sets it to zero, which is no meeting's number, at each call.
* Partial results have two places, used in turn. Who writes one again has found what its group left at the meeting in
  between, and none of the group left that before it had read what was in the place.
* All blocks of a group go through the same meetings: how many there are depends on the group's rows alone.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from cuda_agent_backend.codegen.cuda.common.parts import Emitted, temporary
from cuda_agent_backend.codegen.cuda.rows.combine import EXCHANGE_BUFFER, EXCHANGE_SLOTS
from cuda_agent_backend.codegen.cuda.rows.frame import grid_size
from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.cuda.rows.program import RowProgram
from cuda_agent_backend.codegen.cuda.rows.row_writer import Item, RowWriter
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from sandbox.compile.occupancy import limits_of, residency
from sandbox.plan.plan import Buffer as PlanBuffer
from sandbox.plan.plan import Launch, resolve

PRELUDE = "cuda/rows/cooperative.cuh"
THREADS = 256
"""Of a block of the launch before."""
MOST_MEETINGS = 2**31 - 1
ALL_REGISTERS, MOST_REGISTERS = 1 << 16, 255
"""Of a multiprocessor; of a thread."""


def emit_grid(
    region: LoweredRegion, layout: Layout, program: RowProgram, name: str, device: DeviceFacts
) -> Emitted:
    """Raises Unsupported where nothing is reduced over whole rows, or the blocks do not fit the device at once."""
    writer = RowWriter(region, layout, program, device)
    blocks, words = grid_size(layout, writer.outer, device), writer.exchanged_words
    if not words:
        raise Unsupported("blocks that meet for nothing")
    turns = ceildiv(layout.rows, blocks // layout.segments)
    if turns * len(program.passes) > MOST_MEETINGS:
        raise Unsupported("more meetings than there are numbers for")
    met = temporary(f"{name}_{EXCHANGE_BUFFER}", torch.int64, EXCHANGE_SLOTS * blocks * words)
    # other blocks write what this one reads: it is neither const nor restricted
    items: list[Item] = [("pass", n) for n in range(len(program.passes))]
    text, launch = writer.function(f"{name}_1", items, [f"uint64_t* {EXCHANGE_BUFFER}"])
    launch = replace(launch, args=(*launch.args, met.name), cooperative=True)
    check_resident(launch, layout, device)
    begin, first = _beginning(f"{name}_0", met)
    return Emitted((begin, text), (first, launch), (met,))


def _beginning(name: str, met: PlanBuffer) -> tuple[str, Launch]:
    """The kernel that sets what blocks leave for each other to zero, and its launch."""
    size = met.spec.extent
    lines = [
        f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}(uint64_t* __restrict__ {EXCHANGE_BUFFER}) {{',
        f"  const int i = blockIdx.x * {THREADS} + threadIdx.x;",
        f"  if (i < {size}) {EXCHANGE_BUFFER}[i] = 0;",
        "}",
    ]
    grid = (ceildiv(size, THREADS), 1, 1)
    return "\n".join(lines), Launch(name, grid, (THREADS, 1, 1), args=(met.name,))


def check_resident(launch: Launch, layout: Layout, device: DeviceFacts) -> None:
    """Raises Unsupported unless a multiprocessor holds as many blocks at once as the layout counts on.

    Registers are the compiler's to find, which is told how many blocks there will be.
    """
    limits = limits_of(device.arch)
    if limits is None:
        raise Unsupported(
            f"blocks that wait for each other on {device.arch}, whose limits are not known"
        )
    left = ALL_REGISTERS // (layout.threads * layout.blocks) // 8 * 8
    facts = {"registers": min(left, MOST_REGISTERS), "shared_bytes": 0}
    fits = residency(resolve(launch, {}), facts, limits)
    if int(fits["blocks_per_sm"]) < layout.blocks:
        reason = f"{layout.blocks} blocks on a multiprocessor, which holds {fits['blocks_per_sm']}"
        raise Unsupported(f"{reason} for its {fits['limited_by']}")
