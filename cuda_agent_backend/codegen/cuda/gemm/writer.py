"""Sums of products -> CUDA on tensor cores, with the pointwise tail on what a block has summed up.

Schedule parameters: see `cuda_tiles`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from cuda_agent_backend.codegen.analysis.gemm import Factor, GemmForm, points
from cuda_agent_backend.codegen.analysis.quantized_operand import fits
from cuda_agent_backend.codegen.cuda.common.access import LanePrinter
from cuda_agent_backend.codegen.cuda.common.parts import (
    Emitted,
    buffers_of,
    local_types,
    parameters_of,
    temporary,
)
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented
from cuda_agent_backend.codegen.cuda.gemm.aligned_operands import aligned_sides, copying, sides_of
from cuda_agent_backend.codegen.cuda.gemm.banded import (
    BandedOperands,
    banded_operands_of,
    ends,
    needed_of,
    needed_tile,
    noted_buffer,
    noting,
    share_of_tiles,
)
from cuda_agent_backend.codegen.cuda.gemm.filter_taps import MOST_TILES, FilterTaps, filter_taps_of
from cuda_agent_backend.codegen.cuda.gemm.operands import Gather, Output, Side, gather_of, output_of
from cuda_agent_backend.codegen.cuda.gemm.tiles import Tiles
from cuda_agent_backend.codegen.cuda.gemm.tma_boxes import TmaBoxes, in_batches, tma_boxes_of
from cuda_agent_backend.codegen.ir.banded import ALL
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.printer import STORAGE_TYPES, c_index
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction
from cuda_agent_backend.codegen.ir.value_types import WIDE
from sandbox.plan.plan import Argument, Launch
from sandbox.plan.plan import Buffer as PlanBuffer

PRELUDES = ("cuda/gemm/gemm.cuh", "cuda/gemm/gemm_wide.cuh", "cuda/gemm/gemm_relay.cuh")
HALF_PRELUDES = (
    "cuda/gemm/gemm_half.cuh",
    "cuda/gemm/gemm_wide_half.cuh",
    "cuda/common/barrier.cuh",
    "cuda/gemm/gemm_tma.cuh",
)
SKETCH = "contract"
GROUP = 8
"""Rows of tiles that are worked on together."""
TAIL_THREADS = 256
SWIZZLE_BYTES = 1024
"""What the tensor core's tiles are aligned to."""
BARRIER_BYTES = 8
HALF_PADDING = 8
"""Elements by which lines of 16-bit operands are longer in shared memory (see `gemm_half.cuh`)."""
CODED_PITCH = 16
"""Bytes of which lines of codes are an odd number apart in shared memory (see `gemm.cuh`)."""
MAX_BATCHES = 65535
NOTHING_TO_ALIGN = (
    "no operand to align: each is aligned, masked, or not contiguous along a loop, or its elements are read more often "
    "than once"
)

NO_BAND = (
    "no terms to leave out: neither operand is known to be zero beside a band of rows and terms"
)


@dataclass
class GemmWriter:
    """Writes the kernels of one sum of products."""

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
        """Has codes copied as wide as tiles allow. Raises Unsupported where a kernel cannot read them."""
        coded = [side for side in (self.left, self.right) if side.factor.is_quantized]
        if coded and (self.tiles.is_wgmma or self.tiles.banded):
            raise Unsupported("codes that warp groups read, or of which terms are left out")
        if len(coded) == 2 and any(side.factor.zero for side in coded):
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

    def emit(self) -> Emitted:
        """Raises Unsupported where the schedule does not fit."""
        self.tiles.check(self.shared_bytes, self.device, self.gemm.is_half)
        if self.gemm.batches > MAX_BATCHES:
            raise Unsupported(f"{self.gemm.batches} batches; at most {MAX_BATCHES}")
        parts = [self._at_once() if self.tiles.split == 1 else self._split()]
        if self.bands is not None:
            parts.insert(0, self._noting(self.bands))
        if self.copies:
            name = f"{self.name}_copy"
            text, launch = copying(self.copies, self.region, name, self.index, self.device)
            own = tuple(one.temporary for one in self.copies)
            parts.insert(0, Emitted((text,), (launch,), own))
        return Emitted(
            tuple(f for part in parts for f in part.functions),
            tuple(one for part in parts for one in part.launches),
            tuple(t for part in parts for t in part.temporaries),
        )

    def _at_once(self) -> Emitted:
        return Emitted((self._text(self.store_tail()),), (self._launch(),))

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

    def _noting(self, bands: BandedOperands) -> Emitted:
        texts, launches, batch = [], [], self.gemm.batch
        for side in self._noted(bands):
            size = points(side.rows.dims)
            find = find_lines(side, f"x < {size}", self.index, self._dtype, "find")
            text, launch = noting(side, batch, find, self.region, self.name, self.index)
            texts.append(text)
            launches.append(launch)
        made = (self.region.buffers[ends(self.name, side)] for side in bands.noted)
        temporaries = tuple(temporary(one.name, one.dtype, one.extent) for one in made)
        return Emitted(tuple(texts), tuple(launches), temporaries)

    @property
    def share(self) -> float:
        """Of all terms, those that blocks go through."""
        t = self.tiles
        if self.taps is not None:
            return self.taps.share(t.tile_n)
        c = self.gemm
        met = share_of_tiles(self.needed, c.m, c.n, t.tile_m, t.tile_n) if self.needed.bounds else 1
        return met * (1 if self.bands is None else self.bands.share(t.tile_m, t.tile_n, t.step))

    # --- sizes ---

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
            return lines * CODED_PITCH * (ceildiv(length, CODED_PITCH) | 1) // 4
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

    def _launch(self) -> Launch:
        high, wide = self.grid
        blocks = (high * wide, self.tiles.split, self.gemm.batches)
        outputs = [self._partial] if self.tiles.split > 1 else self.writes
        reads = self._operands if self.tiles.split > 1 else self.reads
        arguments: tuple[Argument, ...] = (*reads, *outputs, *(one.map for one in self.boxes))
        return Launch(self.name, blocks, (self.tiles.threads, 1, 1), self.shared_bytes, arguments)

    # --- text ---

    def _text(self, tail: Sequence[str]) -> str:
        c, t = self.gemm, self.tiles
        parameters = self._parameters()
        for side in (self.left, self.right) if t.uses_tma else ():
            parameters.append(f"const __grid_constant__ ca::tensor_map map_{side.name}")
        threads = t.threads
        kinds = [self._kind(self.left, t.tile_m), self._kind(self.right, t.tile_n)]
        parts = [
            t.tile_m,
            t.tile_n,
            t.depth,
            t.warp_m,
            t.warp_n,
            t.warps_k,
            t.stages,
            t.run,
            t.products,
        ]
        wide_parts = [t.tile_m, t.tile_n, t.stages, t.run, t.products, int(t.splits_in_registers)]
        if t.is_half_wgmma:
            kind = "boxed_half_contraction" if t.uses_tma else "wide_half_contraction"
            wide_parts = wide_parts[:3]
        elif c.is_half:
            parts, kind = parts[:-2], "half_contraction"
        else:
            kind = "relay_contraction" if t.is_wgmma else "contraction"
        template = ", ".join([*map(str, wide_parts if t.is_wgmma else parts), "A", "B"])
        to = "n * stride + m" if self.output.by_rows else "m * stride + n"
        body = [
            "extern __shared__ __align__(16) unsigned char shared[];",  # as in every kernel of a source
            "float* const memory = reinterpret_cast<float*>(shared);",
            f"typedef {kinds[0]} A;",
            f"typedef {kinds[1]} B;",
            *self._place("blockIdx.x", "blockIdx.z"),
            *self._bounds(),
            *(self._places() if not t.uses_tma else []),
            f"ca::{kind}<{template}> sums;",
            *self._add(),
            f"constexpr int first_thread = {t.preparing}, own_threads = {threads - t.preparing};",
            f"constexpr int stride = {(t.tile_m if self.output.by_rows else t.tile_n) + 4};",
            f"sums.each([&](int m, int n, float v) {{ memory[{to}] = v; }});",
            self.meeting,
            *tail,
        ]
        head = f'extern "C" __global__ void __launch_bounds__({threads})'
        return "\n".join([head, f"{self.name}({', '.join(parameters)}) {{", *indented(body), "}"])

    def _parameters(self) -> list[str]:
        """Declarations, tensor maps apart."""
        if self.tiles.split == 1:
            return parameters_of(self.region, self.reads, self.writes)
        operands = parameters_of(self.region, self._operands, [])
        return [*operands, f"float* __restrict__ {self._partial}"]

    def _place(self, number: str, batch: str) -> list[str]:
        """Where a tile is: ``number`` of its batch, expressions as ``batch``."""
        c, t = self.gemm, self.tiles
        high, wide = self.grid
        return [
            "int tile_m, tile_n;",
            f"ca::place_of<{high}, {wide}, {min(GROUP, high)}>({number}, tile_m, tile_n);",
            *([] if self.bands is None else self.bands.longest_first(high, wide)),
            f"const int row0 = tile_m * {self.own_rows}, column0 = tile_n * {self.own_columns};",
            *([f"const int batch = {batch};"] if c.batch or t.split > 1 else []),
            *decompose("batch", c.batch, self.index),
        ]

    def _places(self) -> list[str]:
        """Functions that say where an operand's elements are."""
        m, n = self.gemm.m, self.gemm.n
        return [
            *self._find(self.left, m),
            *self._find(self.right, n),
            *self._rows_and_terms(self.left, m),
            *self._rows_and_terms(self.right, n),
        ]

    def _bounds(self) -> list[str]:
        """The block's terms, none where no result depends on them. Where it leaves some out, their numbers are those of
        the others, in order."""
        k, t, taps = self.gemm.k, self.tiles, self.taps
        needed = needed_tile(self.needed, t.tile_m, t.tile_n)
        if self.bands is not None:
            return self.bands.bounds(t.tile_m, t.tile_n, t.step, t.split, needed)
        if taps is None:
            first, end = self._own_terms(str(k))
            if needed:
                end = f"{needed} ? {end} : first"
            return [f"const int first = {first}, end = {end};"]
        tiles = taps.of_tiles(t.tile_n)
        listed = [sum(tap << 4 * n for n, tap in enumerate(tile)) for tile in tiles]
        first, end = self._own_terms(f"tap_count * {k // taps.count}")
        return [
            f"const uint64_t taps = {_by_tile([f'0x{number:x}ull' for number in listed])};",
            f"const int tap_count = {_by_tile([str(len(tile)) for tile in tiles])};",
            f"const int first = {first}, end = {end};",
            "auto term_of = [&](int k) {",
            f"  return k < end ? k / tap_count * {taps.count} + int(taps >> k % tap_count * 4 & 15) : {k};",
            "};",
        ]

    def _own_terms(self, terms: str) -> tuple[str, str]:
        """The first and the end of the block's terms, out of ``terms`` of its tile."""
        if self.tiles.split == 1:
            return "0", terms
        share = self._share(terms, self.tiles.split)
        return (
            f"blockIdx.y * {share if share.isdigit() else f'({share})'}",
            f"min(first + {share}, {terms})",
        )

    def _share(self, terms: str, parts: int) -> str:
        """The terms of each of so many blocks, in whole steps."""
        step = self.tiles.step
        if terms.isdigit():
            return str(ceildiv(ceildiv(int(terms), step), parts) * step)
        return f"({terms} + {step * parts - 1}) / {step * parts} * {step}"

    def _kind(self, side: Side, rows: int) -> str:
        t = self.tiles
        along, pairs = (str(flag).lower() for flag in (side.along_k, self._pairs(side)))
        copying = t.preparing or t.threads
        if side.factor.is_quantized:
            element = STORAGE_TYPES[self._dtype(side.factor.buffer)]
            sizes = f"{rows}, {t.depth}, {along}, {side.vector}, {copying}"
            return f"ca::coded_operand<{element}, {side.factor.zero}, {sizes}>"
        if t.uses_tma:
            return f"ca::boxed_operand<{self.element}, {rows}, {along}>"
        if t.is_half_wgmma:
            return (
                f"ca::wide_half_operand<{self.element}, {rows}, {along}, {side.vector}, {copying}>"
            )
        if self.gemm.is_half:
            sizes = f"{rows}, {t.depth}, {along}, {side.vector}, {copying}"
            return f"ca::half_operand<{self.element}, {sizes}>"
        return f"ca::operand<{rows}, {t.depth}, {along}, {side.vector}, {copying}, {pairs}>"

    def _add(self) -> list[str]:
        def copy(side: Side, start: str) -> str:
            name = side.name
            if self._gather(side) is not None:
                own_row = "lane_row" if side.along_k else "own_row"
                own = f"{start} + {name.upper()}::{own_row}()"
                return f"ca::gathered(row_{name}({own}), term_{name})"
            term = "k" if self.taps is None else "term_of(k)"
            if self.gemm.is_half or (side is self.right and self.tiles.splits_in_registers):
                found = f"find_{name}({start} + x, {term}, there)"
                return f"[&](int x, int k, bool& there) {{ return {found}; }}"
            place = f"bool there; const auto* const from = find_{side.name}({start} + x, {term}, there);"
            to, kind = ("uint8_t", "codes") if side.factor.is_quantized else ("float", "async")
            copied = f"ca::copy_{kind}_if<{side.vector}>(to, from, there);"
            return f"[&]({to}* to, int x, int k) {{ {place} {copied} }}"

        if self.tiles.uses_tma:
            copies = [f"  {self._copy_box(0, 'row0')},", f"  {self._copy_box(1, 'column0')});"]
            prepare = ["sums.prepare(memory, first, end,", *copies, "return;"]
            return [
                "sums.begin(memory);", "if (sums.prepares()) {", *indented(prepare), "}",
                "sums.add(memory, first, end);",
            ]  # fmt: skip
        copies = [
            f"  {copy(self.left, 'row0')},",
            f"  {copy(self.right, 'column0')});",
        ]
        if not self.tiles.preparing:
            return ["sums.add(memory, first, end,", *copies]
        prepare = ["sums.prepare(memory, first, end,", *copies, "return;"]
        return [
            "if (sums.prepares()) {", *indented(prepare), "}", "sums.add(memory, first, end);"
        ]  # fmt: skip

    def _copy_box(self, number: int, start: str) -> str:
        side, row = (self.left, self.right)[number], f"{start} + x"
        near = ("k", row) if side.along_k else (row, "k")
        at = ", ".join([*near, *(f"int({c_index(s)})" for s in self.boxes[number].batch)])
        copy = f"ca::copy_box(to, map_{side.name}, barrier, {at});"
        return f"[&](float* to, int x, int k, uint64_t* barrier) {{ {copy} }}"

    def _find(self, side: Side, size: int) -> list[str]:
        guards = [f"x < {size}"] if self._overhangs(side, size) else []
        whole = self.gemm.k % self.tiles.step == 0 and self.tiles.split == 1
        if self.taps is not None:
            guards.append(f"k < {self.gemm.k}")
        elif not whole:
            guards.append("k < end")
        return find_lines(side, " && ".join(guards), self.index, self._dtype, f"find_{side.name}")

    def _overhangs(self, side: Side, size: int) -> bool:
        """Whether some tile has rows beyond the last of an operand."""
        tile = self._tile(side)
        own = self.own_rows if side.name == "a" else self.own_columns
        return size % own > 0 or own < tile

    def _mask(self, mask: Body) -> list[str]:
        return mask_lines(mask, self._dtype)

    def _tile(self, side: Side) -> int:
        return self.tiles.tile_m if side.name == "a" else self.tiles.tile_n

    def _gather(self, side: Side) -> Gather | None:
        """Where each thread copies elements of one row only, what is the row's is worked out once; of one term only,
        what is the term's once a stage."""
        t, rows = self.tiles, self._tile(side)
        if side.along_k:
            return gather_of(side) if self._one_term(side) else None
        threads, longest = t.preparing or t.threads, 64 if self.gemm.is_half else 32
        one_row = threads % rows == 0 and t.depth % (threads // rows) == 0 and t.depth <= longest
        return gather_of(side) if one_row else None

    def _one_term(self, side: Side) -> bool:
        """Whether each thread copies elements of one term of a stage only, and a warp's lanes hold all its rows."""
        t, rows = self.tiles, self._tile(side)
        threads = t.preparing or t.threads
        if self.taps is not None or (side is self.right and t.splits_in_registers):
            return False
        whole = threads % t.depth == 0 and rows * t.depth % threads == 0
        return whole and rows * t.depth // threads <= min(t.depth, 32)

    def _rows_and_terms(self, side: Side, size: int) -> list[str]:
        """Functions that give a row's and a term's part of a place (`Gather`)."""
        found = self._gather(side)
        if found is None:
            return []
        taps, mask = points(found.taps), side.factor.mask
        present = [*decompose("tap", found.taps, self.index), *self._mask(mask)] if mask else []
        end = "end" if self.taps is None else str(self.gemm.k)
        rows, terms = ("x", side.rows.dims, str(size)), ("k", side.inner.dims, end)
        (own, dims, limit), (away, others, beyond) = (
            (terms, rows) if side.along_k else (rows, terms)
        )
        based = [
            *decompose(own, dims, self.index),
            f"const {self.element}* const base = m_{side.factor.buffer} + {c_index(found.base)};",
            f"{found.bits} bits = 0;",
            "#pragma unroll" if side.along_k else "#pragma unroll 1",  # every stage, or once
            f"for (int tap = 0; tap < {taps}; ++tap) {{",
            *indented([*present, f"bits |= {found.bits}({'present' if mask else '1'}) << tap;"]),
            "}",
            f"if ({own} >= {limit}) bits = 0;",
            f"return ca::gather_row<{found.bits}, {self.element}>{{base, bits}};",
        ]
        tap, stride = sympy.Integer(0), 1
        for symbol, count in reversed(found.taps):
            tap, stride = tap + stride * symbol, stride * count
        further = [
            *([] if self.taps is None else ["const int k = term_of(n);"]),
            *decompose(away, others, self.index),
            f"const int tap = {away} < {beyond} ? int({c_index(tap)}) : {taps};",
            f"return ca::gather_term<{self.index}>{{{c_index(found.offset)}, tap}};",
        ]
        row, term = (further, based) if side.along_k else (based, further)
        return [
            f"auto row_{side.name} = [&](int x) {{", *indented(row), "};",
            f"auto term_{side.name} = [&](int {'k' if self.taps is None else 'n'}) {{", *indented(term), "};",
        ]  # fmt: skip

    @property
    def meeting(self) -> str:
        """A barrier of the threads that multiply."""
        return "sums.meet_multiplying();" if self.tiles.preparing else "__syncthreads();"

    @property
    def element(self) -> str:
        """The operands' type in memory."""
        return STORAGE_TYPES[self.gemm.dtype]

    def _dtype(self, buffer: str) -> torch.dtype:
        return self.region.buffers[buffer].dtype

    @property
    def _anew(self) -> bool:
        """Whether a sum that is not finite may be wrong. 16-bit factors are not split, but those that are not there
        are zeros to the tensor core, whose product with an infinity is none."""
        return not self.gemm.is_half or self.left.factor.absent or self.right.factor.absent

    def _exact(self) -> list[str]:
        """A sum anew, term by term: for those that are not finite, as infinities do not survive the tensor cores.

        And for those that are the largest number, which is what cutting off may make of an overflow.
        """
        c = self.gemm
        batch = bool(c.batch)
        beside = [] if self.bands is None else self.bands.beside(self.name, batch)
        if not self._anew:
            return beside
        sides = ((self.left, "a"), (self.right, "b"))
        present = [name for side, name in sides if side.factor.absent]
        x, y = (self._number(side, at) for side, at in ((self.left, "x"), (self.right, "y")))
        factors = [self._scale("a", c.left), self._scale("b", c.right)]
        return [
            "auto exact = [&](int m, int n) {",
            *indented(self._scale_lines("m", "n", None, 1)),
            "  float total = 0.f;",
            "#pragma unroll 1",
            f"  for (int k = 0; k < {c.k}; ++k) {{",
            "    bool a, b;",
            "    const auto* const x = find_a(m, k, a);",
            "    const auto* const y = find_b(n, k, b);",
            f"    if (!({' && '.join(present) or 'true'})) continue;",
            f"    total = fmaf(a ? {x}{factors[0]} : 0.f, b ? {y}{factors[1]} : 0.f, total);",
            "  }",
            "  return total;",
            "};",
            *beside,
        ]

    def store_tail(self) -> list[str]:
        """The tail on a block's tile of results."""
        return [*self._exact(), *self._each_result([self._summed_up, *self._tail()])]

    @property
    def _summed_up(self) -> str:
        """``total``: results at a place of the block's tile."""
        at = "n * stride + m" if self.output.by_rows else "m * stride + n"
        return f"auto total = ca::load<L>(memory + {at});"

    @property
    def stored_columns(self) -> int:
        """Of the part of the block's tile that is stored at a time."""
        return self.tiles.tile_n

    def _each_result(self, body: Sequence[str]) -> list[str]:
        """``body`` for each ``L`` results of a tile, the `i`-th in the tail's order, from `row` and `column` on."""
        v, rows, columns = self.output.vector, self.tiles.tile_m, self.stored_columns
        high, wide = (columns, rows) if self.output.by_rows else (rows, columns)
        slow, fast = f"i / {wide // v}", f"i % {wide // v} * {v}"
        if self.output.across:
            near = self.output.across // v
            slow, fast = (
                f"i / {near} % {high}",
                f"i / {near * high} * {near * v} + i % {near} * {v}",
            )
        m, n = (fast, slow) if self.output.by_rows else (slow, fast)
        body = [*self._numbered(m, n), *body]
        return [
            f"constexpr int L = {v};",
            f"for (int i = threadIdx.x - first_thread; i < {high * wide // v}; i += own_threads) {{",
            *indented(body),
            "}",
        ]

    def _numbered(self, m: str, n: str) -> list[str]:
        """``row`` and ``column`` of a result of the tile; those that there are none of are left out."""
        c, t = self.gemm, self.tiles
        inside = [f"m < {self.own_rows}"] if self.own_rows < t.tile_m else []
        inside += [f"row < {c.m}"] if c.m % self.own_rows else []
        inside += [f"n < {self.own_columns}"] if self.own_columns < t.tile_n else []
        inside += [f"column < {c.n}"] if c.n % self.own_columns else []
        return [
            f"const int m = {m}, n = {n}, row = row0 + m, column = column0 + n;",
            *([f"if (!({' && '.join(inside)})) continue;"] if inside else []),
        ]

    def _tail(self) -> list[str]:
        return [
            *self._repaired(),
            *tail_lines(self.kernel, self.gemm, self.region, self.output, self.index),
        ]

    def _repaired(self) -> list[str]:
        """Sums of ``total`` that are not what they seem."""
        step = ("row + i", "column") if self.output.by_rows else ("row", "column + i")
        exactly = [
            "#pragma unroll",
            "for (int i = 0; i < L; ++i)",
            f"  if (!(fabsf(total.v[i]) < 3.402823466e38f)) total.v[i] = exact({', '.join(step)});",
        ]
        unknown = [
            "#pragma unroll",
            "for (int i = 0; i < L; ++i)",
            f"  if (beside({', '.join(step)})) total.v[i] = NAN;",
        ]
        return [
            *self._scaled(),
            *(exactly if self._anew else []),
            *(unknown if self.bands is not None else []),
        ]

    # --- what operands of codes are scaled by ---

    @property
    def _scales(self) -> list[Body]:
        factors = (self.gemm.left, self.gemm.right)
        return [f.scale for f in factors if f.scale is not None]

    def _number(self, side: Side, place: str) -> str:
        """What an operand's element stands for, before it is scaled."""
        if side.factor.is_quantized:
            return f"float(int(*{place}) - {side.factor.zero})"
        return f"ca::widen(*{place})"

    def _scale(self, name: str, factor: Factor) -> str:
        """The first result of `_scale_lines` as a factor behind an element."""
        if factor.scale is None:
            return ""
        return f" * {name}{factor.scale.results[0].number}.v[0]"

    def _scale_lines(
        self, row: str, column: str, lane: sympy.Symbol | None, width: int
    ) -> list[str]:
        """Values ``a<number>`` and ``b<number>``: what a row and a column are scaled by."""
        if not self._scales:
            return []
        c = self.gemm
        printer = LanePrinter(lane, lambda b: f"m_{b}", _no_local, self._dtype, "", width)
        return [
            f"constexpr int L = {width};",
            *decompose(row, c.rows, self.index),
            *decompose(column, c.columns, self.index),
            *(printer.lines(c.left.scale, "a") if c.left.scale is not None else []),
            *(printer.lines(c.right.scale, "b") if c.right.scale is not None else []),
        ]

    def _scaled(self) -> list[str]:
        """Multiplies sums of ``total`` by what operands are scaled by: before what is not finite is found out, as an
        infinite scale makes nothing of terms that are 0, and a small one brings back what is too large without it."""
        if not self._scales:
            return []
        c, output = self.gemm, self.output
        lane = (c.rows if output.by_rows else c.columns)[-1][0]
        sides = (("a", c.left.scale), ("b", c.right.scale))
        names = [f"{name}{scale.results[0].number}" for name, scale in sides if scale is not None]
        return [
            "{",
            *indented(self._scale_lines("row", "column", lane, output.vector)),
            *(f"  total = ca::scale_sums(total, {name});" for name in names),
            "}",
        ]

    # --- sums shared by several blocks ---

    @property
    def _operands(self) -> list[str]:
        return sorted({*self.left.factor.buffers, *self.right.factor.buffers})

    @property
    def _partial(self) -> str:
        return f"{self.name}_partial"

    def _split(self) -> Emitted:
        c, t = self.gemm, self.tiles
        elements = c.batches * c.m * c.n
        partial: PlanBuffer = temporary(self._partial, torch.float32, elements * t.split)
        high, wide = (c.n, c.m) if self.output.by_rows else (c.m, c.n)
        keep = self._keep(high, wide)
        joined, launch = self._join(*self._made)
        return Emitted(
            (self._text(keep), joined),
            (self._launch(), launch),
            (partial,),
        )

    @property
    def _made(self) -> tuple[int, int, int]:
        """How many results the second kernel makes, and how many lines of how many a batch has of them."""
        c = self.gemm
        high, wide = (c.n, c.m) if self.output.by_rows else (c.m, c.n)
        return c.batches * c.m * c.n, high, wide

    def _keep(self, high: int, wide: int) -> list[str]:
        """Partial sums to memory, as the second kernel will read them."""
        c, t = self.gemm, self.tiles
        tile_high, tile_wide = (t.tile_n, t.tile_m) if self.output.by_rows else (t.tile_m, t.tile_n)
        slow, fast = ("column0", "row0") if self.output.by_rows else ("row0", "column0")
        at = f"((int64_t(blockIdx.y) * {c.batches} + batch) * {high} + y) * {wide} + x"
        return [
            f"for (int i = threadIdx.x - first_thread; i < {tile_high * tile_wide}; i += own_threads) {{",
            f"  const int own_y = i / {tile_wide}, own_x = i % {tile_wide}, y = {slow} + own_y, x = {fast} + own_x;",
            f"  if (y < {high} && x < {wide}) {self._partial}[{at}] = memory[own_y * stride + own_x];",
            "}",
        ]

    def _join(self, elements: int, high: int, wide: int) -> tuple[str, Launch]:
        c, v = self.gemm, self.output.vector
        name, extra = f"{self.name}_join", self.reads
        body = [
            f"constexpr int L = {v};",
            f"const {self.index} at = ({self.index}(blockIdx.x) * {TAIL_THREADS} + threadIdx.x) * L;",
            f"if (at >= {elements}) return;",
            f"const int x = at % {wide}, y = at / {wide} % {high}, end = {c.k};",
            *([f"const int batch = at / (int64_t({wide}) * {high});"] if c.batch else []),
            *self._joined_place(),
            *decompose("batch", c.batch, self.index),
            *([*self._find(self.left, c.m), *self._find(self.right, c.n)] if self._anew else []),
            *self._exact(),
            *self._joined_results(),
        ]
        parameters = [
            *parameters_of(self.region, extra, []),
            f"const float* __restrict__ {self._partial}",
            *parameters_of(self.region, [], self.writes),
        ]
        head = f'extern "C" __global__ void __launch_bounds__({TAIL_THREADS})'
        text = "\n".join([head, f"{name}({', '.join(parameters)}) {{", *indented(body), "}"])
        blocks = ceildiv(math.ceil(elements / v), TAIL_THREADS)
        launch = Launch(
            name, (blocks, 1, 1), (TAIL_THREADS, 1, 1), 0, (*extra, self._partial, *self.writes)
        )
        return text, launch

    def _joined_place(self) -> list[str]:
        """Which results a thread of the second kernel adds up."""
        if self.output.by_rows:
            return ["const int row = x, column = y;"]
        return ["const int row = y, column = x;"]

    def _joined_results(self) -> list[str]:
        """Their sums, and the tail."""
        return [*self._added_up("at"), *self._tail()]

    def _added_up(self, place: str) -> list[str]:
        """``total`` of what blocks found for the results at a place."""
        c = self.gemm
        elements = c.batches * c.m * c.n
        return [
            "auto total = ca::splat<float, L>(0.f);",
            "#pragma unroll",
            f"for (int s = 0; s < {self.tiles.split}; ++s)",
            f"  total = ca::add(total, ca::load<L>({self._partial} + int64_t(s) * {elements} + {place}));",
        ]


def find_lines(
    side: Side, guard: str, index: str, dtype_of: Callable[[str], torch.dtype], name: str
) -> list[str]:
    """A function from row (or column) ``x`` and term to the element's place, and whether there is one."""
    lines = [
        *decompose("x", side.rows.dims, index),
        *decompose("k", side.inner.dims, index),
        f"there = {guard or 'true'};",
    ]
    if side.factor.mask is not None:
        lines += [*mask_lines(side.factor.mask, dtype_of), "there = there && present;"]
    base = f"m_{side.factor.buffer}"
    if side.factor.other is not None:
        other, loop = side.factor.other
        base = f"({loop} ? m_{other} : {base})"
    lines.append(f"return {base} + {c_index(side.index)};")
    return [f"auto {name} = [&](int x, int k, bool& there) {{", *indented(lines), "};"]


def mask_lines(mask: Body, dtype_of: Callable[[str], torch.dtype]) -> list[str]:
    """``present``: what a factor's mask says."""
    printer = LanePrinter(None, lambda b: f"m_{b}", _no_local, dtype_of, "")
    return [
        "constexpr int L = 1;",
        *printer.lines(mask, "q"),
        f"const bool present = q{mask.results[0].number}.v[0];",
    ]


def tail_lines(
    kernel: Kernel, c: GemmForm, region: LoweredRegion, output: Output, index: str
) -> list[str]:
    """What is made of ``total``, results from ``row`` and ``column`` on, and where it is stored."""
    lane = (c.rows if output.by_rows else c.columns)[-1][0]
    forwarded: dict[str, str] = {}

    def local(i: Instruction) -> str:
        if i.buffer is None or i.buffer not in forwarded:
            raise Unsupported("a value of the tail that is not there")
        return forwarded[i.buffer]

    types, buffers = local_types(kernel), region.buffers
    printer = LanePrinter(
        lane, lambda b: f"m_{b}", local, lambda b: buffers[b].dtype, "", output.vector
    )
    out = [*decompose("row", c.rows, index), *decompose("column", c.columns, index)]
    for number, stage in enumerate(kernel.stages):
        value = "total"
        if number:
            prefix = f"s{number}v"
            out += printer.lines(stage.body, prefix)
            value = f"{prefix}{stage.body.results[0].number}"
        out += [printer.store(s.buffer, s.index, value) for s in stage.stores]
        forwarded |= {s.buffer: f"ca::to<{types[s.buffer]}>({value})" for s in stage.local_stores}
    return out


def _by_tile(values: list[str]) -> str:
    """An expression for the value of the block's tile by columns."""
    runs = [(v, len(list(same))) for v, same in itertools.groupby(values)]
    ends = itertools.accumulate(count for _, count in runs)
    cases = [f"tile_n < {end} ? {v} : " for (v, _), end in zip(runs[:-1], ends, strict=False)]
    return "".join([*cases, runs[-1][0]])


def _no_local(i: Instruction) -> str:
    raise Unsupported("a factor that is made in the kernel")
