"""The tail wave of a GEMM's tiles: how many tiles it has, and what is saved if several blocks share each of them.

A device computes as many tiles at a time as it has places for blocks, a wave. The tiles that are left over after whole
waves leave most of it idle. Shared by several blocks each, they keep all of it busy for a part of a wave.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent_backend.codegen.cuda.gemm.tiles import MAX_SPLIT, Tiles
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported

RESERVED_BYTES = 1024
"""Shared memory of a block that is the driver's."""


@dataclass(frozen=True)
class TailWave:
    """``whole`` tiles have a block each and come first; each of the other ``rest`` is shared by ``parts`` blocks."""

    whole: int
    rest: int
    parts: int

    @property
    def blocks(self) -> int:
        return self.whole + self.rest * self.parts

    def waves(self, device: DeviceFacts, join: float = 0.0) -> float:
        """Time of the busiest multiprocessor, in times of a tile; ``join``: that of a second kernel for each part."""
        parts = self.rest * self.parts
        busiest = self.whole // device.sm_count + ceildiv(parts, device.sm_count) / self.parts
        return busiest + join * parts / device.sm_count


def whole_tiles(t: Tiles, shared: int, tiles: int, device: DeviceFacts) -> int:
    """Of ``tiles``, those of whole waves, with so many bytes of ``shared`` memory for a block.

    A wave has no more blocks on a multiprocessor than each of them gets a tile for, as they share its rate.

    Raises:
        Unsupported: none or all of them are.
    """
    by_memory = (device.shared_per_block_bytes + RESERVED_BYTES) // (shared + RESERVED_BYTES)
    resident = max(1, min(t.resident, by_memory))
    wave = device.sm_count * min(resident, tiles // device.sm_count)
    if wave == 0:
        raise Unsupported(f"a last wave of {tiles} tiles for {device.sm_count} multiprocessors")
    if tiles % wave == 0:
        raise Unsupported(f"a last wave where {tiles} tiles are whole waves of {wave}")
    return tiles // wave * wave


def tail_wave_of(t: Tiles, shared: int, tiles: int, terms: int, device: DeviceFacts) -> TailWave:
    """How a schedule shares its last wave.

    Args:
        t: the schedule.
        shared: bytes of shared memory of a block.
        tiles: of all batches.
        terms: of each result.
        device: whose multiprocessors compute them.

    Raises:
        Unsupported: nothing is saved, or a block would have no terms.
    """
    whole = whole_tiles(t, shared, tiles, device)
    found = TailWave(whole, tiles - whole, t.last_wave)
    if not _all_have_some(ceildiv(terms, t.step), t.last_wave):
        raise Unsupported(f"a last wave with {terms} terms for {t.last_wave} blocks")
    if found.waves(device) >= TailWave(whole, tiles - whole, 1).waves(device):
        raise Unsupported(
            f"a last wave where {found.rest} tiles in {t.last_wave} parts take as long"
        )
    return found


def best_tail_wave(
    t: Tiles, shared: int, tiles: int, terms: int, device: DeviceFacts, join: float
) -> TailWave:
    """That of the least time, for `last_wave_of`'s arguments; maybe with one part, which is none.

    ``join``: see `LastWave.waves`. Raises Unsupported as `whole_tiles`.
    """
    whole, steps = whole_tiles(t, shared, tiles, device), ceildiv(terms, t.step)
    longest = max(1, min(MAX_SPLIT, steps // 2))  # shorter shares are not worth a block
    possible = (parts for parts in range(1, longest + 1) if _all_have_some(steps, parts))
    waves = [TailWave(whole, tiles - whole, parts) for parts in possible]
    return min(waves, key=lambda wave: wave.waves(device, join))


def _all_have_some(steps: int, parts: int) -> bool:
    """Whether none of so many shares of ``steps``, as long as the longest, is empty."""
    return ceildiv(steps, ceildiv(steps, parts)) == parts
