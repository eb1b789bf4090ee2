"""Scans with lanes along the row.

A thread scans its vectors, a warp what its threads come to, a block what its warps come to, a cluster what its blocks
come to; then each adds to its own what goes before it.
"""

from __future__ import annotations

from cuda_agent_backend.codegen.cuda.common.parts import BYTES
from cuda_agent_backend.codegen.cuda.common.text import block, indented
from cuda_agent_backend.codegen.cuda.rows.scan.base import ScanText, each_held
from cuda_agent_backend.codegen.ir.device import WARP
from cuda_agent_backend.codegen.ir.failure import Unsupported


class InnerScan(ScanText):
    """Lanes along the row. Tiles of it are held in registers; ``carry`` goes from tile to tile."""

    @property
    def narrow(self) -> bool:
        return (self.type, self.result) == ("double", "float")

    def lines(self) -> list[str]:
        start, prior = self.prior()
        carry = f"{self.type} carry = {prior}.v[0];"
        lanes = f"constexpr int L = {self.layout.vector};"
        return [*start, *block([lanes, carry, *self._tiles(self._held)])]

    def _tiles(self, held: int) -> list[str]:
        """The row in tiles of ``held`` vectors of each thread."""
        tile = [*self._found(held), *self._given(held)]
        loop = f"for (int base = 0; base < {self.layout.chunks}; base += {held}) {{"
        return [loop, *indented(tile), "}"]

    def _found(self, held: int) -> list[str]:
        """``held``: what lanes scan by themselves; ``before``: what goes before each vector."""
        layout, kind, op = self.layout, self.type, self.op
        width = min(layout.team, WARP)
        lanes, whole = f"ca::scan_lanes<{op}>(VALUE)", f"held[h].v[{layout.vector - 1}]"
        if self.narrow:
            lanes, whole = "ca::to<float>(VALUE)", f"ca::scan_whole<{op}>(ca::to<{kind}>(held[h]))"
        own = self.result if self.narrow else kind
        values = self.values(f"held[h] = {lanes};")
        across = (
            self._across_warps(held)
            if layout.warps > 1 or layout.clustered
            else self._within_warp(held, width)
        )
        return [
            f"ca::vec<{own}, {layout.vector}> held[{held}];",
            f"{kind} whole[{held}], before[{held}];",
            *each_held(
                held,
                [
                    f"held[h] = ca::splat<{own}, L>({own}({self.identity}));",
                    self._at,
                    "if (q < limit) {",
                    *indented(values),
                    "}",
                    f"whole[h] = {whole};",
                ],
            ),
            *each_held(
                held,
                [
                    f"whole[h] = ca::scan_warp<{op}, {width}>(whole[h]);",
                    f"before[h] = __shfl_up_sync(0xffffffffu, whole[h], 1, {width});",
                    f"if ((t & {width - 1}) == 0) before[h] = {self.identity};",
                ],
            ),
            *across,
        ]

    def _given(self, held: int) -> list[str]:
        """Stores of a tile that was found."""
        found, before = (
            f"ca::scan_join<{self.op}>(ca::splat<{self.type}, L>(before[h]), held[h])",
            "before[h]",
        )
        if self.narrow:
            found, before = f"ca::scan_onto<{self.op}>(before[h], held[h])", "float(before[h])"
        give = self.finish(found, f"ca::scan_shifted({before}, {found})")
        return each_held(held, [self._at, "if (q < limit) {", *indented(give), "}"])

    @property
    def _at(self) -> str:
        layout = self.layout
        place = f"const int k = base + h, q = (k * {layout.team} + t) * {layout.vector};"
        return f"{place} const {layout.index_type} j = first + q;"

    @property
    def _held(self) -> int:
        layout = self.layout
        return (
            layout.chunks
            if layout.keep == "registers"
            else max(1, min(layout.unroll, layout.chunks))
        )

    @property
    def _in_turn(self) -> bool:
        """Whether a tile in which numbers end is found again from left to right: what ends them depends on that."""
        product = self.op == "ca::scan_prod" and self.type == "double"
        return product and not self.layout.clustered

    def _within_warp(self, held: int, width: int) -> list[str]:
        last = f"__shfl_sync(0xffffffffu, whole[h], {width - 1}, {width})"
        if BYTES[self.type] < 4:  # of which an exchange makes int
            last = f"{self.type}({last})"
        out = each_held(
            held,
            [
                f"before[h] = {self.op}::join(carry, before[h]);",
                f"carry = {self.op}::join(carry, {last});",
            ],
        )
        if not self._in_turn:
            return out
        turn = f"start = ca::scan_in_turn<{self.op}, {width}>(start, held[h], before[h]);"
        return [
            "double start = carry;",
            *out,
            "if (__any_sync(0xffffffffu, ca::scan_left(start, carry))) {",
            *indented(each_held(held, [turn])),
            "  carry = start;",
            "}",
        ]

    def _across_warps(self, held: int) -> list[str]:
        """``before[h]`` grows by all that goes before this warp's part, and ``carry`` by the whole tile."""
        layout, warps, op = self.layout, self.layout.warps, self.op
        looped, width, name = held < layout.chunks, BYTES[self.type], self.name
        if layout.clustered and (looped or width < 4):
            raise Unsupported(
                "a scan across a cluster of small integers, or of segments not in registers"
            )
        count = held * warps
        self.memory.take(f"totals{name}", self.type, count * layout.across, width)
        self.memory.take(f"tiles{name}", self.type, layout.across * layout.segments, width)
        slots, tiles = f"(totals{name} + r * {count})", f"tiles{name}"
        out = [
            f"if ((t & 31) == 31) for (int h = 0; h < {held}; ++h) {slots}[h * {warps} + t / 32] = whole[h];",
            "__syncthreads();",
            "if (t < 32) {",
            f"  const {self.type} all = ca::scan_shared<{op}, {count}>({slots});",
        ]
        if layout.clustered:
            out += [
                f"  if (t < {layout.segments}) ca::store_remote({tiles} + segment, t, all);",
                "}",
                "ca::cluster_arrive();",
                "ca::cluster_wait();",
                f"for (int c = 0; c < segment; ++c) carry = {op}::join(carry, {tiles}[c]);",
            ]
        else:
            out += [f"  if (t == 0) {tiles}[r] = all;", "}", "__syncthreads();"]
        mine = f"{op}::join({slots}[h * {warps} + t / 32], before[h])"
        out += [
            "#pragma unroll",
            f"for (int h = 0; h < {held}; ++h) before[h] = {op}::join(carry, {mine});",
        ]
        if self._in_turn:
            out += [
                f"{self.type} after = {op}::join(carry, {tiles}[r]);",
                *self._warps_in_turn(held),
            ]
        elif looped:
            out += [f"const {self.type} after = {op}::join(carry, {tiles}[r]);"]
        return [*out, "carry = after;", "__syncthreads();"] if looped else out

    def _warps_in_turn(self, held: int) -> list[str]:
        """What goes before vectors, and ``after`` the tile, found from left to right where numbers end in it."""
        layout, tiles = self.layout, f"tiles{self.name}"
        ended = "ca::scan_left(carry, after)"
        if layout.across > 1:
            ended = f"__syncthreads_or({ended})"
        turn = [
            f"for (int w = 0; w < {layout.warps}; ++w) {{",
            "  __syncthreads();",
            f"  if (t / 32 == w) {tiles}[r] = ca::scan_in_turn<{self.op}, {WARP}>(after, held[h], before[h]);",
            "  __syncthreads();",
            f"  after = {tiles}[r];",
            "}",
        ]
        return [f"if ({ended}) {{", "  after = carry;", *indented(each_held(held, turn)), "}"]
