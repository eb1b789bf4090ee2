"""Launches of a plan that overlap: the next one's blocks are on the chip when the last block of the one before it ends.

A launch behind another takes a few microseconds: as long as the second half of a small region. With programmatic
dependent launch (sm_90 and newer) it is prepared while the one before it runs. Each kernel waits for that one by
itself, before anything else, so memory is as if they ran one after the other.

A cooperative launch begins when the one before it has ended: that all of its blocks fit then rests on the driver alone.
"""

from __future__ import annotations

import re
from dataclasses import replace

from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from sandbox.plan.plan import Launch, Plan

KERNEL = re.compile(r'extern "C" __global__ void[^{]*\{')
FOLLOW = "ca::follow();"


def chain_launches(source: str, plan: Plan, device: DeviceFacts) -> tuple[str, Plan]:
    """Source and plan in which each launch but the first, and none that is cooperative, is a dependent one, where the
    device knows such.

    Raises Unsupported where a kernel would not wait.
    """
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    if not device.has_clusters or len(launches) < 2 or len(launches) < len(plan.steps):
        return source, plan
    waiting, count = KERNEL.subn(lambda found: f"{found.group()}\n  {FOLLOW}", source)
    if count != source.count("__global__"):
        raise Unsupported("a kernel whose beginning was not found, where it would have to wait")
    first, *others = launches
    return waiting, replace(
        plan, steps=(first, *(replace(s, dependent=not s.cooperative) for s in others))
    )
