"""How attention in half precision is laid over warps and blocks, and which ways are worth trying, best guess first."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent_backend.codegen.analysis.attention import Attention
from cuda_agent_backend.codegen.cuda.attention.common import (
    bias_steps,
    check_output,
    operand_steps,
    vector_of,
)
from cuda_agent_backend.codegen.ir.device import (
    MAX_THREADS,
    DeviceFacts,
    ceildiv,
)
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.parameters import integer, switch

GROUP_ROWS = 64
MAX_GROUPS, LARGE_GROUPS, LARGE = 4, 2, 128
"""Warp groups at most, and how many heads above ``LARGE`` want: the copies of one alone take too many registers."""
WIDE_KEYS = {64: (64, 128), 128: (64,), 256: (32, 48, 64)}
"""Of a tile of warp groups, by the largest head: a thread has half of a query's scores and half of its sums."""
WIDE_STAGES = 3
PANEL_BYTES, PANEL = 128, 64
"""Of a line of shared memory from which the tensor core reads, and its elements."""
SWIZZLE_BYTES = 1024
"""What the tensor core's tiles are aligned to."""
PADDING = 8
"""Elements by which lines are longer in shared memory than what they hold (see ``gemm_half.cuh``)."""
TANGENT, REGISTERS = 8, 224
"""Of a thread, for the tangents of scores that have a bound, and for all of sums, weights, queries, and two for each of
its copies; the rest of 255 hold what is on its way."""


@dataclass(frozen=True)
class HalfBlocks:
    """The schedule's parameters."""

    rows: int = integer("queries of a block")
    warp: int = integer("queries of a warp, 16 or 32", among=(16, 32))
    keys: int = integer("keys of a tile")
    stages: int = integer("tiles under way")
    kept: int = switch("1 where queries stay in registers, and 0 where in shared memory")
    wide: int = switch(
        "1 where warp groups of 64 queries each multiply what lies in shared memory (sm_90a only)",
        default=0,
    )

    @property
    def threads(self) -> int:
        return self.rows // self.warp * 32

    def shared_bytes(self, form: Attention) -> int:
        """Of a block, as `ca::half_attention` or `ca::wide_half_attention` in the CUDA source counts it."""
        line = _depth(form) + PADDING
        bias = self.rows * (self.keys + PADDING) if bias_vector(form) else 0
        if self.wide:
            lines = self.rows + 2 * self.stages * self.keys
            panels = ceildiv(form.size, PANEL)
            return SWIZZLE_BYTES + PANEL_BYTES * panels * lines + 2 * (self.stages - 1) * bias
        return 2 * (self.rows * line + self.stages * (2 * self.keys * line + bias))

    def registers(self, form: Attention) -> int:
        """Of a thread, for sums, weights and their biases, queries where they stay there, and its copies."""
        depth, staged = _depth(form), bias_vector(form)
        copies = ceildiv(2 * self.keys * depth // operand_vector(form), self.threads)
        if staged:
            copies += ceildiv(self.rows * self.keys // staged, self.threads)
        weights = self.keys * (2 if form.mask else 1)
        tangents = TANGENT * (form.cap is not None)
        held = self.warp // 16 * (2 * (form.size + weights) + depth * self.kept) // 4
        return held + 2 * copies + tangents

    def check(self, form: Attention, device: DeviceFacts) -> None:
        """Raises Unsupported where the parameters do not fit each other or the device."""
        if self.warp not in (16, 32) or self.rows <= 0 or self.rows % self.warp:
            raise Unsupported(f"{self.rows} queries for warps of {self.warp}")
        if self.keys <= 0 or self.keys % 16 or self.stages < 2 or self.kept not in (0, 1):
            raise Unsupported(f"tiles of {self.keys} keys, {self.stages} at a time")
        if self.wide:
            self._check_wide(form, device)
        elif self.registers(form) > REGISTERS:
            raise Unsupported(f"{self.registers(form)} registers of a thread")
        if self.threads > MAX_THREADS or self.shared_bytes(form) > device.shared_per_block_bytes:
            raise Unsupported(
                f"{self.threads} threads, {self.shared_bytes(form)} bytes of shared memory"
            )

    def _check_wide(self, form: Attention, device: DeviceFacts) -> None:
        if device.arch != "sm_90a":
            raise Unsupported(f"warp groups on {device.arch}")
        if (self.wide, self.warp, self.kept) != (1, 16, 0) or self.stages < WIDE_STAGES:
            raise Unsupported("parameters that mean nothing to warp groups")
        if self.rows % GROUP_ROWS or self.rows > MAX_GROUPS * GROUP_ROWS:
            raise Unsupported(f"{self.rows} queries for warp groups")
        if form.size > LARGE and self.rows != LARGE_GROUPS * GROUP_ROWS:
            raise Unsupported(f"{self.rows} queries of {form.size} elements for warp groups")
        sizes = (keys for largest, keys in WIDE_KEYS.items() if form.size <= largest)
        if self.keys not in next(sizes, ()):
            raise Unsupported(f"tiles of {self.keys} keys of {form.size} elements")
        if operand_vector(form) == 1:
            raise Unsupported("warp groups and rows that are not aligned to 4 bytes")


def _wide(rows: int, keys: int, stages: int = 3) -> HalfBlocks:
    return HalfBlocks(rows, 16, keys, stages, 0, 1)


WIDE_CHOICES = (
    _wide(128, 64), _wide(128, 128), _wide(192, 64), _wide(128, 48), _wide(64, 64), _wide(128, 32),
)  # fmt: skip
"""Better guesses first, and before those of warps. The third is the first where two blocks of the first do not fit on a
multiprocessor, since it takes three groups to hide the softmax of one."""
TWO_FIT = 88
"""The largest head with which two blocks of the first have the registers."""
CHOICES = (
    HalfBlocks(128, 32, 64, 2, 1), HalfBlocks(128, 32, 64, 2, 0), HalfBlocks(64, 32, 64, 2, 0),
    HalfBlocks(128, 32, 64, 3, 1), HalfBlocks(128, 32, 32, 2, 0), HalfBlocks(64, 32, 32, 2, 0),
    HalfBlocks(128, 16, 64, 2, 1), HalfBlocks(64, 16, 64, 2, 1), HalfBlocks(128, 32, 128, 2, 0),
    HalfBlocks(64, 16, 64, 2, 0), HalfBlocks(64, 16, 32, 2, 0), HalfBlocks(128, 16, 64, 2, 0),
)  # fmt: skip
"""Better guesses first: warps of 32 queries read keys and values half as often, where registers hold them."""
MOST = 10


def _depth(form: Attention) -> int:
    """The size of a head as the tensor core takes it."""
    return ceildiv(form.size, 16) * 16


def operand_vector(form: Attention) -> int:
    """Elements of a copy of queries, keys and values."""
    return vector_of(operand_steps(form), 8)


def bias_vector(form: Attention) -> int:
    """Elements of a copy of the bias to shared memory; 0 where threads read it for themselves."""
    steps = bias_steps(form)
    if form.hides is not None or steps[3] != 1 or steps[2] == 0:
        return 0
    elements = vector_of((*steps[:3], form.keys), 8)
    return elements if elements > 1 else 0


def half_attention_schedules(form: Attention, device: DeviceFacts) -> list[HalfBlocks]:
    """Those that fit, best guess first: warp groups, where the device has them, before warps."""
    groups = sorted(WIDE_CHOICES, key=lambda b: form.size > TWO_FIT and b.rows != 192)
    return [blocks for blocks in (*groups, *CHOICES) if _fits(blocks, form, device)][:MOST]


def _fits(blocks: HalfBlocks, form: Attention, device: DeviceFacts) -> bool:
    try:
        blocks.check(form, device)
        check_output(form)
    except Unsupported:
        return False
    return True
