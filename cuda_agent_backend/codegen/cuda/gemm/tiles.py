"""The schedule of a GEMM on cuda (`Tiles`), its main loops (`MainLoop`), and what fits a device."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent_backend.codegen.ir.device import MAX_THREADS, DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.parameters import integer, require, switch
from cuda_agent_backend.codegen.ir.schedule import Parameter

WGMMA_ROWS, WGMMA_COLUMNS, WGMMA_DEPTH = 64, (32, 64, 128), 32
HALF_WGMMA_ROWS, HALF_WGMMA_COLUMNS, HALF_WGMMA_DEPTH, HALF_WGMMA_STAGES = (
    (64, 128, 256),
    (64, 128, 256),
    64,
    3,
)
"""Tiles of main loops of 16-bit operands, and the fewest stages."""
MOST_TMA_STAGES, TMA_THREADS = 8, 128
"""As many barriers as there are; threads of which one asks TMA for boxes."""
MAX_WGMMA_ROWS = 2 * WGMMA_ROWS
WIDER = {136: MAX_WGMMA_ROWS, 160: WGMMA_ROWS, 192: WGMMA_ROWS}
"""Columns of more tiles whose B is split in registers, for whole rows, by the rows for which there are registers."""
SPLIT_ROWS = 16
"""Rows of a split tile of B in shared memory come by so many, as it begins at a multiple of 1024 bytes."""
MAX_SPLIT = 64
REGISTERS, PER_THREAD, MOST_RESIDENT = 65536, 160, 3
"""Of a multiprocessor, and what warps are assumed to need; blocks beyond which more hide nothing."""
SHARING = (2, 4, 8)
"""How many warps may share the terms of a stage."""


class MainLoop(enum.IntEnum):
    """How a block multiplies: the values of the parameter ``group``. Warp groups (wgmma) need sm_90a."""

    WARP_MMA = 0
    """Each warp loads its operands from shared memory and multiplies them (mma)."""
    WGMMA_SPLIT_IN_SHARED = 1
    """Warp-specialised: producer warps copy operands of float32 and split B into parts in shared memory."""
    WGMMA_SPLIT_IN_REGISTERS = 2
    """The same, but the producers load B to registers and store its parts only."""
    HALF_WGMMA = 3
    """Operands of 16 bits, multiplied where copies put them in shared memory."""
    HALF_WGMMA_TMA = 4
    """The same, but one thread has the copy engine (TMA) bring whole boxes of them."""


@dataclass(frozen=True)
class Tiles:
    """The schedule's parameters."""

    tile_m: int = integer("rows of results of a block's tile")
    tile_n: int = integer("columns of it")
    depth: int = integer("terms that are copied to shared memory at a time")
    warp_m: int = integer("rows of results of a warp", least=0)
    warp_n: int = integer("columns of them", least=0)
    stages: int = integer("pieces of `depth` terms under way", least=2)
    run: int = integer(
        "terms, a multiple or a part of `depth`, after which sums move on to others, as the tensor core cuts off what "
        "it adds instead of rounding it; 0: never",
        least=0,
        default=0,
        fixed=True,
    )
    split: int = integer(
        "blocks that share the terms of a tile; a second kernel adds up what they found",
        most=MAX_SPLIT,
        default=1,
    )
    products: int = integer(
        "6 for float32's accuracy, 1 for TF32's, which is right where the user's flags make eager as inaccurate, and "
        "for 16-bit operands, whose products are exact (with no run, as eager's library has none)",
        among=(6, 1),
        default=6,
        fixed=True,
    )
    group: int = integer(
        "above 0 warps work in groups of four (sm_90a; `warp_m` and `warp_n` then say nothing), half of which copy and "
        "split what the others multiply: 1 where B goes through shared memory to be split, 2 where it goes through "
        "registers; 3: both operands, of 16 bits, are multiplied where copies put them in shared memory; 4: where the "
        "copy engine (TMA) puts them, which one thread asks for whole boxes",
        among=tuple(int(one) for one in MainLoop),
        default=0,
        fixed=True,
    )
    warps_k: int = integer(
        "warps of a block that share the terms of a stage", default=1, fixed=True
    )
    aligned: int = switch(
        "1 where a kernel before copies operands whose rows are no multiple of 16 bytes apart to memory where they are",
        default=0,
    )
    banded: int = switch("1 where blocks leave out terms for which an operand is zero", default=0)
    last_wave: int = integer(
        "blocks that share the terms of a tile which is left over after as many as fill the device once or several "
        "times; 0: a block has it for itself",
        least=0,
        most=MAX_SPLIT,
        default=0,
    )

    @property
    def threads(self) -> int:
        if self.is_half_wgmma:
            return self.tile_m // WGMMA_ROWS * 128 + self.preparing
        if self.is_wgmma:
            return 2 * self.preparing
        return (self.tile_m // self.warp_m) * (self.tile_n // self.warp_n) * self.warps_k * 32

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor has registers for, by assumption."""
        return (
            1
            if self.is_wgmma
            else max(1, min(MOST_RESIDENT, REGISTERS // (PER_THREAD * self.threads)))
        )

    @property
    def preparing(self) -> int:
        """Threads that copy for the others; those that split as well are as many as these."""
        if self.uses_tma:
            return TMA_THREADS
        return self.tile_m // WGMMA_ROWS * 128 if self.is_wgmma and not self.is_half_wgmma else 0

    @property
    def main_loop(self) -> MainLoop:
        """How a block multiplies."""
        return MainLoop(self.group)

    @property
    def is_wgmma(self) -> bool:
        """Whether warps multiply in groups of four."""
        return self.main_loop is not MainLoop.WARP_MMA

    @property
    def is_half_wgmma(self) -> bool:
        """Whether warp groups take both operands, of 16 bits, from shared memory."""
        return self.main_loop in (MainLoop.HALF_WGMMA, MainLoop.HALF_WGMMA_TMA)

    @property
    def uses_tma(self) -> bool:
        """Whether the copy engine brings both operands."""
        return self.main_loop is MainLoop.HALF_WGMMA_TMA

    @property
    def splits_in_registers(self) -> bool:
        """Whether B goes through registers to be split."""
        return self.main_loop is MainLoop.WGMMA_SPLIT_IN_REGISTERS

    @property
    def slots(self) -> int:
        """Tiles of B that are split at a time."""
        return 3 if self.splits_in_registers else 2

    @property
    def split_floats(self) -> int:
        """Of shared memory, for a tile of B that is split."""
        rows = -(-self.tile_n // SPLIT_ROWS) * SPLIT_ROWS
        return rows * self.depth * self.split_bytes // 4

    @property
    def split_bytes(self) -> int:
        """Of a number that is split: three bfloat16 numbers, or one TF32 number."""
        return 6 if self.products == 6 else 4

    @property
    def step(self) -> int:
        """Terms that are added at a time, whether they are there or not."""
        return self.depth

    def check(self, shared: int, device: DeviceFacts, half: bool = False) -> None:
        """Raises Unsupported where the parameters do not fit each other or the device."""
        if self.is_half_wgmma:
            self._check_half_wgmma(device, half)
        elif self.is_wgmma:
            self._check_wgmma(device)
        whole = self.is_wgmma or all(
            value > 0 and part > 0 and value % part == 0
            for value, part in (
                (self.tile_m, self.warp_m), (self.tile_n, self.warp_n), (self.warp_m, 16), (self.warp_n, 8),
                (self.depth, 8),
            )
        )  # fmt: skip
        if not whole or self.stages < 2 or not 1 <= self.split <= MAX_SPLIT:
            raise Unsupported("tiles that do not divide into warps, or warps into products")
        if not 0 <= self.last_wave <= MAX_SPLIT or (self.last_wave and self.split > 1):
            raise Unsupported(
                f"last_wave: {self.last_wave}, split: {self.split}; one of them, up to {MAX_SPLIT}"
            )
        if half and (self.products != 1 or self.run or (self.is_wgmma and not self.is_half_wgmma)):
            raise Unsupported("16-bit operands: one product, no runs, no split parts")
        if half and not self.is_wgmma and self.warp_n % 16:
            raise Unsupported("16-bit operands: columns of a warp by 16")
        if self.products not in (1, 6):
            raise Unsupported(f"{self.products} products; 1 or 6")
        if self.aligned not in (0, 1) or self.banded not in (0, 1):
            raise Unsupported(f"aligned: {self.aligned}, banded: {self.banded}; 0 or 1")
        terms = 16 if half or self.products == 6 else 8
        self._check_shared_terms(terms, half)
        if self.run < 0 or self.run % terms or self.depth % terms:
            raise Unsupported(f"a run of {self.run} terms, {self.depth} at a time")
        uneven = self.run and max(self.run, self.depth) % min(self.run, self.depth)
        if uneven or self.threads > MAX_THREADS:
            raise Unsupported("a run that does not end with a stage, or too many threads")
        if shared > device.shared_per_block_bytes:
            raise Unsupported(f"{shared} bytes of shared memory")

    def _check_shared_terms(self, terms: int, half: bool) -> None:
        """Each warp of those that share a stage's terms has as many chunks of them (see `gemm.cuh`)."""
        if self.warps_k == 1:
            return
        within = 0 < self.run <= self.depth
        chunk = self.run if within else terms if half or self.depth % (2 * terms) else 2 * terms
        if self.is_wgmma or self.warps_k not in SHARING or self.depth % (self.warps_k * chunk):
            raise Unsupported(f"{self.warps_k} warps for {self.depth} terms")

    def _check_half_wgmma(self, device: DeviceFacts, half: bool) -> None:
        if device.arch != "sm_90a" or not half:
            raise Unsupported(f"warp groups on {device.arch}, or operands that are not of 16 bits")
        fits = self.tile_m in HALF_WGMMA_ROWS and self.tile_n in HALF_WGMMA_COLUMNS
        fits = fits and not (self.uses_tma and self.stages > MOST_TMA_STAGES)
        if not fits or self.depth != HALF_WGMMA_DEPTH or self.stages < HALF_WGMMA_STAGES:
            raise Unsupported("tiles that do not divide into the products of warp groups")

    def _check_wgmma(self, device: DeviceFacts) -> None:
        if device.arch != "sm_90a" or self.is_half_wgmma:
            raise Unsupported(f"warp groups on {device.arch}")
        fits = self.tile_m in (WGMMA_ROWS, MAX_WGMMA_ROWS) and self.tile_n in WGMMA_COLUMNS
        fits = fits or (self.splits_in_registers and WIDER.get(self.tile_n) == self.tile_m)
        runs = self.run > 0 and self.run % WGMMA_DEPTH == 0
        if not fits or not runs or self.depth != WGMMA_DEPTH or self.stages <= self.slots:
            raise Unsupported("tiles that do not divide into the products of warp groups")


def read_tiles(parameters: Mapping[str, Parameter]) -> Tiles:
    """Raises Unsupported where a parameter is missing or unknown, or has a value that cannot be."""
    return require(Tiles, parameters)
