"""How back-to-back products are laid over the device: tiles, and parts of the keys that blocks share."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent_backend.codegen.cuda.attention.float32.schedules import (
    KEPT,
    RELAYS,
    AttentionBlocks,
)
from cuda_agent_backend.codegen.cuda.attention.linear.match import LinearAttention
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.parameters import integer

SMALL = (
    AttentionBlocks(64, 16, 64, 2, 1, 1), AttentionBlocks(64, 16, 32, 2, 0, 1), AttentionBlocks(128, 16, 64, 2, 0, 1),
    AttentionBlocks(64, 16, 32, 2, 1, 0),
)  # fmt: skip
"""For rows of Q up to ``KEPT``, better guesses first."""
LARGE = (
    AttentionBlocks(64, 16, 32, 2, 0, 1), AttentionBlocks(128, 16, 64, 2, 0, 1), AttentionBlocks(64, 16, 64, 2, 0, 1),
    AttentionBlocks(64, 16, 32, 2, 0, 0),
)  # fmt: skip
"""For those that would leave too few registers if they stayed there."""
ROOMY, WIDEST = 96, (AttentionBlocks(64, 16, 32, 2, 0, 0),)
"""For the widest rows there are registers in no other way, and fewer blocks to each multiprocessor."""
BUSY = 4
"""Blocks for each multiprocessor that parts are made for."""
MOST_PARTS, FEWEST_TILES, FEWEST_WIDE_TILES = 8, 16, 8
"""Of a row's keys, and of a part: of warps, and of warp groups."""
BLOCK_TILES, JOIN_TILES = 2, 2
"""Tiles in whose time a block begins and ends, and the second kernel runs."""


@dataclass(frozen=True)
class LinearBlocks(AttentionBlocks):
    """The schedule's parameters: those of attention, and one more."""

    parts: int = integer(
        "blocks that share the keys of a row, where rows are too few to keep the device busy",
        default=1,
    )

    def part_keys(self, form: LinearAttention) -> int:
        """Keys of each part but the last, which may have fewer."""
        return ceildiv(ceildiv(form.keys, self.keys), self.parts) * self.keys

    def check_mixing(self, form: LinearAttention, device: DeviceFacts) -> None:
        """Raises Unsupported where the parameters do not fit each other, the form or the device."""
        self.check(form.size, device, form.width)
        if self.parts < 1 or (self.parts - 1) * self.part_keys(form) >= form.keys:
            raise Unsupported(f"{self.parts} parts of {form.keys} keys")


def guesses(form: LinearAttention) -> tuple[AttentionBlocks, ...]:
    """Tiles worth trying, better guesses first; those of warp groups come before those of warps."""
    relays = [blocks for blocks, largest in RELAYS if max(form.size, form.width) <= largest]
    warps = WIDEST if is_wide(form) else SMALL if form.size <= KEPT else LARGE
    return (*relays, *warps)


def is_wide(form: LinearAttention) -> bool:
    """Whether rows are so wide that a thread's sums take most registers."""
    return max(form.size, form.width) > ROOMY


def part_counts(form: LinearAttention, blocks: AttentionBlocks, device: DeviceFacts) -> list[int]:
    """Numbers of parts worth trying, better guesses first."""
    tiles = ceildiv(form.keys, blocks.keys)
    if blocks.relay:
        return [
            parts_in_waves(tiles, blocks_of_a_part(form, blocks), device.sm_count * blocks.resident)
        ]
    wanted = BUSY * device.sm_count // blocks_of_a_part(form, blocks)
    parts = min(wanted, MOST_PARTS, tiles // FEWEST_TILES)
    return [parts, 1] if parts > 1 else [1]


def parts_in_waves(tiles: int, blocks: int, together: int) -> int:
    """How many parts take the least time.

    One or two blocks have all of a multiprocessor's registers, so that what does not fill a wave is idle.

    tiles: of a row's keys. blocks: of each part. together: blocks that the device runs at once.
    """

    def time(parts: int) -> int:
        return ceildiv(blocks * parts, together) * (ceildiv(tiles, parts) + BLOCK_TILES)

    most = min(MOST_PARTS, tiles // FEWEST_WIDE_TILES)
    whole = (p for p in range(2, most + 1) if (p - 1) * ceildiv(tiles, p) < tiles)
    best = min(whole, key=time, default=1)
    return best if time(best) + JOIN_TILES < time(1) else 1


def blocks_of_a_part(form: LinearAttention, blocks: AttentionBlocks) -> int:
    """Blocks that work on one part of the keys."""
    return form.batches * form.heads * ceildiv(form.queries, blocks.rows)
