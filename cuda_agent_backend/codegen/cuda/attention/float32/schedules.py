"""How attention in float32 is laid over warps and blocks, and which ways are worth trying, best guess first."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent_backend.codegen.analysis.attention import Attention
from cuda_agent_backend.codegen.cuda.attention.common import check_output
from cuda_agent_backend.codegen.ir.device import (
    MAX_THREADS,
    DeviceFacts,
    ceildiv,
)
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.parameters import integer, switch

MOST_KEYS = 192
"""Of a tile of warp groups: a thread has half as many scores, and of registers, where two blocks share them, 128."""
GROUP = 128
BY_TURNS, FREELY = 1, 2
"""How warp groups multiply."""
GROUP_ROWS = 64
MAX_GROUPS = 2
"""Warp groups that multiply; there are neither registers nor barriers for more."""
MAX_BARRIERS = 15
SWIZZLE_BYTES = 1024
"""What the tensor core's tiles are aligned to."""
STACKED, HALVED = 16, 128
"""Columns of values up to which warp groups multiply all three parts at once, and those of which they multiply half."""


@dataclass(frozen=True)
class AttentionBlocks:
    """The schedule's parameters."""

    rows: int = integer("queries of a block")
    warp: int = integer("queries of a warp, 16 or 32", among=(16, 32))
    keys: int = integer("keys of a tile")
    stages: int = integer("tiles under way")
    kept: int = switch(
        "1 where queries stay in registers, split as the products want them, and 0 where in shared memory"
    )
    split: int = switch(
        "1 where a block splits each tile of keys and values once, and 0 where each warp does"
    )
    relay: int = integer(
        "above 0 one warp group splits tiles while others multiply (sm_90a only), each 64 of the queries: 1 where by "
        "turns, 2 where whenever they can",
        among=(0, BY_TURNS, FREELY),
        default=0,
    )

    @property
    def groups(self) -> int:
        """Warp groups that multiply, where there are any."""
        return self.rows // GROUP_ROWS

    @property
    def threads(self) -> int:
        return (self.groups + 1) * GROUP if self.relay else self.rows // self.warp * 32

    @property
    def resident(self) -> int:
        """Blocks for each multiprocessor that registers are limited to."""
        return 2 if self.relay and self.groups == 1 else 1

    def shared_bytes(self, size: int, width: int = 0) -> int:
        """Of a block, as `ca::attention_tiles` or `ca::relay_attention` in the CUDA source counts it.

        size: of a row of queries and keys; width: of values, 0 where it is the same.
        """
        depth, width = ceildiv(size, 16) * 16, width or size
        if self.relay:
            keys = 3 * ceildiv(depth, 32) * 32 * self.keys
            values = (
                ceildiv(3 * width, 16) * 16 if width <= STACKED else 3 * ceildiv(width, 16) * 16
            )
            tiles = 2 * self.stages * (keys + values * self.keys)
            return SWIZZLE_BYTES + tiles + 6 * self.rows * depth
        stages = 4 * self.stages * self.keys * self._of_key(size, width)
        apart = 6 * self.keys * (depth + width) * self.split
        return stages + apart + 6 * self.rows * depth * (1 - self.kept)

    def _of_key(self, size: int, width: int) -> int:
        """Elements that a key and a value take, padding included."""
        return ceildiv(size, 16) * 16 + 8 + width + 4

    def check(self, size: int, device: DeviceFacts, width: int = 0) -> None:
        """Raises Unsupported where the parameters do not fit each other or the device."""
        if self.relay:
            self._check_relay(device)
        else:
            self._check_warps(size, width or size)
        shared = self.shared_bytes(size, width)
        if self.threads > MAX_THREADS or shared > device.shared_per_block_bytes:
            raise Unsupported(f"{self.threads} threads, {shared} bytes of shared memory")

    def _check_relay(self, device: DeviceFacts) -> None:
        if device.arch != "sm_90a":
            raise Unsupported(f"warp groups on {device.arch}")
        if (self.warp, self.kept, self.split) != (16, 0, 1) or not 1 <= self.relay <= self.groups:
            raise Unsupported("parameters that mean nothing to warp groups")
        if self.rows % GROUP_ROWS or not 1 <= self.groups <= MAX_GROUPS:
            raise Unsupported(f"{self.rows} queries for warp groups")
        barriers = 2 * self.stages * (self.groups + 1) + self.groups
        if (
            self.keys not in range(32, MOST_KEYS + 1, 32)
            or self.stages < 1
            or barriers > MAX_BARRIERS
        ):
            raise Unsupported(f"tiles of {self.keys} keys, {self.stages} at a time")

    def _check_warps(self, size: int, width: int) -> None:
        if self.warp not in (16, 32) or self.rows <= 0 or self.rows % 64:
            raise Unsupported(f"{self.rows} queries for warps of {self.warp}")
        if (
            self.keys <= 0
            or self.keys % 16
            or self.stages < 2
            or not {self.kept, self.split} <= {0, 1}
        ):
            raise Unsupported(f"tiles of {self.keys} keys, {self.stages} at a time")
        passing = self.stages * self.keys * self._of_key(size, width)
        if self.rows * (ceildiv(size, 16) * 16 + 8) > passing:
            raise Unsupported("queries that do not fit where keys and values pass through")


def _relay(rows: int, keys: int, stages: int, relay: int = BY_TURNS) -> AttentionBlocks:
    return AttentionBlocks(rows, 16, keys, stages, 0, 1, relay)


RELAYS = (
    (_relay(128, 64, 2), 80), (_relay(128, 64, 2, FREELY), 80), (_relay(64, 64, 1), 64), (_relay(128, 32, 2), 128),
    (_relay(64, 32, 2), 64),
)  # fmt: skip
"""Better guesses first, and before those of warps; with the longest row of Q, K and V that each is for."""
SMALL = (
    AttentionBlocks(64, 16, 32, 2, 0, 1),
    AttentionBlocks(64, 16, 64, 2, 1, 1),
    AttentionBlocks(64, 16, 32, 2, 1, 0),
)
"""For small heads, better guesses first."""
LARGE = (
    AttentionBlocks(64, 16, 32, 2, 0, 1),
    AttentionBlocks(64, 16, 32, 2, 0, 0),
    AttentionBlocks(64, 16, 64, 2, 0, 0),
)
"""For those that would leave too few registers if their queries stayed there."""
LARGEST = (AttentionBlocks(64, 16, 16, 3, 0, 1), AttentionBlocks(64, 16, 16, 3, 0, 0))
"""For those of whose sums a thread has so many that more keys at a time leave too few."""
KEPT, HELD = 64, 192
"""The largest heads for the first and for the second of these."""


def attention_schedules(form: Attention, device: DeviceFacts) -> list[AttentionBlocks]:
    """Those that fit, best guess first: warp groups, where the device has them, before warps."""
    relays = (blocks for blocks, largest in RELAYS if form.size <= largest)
    by_warps = SMALL if form.size <= KEPT else LARGE if form.size <= HELD else LARGEST
    return [blocks for blocks in (*relays, *by_warps) if _fits(blocks, form, device)]


def _fits(blocks: AttentionBlocks, form: Attention, device: DeviceFacts) -> bool:
    try:
        blocks.check(form.size, device)
        check_output(form)
    except Unsupported:
        return False
    return True
