"""The source of a GEMM's main loop: which tile a block has, where operands' elements are, and how they are copied."""

from __future__ import annotations

import itertools

import sympy

from cuda_agent_backend.codegen.analysis.gemm import points
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented
from cuda_agent_backend.codegen.cuda.gemm.banded import (
    needed_tile,
)
from cuda_agent_backend.codegen.cuda.gemm.facts import GemmFacts
from cuda_agent_backend.codegen.cuda.gemm.lines import find_lines, mask_lines
from cuda_agent_backend.codegen.cuda.gemm.operands import Gather, Side, gather_of
from cuda_agent_backend.codegen.cuda.gemm.templates import (
    HalfOperand,
    HalfWarpMma,
    HalfWgmma,
    Operand,
    QuantizedOperand,
    SplitWgmma,
    Template,
    TmaOperand,
    TmaWgmma,
    WarpMma,
    WarpTile,
    WgmmaOperand,
)
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.printer import STORAGE_TYPES, c_index
from cuda_agent_backend.codegen.ir.ssa import Body

GROUP = 8
"""Rows of tiles that are worked on together."""


class MainLoopWriter(GemmFacts):
    """Writes the lines that declare a block's tile and add up its products."""

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

    @property
    def _sums(self) -> Template:
        """The type that multiplies and adds up."""
        t = self.tiles
        if t.is_half_wgmma:
            kind = TmaWgmma if t.uses_tma else HalfWgmma
            return kind(block_m=t.tile_m, block_n=t.tile_n, stages=t.stages)
        if t.is_wgmma:
            return SplitWgmma(
                block_m=t.tile_m,
                block_n=t.tile_n,
                stages=t.stages,
                run=t.run,
                products=t.products,
                in_registers=int(t.splits_in_registers),
            )
        tile = WarpTile(
            block_m=t.tile_m,
            block_n=t.tile_n,
            depth=t.depth,
            warp_m=t.warp_m,
            warp_n=t.warp_n,
            warps_k=t.warps_k,
            stages=t.stages,
        )
        return HalfWarpMma(tile) if self.gemm.is_half else WarpMma(tile, t.run, t.products)

    def _operand(self, side: Side) -> Template:
        """The type of an operand in shared memory."""
        t, rows, along = self.tiles, self._tile(side), side.along_k
        copying = t.preparing or t.threads
        if side.factor.is_quantized:
            element = STORAGE_TYPES[self._dtype(side.factor.buffer)]
            zero = side.factor.zero
            return QuantizedOperand(element, zero, rows, t.depth, along, side.vector, copying)
        if t.uses_tma:
            return TmaOperand(self.element, rows, along)
        if t.is_half_wgmma:
            return WgmmaOperand(self.element, rows, along, side.vector, copying)
        if self.gemm.is_half:
            return HalfOperand(self.element, rows, t.depth, along, side.vector, copying)
        return Operand(rows, t.depth, along, side.vector, copying, self._pairs(side))

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


def _by_tile(values: list[str]) -> str:
    """An expression for the value of the block's tile by columns."""
    runs = [(v, len(list(same))) for v, same in itertools.groupby(values)]
    ends = itertools.accumulate(count for _, count in runs)
    cases = [f"tile_n < {end} ? {v} : " for (v, _), end in zip(runs[:-1], ends, strict=False)]
    return "".join([*cases, runs[-1][0]])
