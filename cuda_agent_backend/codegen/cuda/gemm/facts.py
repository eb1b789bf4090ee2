"""What is known of a GEMM kernel before its source is written: operands, what they skip, sizes, and shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from cuda_agent_backend.codegen.analysis.gemm import Factor, GemmForm
from cuda_agent_backend.codegen.analysis.quantized_operand import fits
from cuda_agent_backend.codegen.cuda.common.parts import (
    buffers_of,
)
from cuda_agent_backend.codegen.cuda.gemm.aligned_operands import aligned_sides, sides_of
from cuda_agent_backend.codegen.cuda.gemm.banded import (
    BandedOperands,
    banded_operands_of,
    needed_of,
    noted_buffer,
    share_of_tiles,
)
from cuda_agent_backend.codegen.cuda.gemm.filter_taps import MOST_TILES, FilterTaps, filter_taps_of
from cuda_agent_backend.codegen.cuda.gemm.operands import Output, Side, output_of
from cuda_agent_backend.codegen.cuda.gemm.tiles import Tiles
from cuda_agent_backend.codegen.cuda.gemm.tma_boxes import TmaBoxes, in_batches, tma_boxes_of
from cuda_agent_backend.codegen.ir.banded import ALL
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.printer import STORAGE_TYPES
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.ssa import Body
from cuda_agent_backend.codegen.ir.value_types import WIDE

MAX_BATCHES = 65535
SWIZZLE_BYTES = 1024
"""What the tensor core's tiles are aligned to."""
BARRIER_BYTES = 8
HALF_PADDING = 8
"""Elements by which lines of 16-bit operands are longer in shared memory (see `gemm_half.cuh`)."""
QUANTIZED_PITCH = 16
"""Bytes of which lines of quantized operands are an odd number apart in shared memory (see `gemm.cuh`)."""
NOTHING_TO_ALIGN = (
    "no operand to align: each is aligned, masked, or not contiguous along a loop, or its elements are read more often "
    "than once"
)
NO_BAND = (
    "no terms to leave out: neither operand is known to be zero beside a band of rows and terms"
)


@dataclass
class GemmFacts:
    """A GEMM under a schedule. Making one raises Unsupported where the schedule does not fit."""

    kernel: Kernel
    gemm: GemmForm
    region: LoweredRegion
    tiles: Tiles
    name: str
    device: DeviceFacts

    def __post_init__(self) -> None:
        if self.tiles.uses_tma:
            self.gemm = in_batches(self.gemm)
        c = self.gemm
        self.left, self.right = sides_of(c)
        if not all(self._is_readable(side.factor) for side in (self.left, self.right)):
            raise Unsupported("factors of another dtype than their products'")
        self.output = self._output()
        reads, self.writes = buffers_of(self.kernel)
        self.reads = sorted({*reads, *self._operands})
        self.copies = aligned_sides(c, self.region, self.name) if self.tiles.aligned else []
        accessed = {*self.reads, *self.writes, *self._align()}
        sizes = [self.region.buffers[b].extent for b in accessed]
        self._fit_quantized()
        self.taps = self._taps()
        self.bands = self._bands()
        self.needed = ALL if self.taps is not None else needed_of(self.kernel, self.gemm)
        self.boxes = [self._boxed(side) for side in (self.left, self.right) if self.tiles.uses_tma]
        self.index = "int64_t" if max(*sizes, c.batches * c.m * c.n) >= WIDE else "int"

    def _is_readable(self, factor: Factor) -> bool:
        """Whether an operand is of the products' dtype, or of integers that one part of a split holds."""
        dtype = self._dtype(factor.buffer)
        return dtype == self.gemm.dtype if factor.zero is None else fits(dtype, factor.zero)

    def _fit_quantized(self) -> None:
        """Has quantized operands copied as wide as tiles allow. Raises Unsupported where a kernel cannot read them."""
        quantized = [side for side in (self.left, self.right) if side.factor.is_quantized]
        if quantized and (self.tiles.is_wgmma or self.tiles.banded):
            raise Unsupported("codes that warp groups read, or of which terms are left out")
        if len(quantized) == 2 and any(side.factor.zero for side in quantized):
            raise Unsupported(
                "two operands of codes whose zero is not 0: terms beyond the last one"
            )
        self.left, self.right = self._fitted(self.left), self._fitted(self.right)

    def _fitted(self, side: Side) -> Side:
        if not side.factor.is_quantized:
            return side
        length = self.tiles.depth if side.along_k else self._tile(side)
        widths = (v for v in (16, 8, 4) if v <= side.vector and length % v == 0)
        return replace(side, vector=next(widths, 1))

    def _output(self) -> Output:
        return output_of(self.kernel, self.gemm)

    def _align(self) -> list[str]:
        """Has the products read copies of operands where the schedule says so, and names the copies."""
        if not self.copies:
            if self.tiles.aligned:
                raise Unsupported(NOTHING_TO_ALIGN)
            return []
        sides = {one.side.name: one.side for one in self.copies}
        self.left, self.right = sides.get("a", self.left), sides.get("b", self.right)
        added = {one.buffer.name: one.buffer for one in self.copies}
        self.region = replace(self.region, buffers={**self.region.buffers, **added})
        tail = {i.buffer for s in self.kernel.stages[1:] for i in s.body.accesses()}
        tail |= {i.buffer for scale in self._scales for i in scale.accesses()}
        self.reads = sorted({*self._operands, *(b for b in tail if b is not None)})
        return list(added)

    def _boxed(self, side: Side) -> TmaBoxes:
        item = self.gemm.dtype.itemsize
        return tma_boxes_of(side, self.gemm.batch, self._tile(side), self.tiles.depth, item)

    def _taps(self) -> FilterTaps | None:
        """Of a tile's columns, where some tile can do without one."""
        found = filter_taps_of(self.gemm)
        if found is None or self.grid[1] > MOST_TILES or found.share(self.tiles.tile_n) == 1.0:
            return None
        if any(side.along_k and side.vector > 1 for side in (self.left, self.right)):
            return None  # neighbouring terms are copied together, left out or not
        return found

    def _bands(self) -> BandedOperands | None:
        """Where the schedule says that terms are left out; then the tail reads what `noting` wrote."""
        if not self.tiles.banded:
            return None
        found = banded_operands_of(self.gemm, self.region)
        if found is None:
            raise Unsupported(NO_BAND)
        noted = [noted_buffer(self.name, s, self.gemm.batch) for s in self._noted(found)]
        buffers = self.region.buffers | {one.name: one for one in noted}
        self.region = replace(self.region, buffers=buffers)
        self.reads = [*self.reads, *(one.name for one in noted)]
        return found

    def _noted(self, bands: BandedOperands) -> list[Side]:
        return [side for side in (self.left, self.right) if side.name in bands.noted]

    @property
    def share(self) -> float:
        """Of all terms, those that blocks go through."""
        t = self.tiles
        if self.taps is not None:
            return self.taps.share(t.tile_n)
        c = self.gemm
        met = share_of_tiles(self.needed, c.m, c.n, t.tile_m, t.tile_n) if self.needed.bounds else 1
        return met * (1 if self.bands is None else self.bands.share(t.tile_m, t.tile_n, t.step))

    @property
    def shared_bytes(self) -> int:
        """Of a block: the stages, or the tile of results that takes their place."""
        t = self.tiles
        high, wide = (t.tile_n, t.tile_m) if self.output.by_rows else (t.tile_m, t.tile_n)
        stage = self._floats(self.left, t.tile_m)
        stage += 0 if t.splits_in_registers else self._floats(self.right, t.tile_n)
        needed = t.stages * stage
        if t.is_half_wgmma:
            needed += (SWIZZLE_BYTES + BARRIER_BYTES * t.stages * t.uses_tma) // 4
        elif t.is_wgmma:
            needed += SWIZZLE_BYTES // 4 + t.slots * t.split_floats
        shared = (
            t.warps_k // 2 * t.tile_m * t.tile_n
        )  # sums on the way to the warps that add them up
        return 4 * max(needed, shared, high * (wide + 4))

    def _floats(self, side: Side, rows: int) -> int:
        depth, pairs = self.tiles.depth, self._pairs(side)
        if side.factor.is_quantized:
            lines, length = (rows, depth) if side.along_k else (depth, rows)
            return lines * QUANTIZED_PITCH * (ceildiv(length, QUANTIZED_PITCH) | 1) // 4
        if self.tiles.is_half_wgmma:
            return rows * depth // 2
        if self.gemm.is_half:
            lines, length = (rows, depth) if side.along_k else (depth, rows)
            return lines * (length + HALF_PADDING) // 2
        if side.along_k:
            return rows * (depth + (8 if pairs else 4))
        return depth * (rows + (4 if pairs else 8))

    def _pairs(self, side: Side) -> bool:
        """Whether threads read two neighbouring terms at a time; warp groups split what is their B in longer pieces."""
        return self.tiles.products == 6 and not (self.tiles.is_wgmma and side is self.right)

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles by rows and columns."""
        c = self.gemm
        return ceildiv(c.m, self.own_rows), ceildiv(c.n, self.own_columns)

    @property
    def own_rows(self) -> int:
        """Rows of a tile whose results no other tile has."""
        return self.gemm.rows_within(self.tiles.tile_m)

    @property
    def own_columns(self) -> int:
        """The same of columns."""
        return self.gemm.columns_within(self.tiles.tile_n)

    def _tile(self, side: Side) -> int:
        return self.tiles.tile_m if side.name == "a" else self.tiles.tile_n

    def _dtype(self, buffer: str) -> torch.dtype:
        return self.region.buffers[buffer].dtype

    @property
    def element(self) -> str:
        """The operands' type in memory."""
        return STORAGE_TYPES[self.gemm.dtype]

    @property
    def _scales(self) -> list[Body]:
        factors = (self.gemm.left, self.gemm.right)
        return [f.scale for f in factors if f.scale is not None]

    @property
    def _operands(self) -> list[str]:
        return sorted({*self.left.factor.buffers, *self.right.factor.buffers})

    @property
    def _partial(self) -> str:
        return f"{self.name}_partial"
