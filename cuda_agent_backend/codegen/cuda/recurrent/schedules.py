"""How recurrent layers are laid over clusters of blocks, and which ways are worth trying, best guess first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cuda_agent_backend.codegen.cuda.recurrent.match import (
    Recurrent,
)
from cuda_agent_backend.codegen.ir.device import WARP, DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.parameters import integer

RANKS = (16, 8, 4, 2, 1)
MAX_ROWS = 8
THREADS = (128, 256, 384, 512)
SPLITS = (4, 8, 16, 32)
TILES = (64, 128)
PRODUCT_THREADS, PRODUCT_DEPTH = 256, 16
REGISTERS, MOST_REGISTERS, OTHER_REGISTERS = 1 << 16, 255, 58
"""Of a multiprocessor; those that a thread can name; those of it beside weights and sums."""
NEIGHBOURS = 16
"""Multiprocessors of the smallest group that a cluster does not leave."""
PROPOSALS = 12
EXCHANGE, MEETING, POINTWISE, SHUFFLE = 600, 40, 250, 30
"""Cycles: h on its way to a cluster, a barrier of a block, what a unit's gates take, an exchange between threads."""


@dataclass(frozen=True)
class RecurrentBlocks:
    """The schedule's parameters."""

    ranks: int = integer("blocks of a cluster", among=RANKS)
    rows: int = integer("sequences of a cluster", most=MAX_ROWS)
    threads: int = integer("threads of a block", among=THREADS)
    splits: int = integer("neighbouring threads that share a dot product", among=SPLITS)
    kept: int = integer(
        "of each thread's part of a dot product the groups of four weights in registers", least=0
    )
    tile: int = integer(
        "rows and columns of a block of the product, 64 or 128", among=TILES, default=64
    )

    def own(self, form: Recurrent) -> int:
        """Units of a block."""
        return ceildiv(form.units, self.ranks)

    def slice(self, form: Recurrent) -> int:
        """Places of a block's units in h: whole vectors."""
        return ceildiv(self.own(form), 4) * 4

    def each(self, form: Recurrent) -> int:
        """Dot products of a thread."""
        return ceildiv(form.gates * self.own(form), self.threads // self.splits)

    def deep(self, form: Recurrent) -> int:
        """Groups of four weights that a thread has of a dot product."""
        return ceildiv(self.ranks * self.slice(form), 4 * self.splits)

    def registers(self, form: Recurrent) -> int:
        """Of a thread, about."""
        each = self.each(form)
        passing = 4 * each if self.kept < self.deep(form) else 0
        rounds = ceildiv(self.rows * self.slice(form), self.threads) - 1
        state = rounds * (2 * form.gates + 5)
        return 4 * each * self.kept + each * self.rows + passing + state + OTHER_REGISTERS

    def shared_bytes(self, form: Recurrent) -> int:
        """Of a block, as ``ca::recurrent_scan`` in the CUDA source counts it."""
        line = 4 * self.splits * self.deep(form)
        sums = ceildiv(self.rows * form.gates * self.own(form), 4) * 4
        rest = 4 * max(self.deep(form) - self.kept, 0) * self.each(form) * self.threads
        return 4 * (2 * self.rows * line + (2 if self.ranks > 1 else 1) * sums + rest) + 16

    @property
    def product_bytes(self) -> int:
        """Shared memory of a block of the product, as ``ca::project`` counts it."""
        return 4 * 4 * PRODUCT_DEPTH * (self.tile + 4)

    def clusters(self, form: Recurrent) -> int:
        return ceildiv(form.batch, self.rows) * form.directions

    def cost(self, form: Recurrent, device: DeviceFacts) -> float:
        """Cycles of a step, times how often clusters must take turns, to compare schedules by."""
        each, deep, warps = self.each(form), self.deep(form), self.threads // WARP
        sums, shuffles = each * self.rows, _exchanges(each * self.rows, self.splits)
        # the fewer warps, the less hides what each instruction waits for
        slots = warps / 4 + 0.8
        issued = slots * (4 * deep * sums + 4 * shuffles + 2 * deep * self.rows)
        rest = max(deep - self.kept, 0)
        memory = warps * (4 * deep * self.rows + 4 * rest * each + shuffles)
        exchange = EXCHANGE + self.rows * self.ranks * self.slice(form) / 8
        alone = MEETING + SHUFFLE * self.splits.bit_length() + POINTWISE
        turns = ceildiv(self.clusters(form), _at_once(self.ranks, device))
        hidden = min(issued, memory) / 4
        between = exchange if self.ranks > 1 else MEETING
        return turns * (max(issued, memory) + hidden + alone + between)

    def check(self, form: Recurrent, device: DeviceFacts) -> None:
        """Raises Unsupported where the parameters do not fit each other, the layers or the device."""
        if self.ranks not in RANKS or (self.ranks > 1 and not device.has_clusters):
            raise Unsupported(f"a cluster of {self.ranks} blocks on {device.arch}")
        if (self.ranks - 1) * self.own(form) >= form.units:
            raise Unsupported(f"{self.ranks} blocks for {form.units} units")
        if not 1 <= self.rows <= MAX_ROWS or self.tile not in TILES:
            raise Unsupported(f"{self.rows} sequences of a cluster, tiles of {self.tile}")
        if self.threads not in THREADS or self.splits not in SPLITS:
            raise Unsupported(f"{self.threads} threads, {self.splits} for a dot product")
        if not 0 <= self.kept <= self.deep(form):
            raise Unsupported(f"{self.kept} of {self.deep(form)} groups of weights in registers")
        if self.registers(form) > min(REGISTERS // self.threads, MOST_REGISTERS):
            raise Unsupported(f"{self.registers(form)} registers of {self.threads} threads")
        if self.shared_bytes(form) > device.shared_per_block_bytes:
            raise Unsupported(f"weights that take {self.shared_bytes(form)} bytes of shared memory")


def _at_once(ranks: int, device: DeviceFacts) -> int:
    """Clusters that run together: a cluster's blocks are on neighbouring multiprocessors."""
    if ranks == 1:
        return device.sm_count
    return max(device.sm_count // NEIGHBOURS * (NEIGHBOURS // ranks), 1)


def _exchanges(sums: int, threads: int) -> int:
    """Shuffles of a thread where ``threads`` add up so many sums."""
    count = 0
    while threads > 1:
        sums, threads = ceildiv(sums, 2), threads // 2
        count += sums
    return count


def recurrent_schedules(form: Recurrent, device: DeviceFacts) -> list[RecurrentBlocks]:
    """Those worth trying, best guess first."""
    found = sorted(_best(form, device), key=lambda blocks: blocks.cost(form, device))
    return found[:PROPOSALS]


def _best(form: Recurrent, device: DeviceFacts) -> Iterator[RecurrentBlocks]:
    """For each size of a cluster and number of its sequences, the best ways with more and with fewer threads."""
    for ranks in RANKS:
        for rows in _sequences(form, ranks, device):
            ways = list(_ways(form, ranks, rows, device))
            best = [[w for w in ways if w.threads == threads] for threads in THREADS]
            firsts = [min(b, key=lambda w: w.cost(form, device)) for b in best if b]
            yield from sorted(firsts, key=lambda w: w.cost(form, device))[:2]


def _sequences(form: Recurrent, ranks: int, device: DeviceFacts) -> list[int]:
    """Sequences of a cluster: as few as let all clusters run at once, and twice as many."""
    at_once = max(_at_once(ranks, device) // form.directions, 1)
    fewest = min(ceildiv(form.batch, at_once), MAX_ROWS)
    most = min(form.batch, MAX_ROWS)
    return sorted({fewest, min(2 * fewest, most)})


def _ways(form: Recurrent, ranks: int, rows: int, device: DeviceFacts) -> Iterator[RecurrentBlocks]:
    """With as many weights in registers as fit there."""
    for threads in THREADS:
        for splits in SPLITS:
            blocks = RecurrentBlocks(ranks, rows, threads, splits, 0, _tile(form, device))
            ways = (replace(blocks, kept=kept) for kept in range(blocks.deep(form), -1, -1))
            fitting = (way for way in ways if _fits(way, form, device))
            yield from itertools.islice(fitting, 1)


def _tile(form: Recurrent, device: DeviceFacts) -> int:
    """The larger one where there are enough of them."""
    rows, columns = form.length * form.batch, form.gates * form.units
    blocks = ceildiv(rows, 128) * ceildiv(columns, 128) * form.directions
    return 128 if blocks >= device.sm_count else 64


def _fits(blocks: RecurrentBlocks, form: Recurrent, device: DeviceFacts) -> bool:
    try:
        blocks.check(form, device)
    except Unsupported:
        return False
    return True
