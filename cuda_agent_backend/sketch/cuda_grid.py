"""Row kernels whose rows are spread over a group of blocks that stay on the device and meet by way of memory.

The launch is cooperative: as many blocks as fit the device at once. A group of ``segments`` blocks takes one row after
another and keeps it, so that rows that no cluster holds are read from memory once. At the end of a pass that reduces,
each block leaves its partial results in memory, waits until a counter says that its whole group has, and joins those of
all in the same order.

* Counters only rise. What they are before is not known, so a small launch sets them to zero at each call.
* Partial results have two places, used in turn. Who writes one again has met its group in between, and none of the
  group went to that meeting before it had read what was there.
* All blocks of a group go through the same meetings: how many there are depends on the group's rows alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from cuda_agent_backend.sketch.cuda_frame import grid_size
from cuda_agent_backend.sketch.cuda_join import APART, MET, PLACES
from cuda_agent_backend.sketch.cuda_layout import WARP, DeviceFacts, Layout, ceildiv
from cuda_agent_backend.sketch.cuda_parts import Emitted, partial_buffers, temporary
from cuda_agent_backend.sketch.cuda_program import RowProgram, is_full
from cuda_agent_backend.sketch.cuda_rows import Item, RowWriter
from cuda_agent_backend.sketch.lower import LoweredRegion
from cuda_agent_backend.sketch.ssa import Unsupported
from sandbox.occupancy import limits_of, residency
from sandbox.plan import Launch, resolve

PRELUDE = Path(__file__).parent / "csrc" / "grid.cuh"
THREADS = 256
"""Of a block of the launch that sets counters to zero."""
MOST_COUNTED = 2**31 - 1
ALL_REGISTERS, MOST_REGISTERS = 1 << 16, 255
"""Of a multiprocessor; of a thread."""


def emit_grid(
    region: LoweredRegion, layout: Layout, program: RowProgram, name: str, device: DeviceFacts
) -> Emitted:
    """Raises Unsupported where nothing is reduced over whole rows, or the blocks do not fit the device at once."""
    writer = RowWriter(region, layout, program, device)
    full = [n for n, p in enumerate(program.passes) if is_full(p, layout.points)]
    reductions = [reduction for n in full for reduction in writer.reductions(n)]
    if not reductions:
        raise Unsupported("blocks that meet for nothing")
    blocks = grid_size(layout, writer.outer, device)
    groups = blocks // layout.segments
    passes = sum(bool(writer.reductions(n)) for n in full)
    if ceildiv(layout.rows, groups) * passes * layout.segments > MOST_COUNTED:
        raise Unsupported("more meetings than a counter counts")
    met = temporary(f"{name}_{MET}", torch.int32, groups * APART)
    partial = partial_buffers(name, reductions, PLACES * blocks)
    # other blocks write what this one reads: nothing is const or restricted here
    parameters = [f"int* {MET}", *(f"{ctype}* {parameter}" for parameter, ctype, _ in partial)]
    items: list[Item] = [("pass", n) for n in range(len(program.passes))]
    text, launch = writer.function(f"{name}_1", items, parameters)
    names = (met.name, *(buffer.name for *_, buffer in partial))
    launch = replace(launch, args=(*launch.args, *names), cooperative=True)
    check_resident(launch, layout, device)
    begin, first = _beginning(f"{name}_0", met.name, groups)
    return Emitted((begin, text), (first, launch), (met, *(buffer for *_, buffer in partial)))


def _beginning(name: str, met: str, groups: int) -> tuple[str, Launch]:
    """The kernel that sets the groups' counters to zero, and its launch."""
    threads = min(THREADS, ceildiv(groups, WARP) * WARP)
    lines = [
        f'extern "C" __global__ void __launch_bounds__({threads}) {name}(int* __restrict__ {MET}) {{',
        f"  const int group = blockIdx.x * {threads} + threadIdx.x;",
        f"  if (group < {groups}) {MET}[group * {APART}] = 0;",
        "}",
    ]
    grid = (ceildiv(groups, threads), 1, 1)
    return "\n".join(lines), Launch(name, grid, (threads, 1, 1), args=(met,))


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
