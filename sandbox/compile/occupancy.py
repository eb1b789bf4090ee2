"""How many blocks of a kernel an SM can hold, and what limits that: arithmetic on facts known at compile time.

The limits are those of the CUDA programming guide's table of compute capabilities; the driver's own calculator
(cuOccupancyMaxActiveBlocksPerMultiprocessor) gives the same numbers where there is a device to ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from sandbox.plan.steps import ResolvedLaunch

WARP = 32
REGISTER_UNIT = 256
"""Registers are given to warps in such portions."""
SHARED_UNIT = 128
SIDES = 4
"""Parts of an SM, each with its share of the registers; a warp lies in one."""
RESERVED_SHARED = 1024
"""Bytes of shared memory that the system takes of each block."""


@dataclass(frozen=True)
class SmLimits:
    """What one SM has: threads, blocks, 32-bit registers, bytes of shared memory."""

    threads: int
    blocks: int
    shared_bytes: int
    registers: int = 1 << 16


_KIB = 1024
SM_LIMITS = {
    80: SmLimits(2048, 32, 164 * _KIB),
    86: SmLimits(1536, 16, 100 * _KIB),
    87: SmLimits(1536, 16, 164 * _KIB),
    89: SmLimits(1536, 24, 100 * _KIB),
    90: SmLimits(2048, 32, 228 * _KIB),
    100: SmLimits(2048, 32, 228 * _KIB),
    103: SmLimits(2048, 32, 228 * _KIB),
    120: SmLimits(1536, 24, 100 * _KIB),
}
"""By compute capability, as in sm_90."""


def limits_of(arch: str) -> SmLimits | None:
    """The limits of an architecture such as sm_90a; None for one that is not in the table."""
    digits = arch.removeprefix("sm_").rstrip("af")
    return SM_LIMITS.get(int(digits)) if digits.isdecimal() else None


def residency(
    launch: ResolvedLaunch, facts: Mapping[str, int], limits: SmLimits
) -> dict[str, int | float | str]:
    """Blocks that fit on an SM at once, the share of its threads that they fill, and which resource ends.

    facts: `registers` a thread and static `shared_bytes`, see `compile_cuda.ptxas_facts`. A block that
    fits nowhere gives 0 blocks.
    """
    threads = prod(launch.block)
    warps = -(-threads // WARP)
    shared = facts["shared_bytes"] + launch.shared + RESERVED_SHARED
    shared = -(-shared // SHARED_UNIT) * SHARED_UNIT
    fits = {
        "threads": limits.threads // (warps * WARP),
        "registers": _by_registers(warps, facts["registers"], limits),
        "shared memory": limits.shared_bytes // shared,
        "blocks": limits.blocks,
    }
    scarce = min(fits, key=fits.__getitem__)
    blocks = fits[scarce]
    return {
        "blocks_per_sm": blocks,
        "occupancy": round(blocks * warps * WARP / limits.threads, 3),
        "limited_by": scarce,
    }


def _by_registers(warps: int, registers: int, limits: SmLimits) -> int:
    """Blocks for which the registers suffice. A block of which all warps do not fit at all is none."""
    per_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    if not per_warp:
        return limits.blocks
    if per_warp * -(-warps // SIDES) * SIDES > limits.registers:
        return 0
    return limits.registers // SIDES // per_warp * SIDES // warps
