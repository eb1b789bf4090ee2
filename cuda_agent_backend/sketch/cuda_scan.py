"""Scans along a row: within a thread, then its warp, its block, its cluster, each level as a tree or nearly so.

A row that is split over launches is read twice: a first launch leaves the total of every segment in memory, and the
second starts each segment from what goes before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_agent_backend.sketch.cuda_frame import block, indented, position_loop
from cuda_agent_backend.sketch.cuda_join import join, load_partials, store_partial
from cuda_agent_backend.sketch.cuda_layout import WARP
from cuda_agent_backend.sketch.cuda_parts import BYTES, Accumulator, stage_dtype
from cuda_agent_backend.sketch.nest import RowStage
from cuda_agent_backend.sketch.printer import COMPUTE_TYPES
from cuda_agent_backend.sketch.ssa import Unsupported

if TYPE_CHECKING:
    from cuda_agent_backend.sketch.cuda_rows import RowWriter


def scan_pass(writer: RowWriter, number: int) -> list[str]:
    """Statements of the scan that is pass ``number``."""
    p, layout = writer.program.passes[number], writer.layout
    (stage,) = p.stages
    if len(p.inner) != 1 or stage.points != layout.points:
        raise Unsupported("scan over part of a row")
    made = {s.buffer for s in stage.local_stores} & writer.program.shared
    if made and layout.segments > 1:
        raise Unsupported("an array read across the segments of a row")
    scan = _InnerScan if layout.inner else _OuterScan
    return [*scan(writer, number, stage).lines(), *(["__syncthreads();"] if made else [])]


def scan_total(writer: RowWriter, number: int) -> list[str]:
    """Statements that leave the total of this block's segment in memory."""
    layout, ((name, acc),) = writer.layout, writer.totals(number)
    body = _values(writer, number, acc, f"a{name}.update(VALUE);")
    return [
        f"{acc.of(layout.vector)} a{name};",
        *position_loop(layout, body),
        f"constexpr int L = {layout.vector};",
        *join(layout, writer.memory, [(name, acc)], cluster=False),
        *store_partial(layout, name, acc),
    ]


def _values(writer: RowWriter, number: int, acc: Accumulator, use: str) -> list[str]:
    """The body at one position and a statement that uses its value."""

    def at_end(_: int, stage: RowStage, value: str) -> list[str]:
        return [use.replace("VALUE", f"ca::to<{acc.value}>({value})")]

    return [*writer.program.flats[number].statements, *writer.bodies(number, at_end)]


class _Scan:
    """What both lane modes share: names, and what goes before this block's segment."""

    def __init__(self, writer: RowWriter, number: int, stage: RowStage) -> None:
        self.writer, self.number, self.layout, self.memory = (
            writer,
            number,
            writer.layout,
            writer.memory,
        )
        ((self.name, self.acc),) = writer.totals(number)
        self.type, self.op = self.acc.value, f"ca::scan_{stage.combine}"
        self.result = COMPUTE_TYPES[stage_dtype(stage)]
        self.identity = f"{self.op}::identity<{self.type}>()"
        flat = writer.program.flats[number]
        self.statements = list(flat.statements)
        p = writer.program.passes[number]
        self.stores = writer.stores(p, flat, stage, "scanned", writer.row_guard)

    def prior(self) -> tuple[list[str], str]:
        """Statements, and the value that goes before this segment, of ``scalar_lanes`` lanes."""
        lanes = self.layout.scalar_lanes
        if self.writer.source_segments == 1:
            return [], f"ca::splat<{self.type}, {lanes}>({self.identity})"
        loads = load_partials(
            self.layout, self.writer.source_segments, self.name, self.acc, "segment"
        )
        joined = self.writer.join_lanes(self.name, self.acc)
        return [*loads, *joined], f"f{self.name}.result()"

    def scanned(self, found: str) -> str:
        """The statement that names what was found, in the type that the stage has."""
        wide = self.type != self.result
        return f"const auto scanned = {f'ca::to<{self.result}>({found})' if wide else found};"

    def values(self, use: str) -> list[str]:
        return _values(self.writer, self.number, self.acc, use)


class _InnerScan(_Scan):
    """Lanes along the row. Tiles of it are held in registers; ``carry`` goes from tile to tile."""

    def lines(self) -> list[str]:
        layout, kind, op = self.layout, self.type, self.op
        held, width = self._held, min(layout.team, WARP)
        vector = f"ca::vec<{kind}, {layout.vector}>"
        place = f"const int k = base + h, q = (k * {layout.team} + t) * {layout.vector};"
        at = f"{place} const {layout.index_type} j = first + q;"
        each = ["#pragma unroll", f"for (int h = 0; h < {held}; ++h) {{"]
        take = [
            "if (q < limit) {",
            *indented(self.values(f"held[h] = ca::scan_lanes<{op}>(VALUE);")),
            "}",
        ]
        last = f"whole[h] = held[h].v[{layout.vector - 1}];"
        give = [
            self.scanned(f"ca::scan_join<{op}>(ca::splat<{kind}, L>(before[h]), held[h])"),
            *self.statements,
            *self.stores,
        ]
        tile = [
            f"{vector} held[{held}];",
            f"{kind} whole[{held}], before[{held}];",
            *each,
            f"  held[h] = ca::splat<{kind}, L>({self.identity});",
            *indented([at, *take, last]),
            "}",
            *each,
            f"  whole[h] = ca::scan_warp<{op}, {width}>(whole[h]);",
            f"  before[h] = __shfl_up_sync(0xffffffffu, whole[h], 1, {width});",
            f"  if ((t & {width - 1}) == 0) before[h] = {self.identity};",
            "}",
            *(
                self._across_warps()
                if layout.warps > 1 or layout.clustered
                else self._within_warp(width)
            ),
            *each,
            *indented([at, "if (q < limit) {", *indented(give), "}"]),
            "}",
        ]
        start, prior = self.prior()
        loop = f"for (int base = 0; base < {layout.chunks}; base += {held}) {{"
        lanes = f"constexpr int L = {layout.vector};"
        return [
            *start,
            f"{kind} carry = {prior}.v[0];",
            *block([lanes, loop, *indented(tile), "}"]),
        ]

    @property
    def _held(self) -> int:
        layout = self.layout
        return (
            layout.chunks
            if layout.keep == "registers"
            else max(1, min(layout.unroll, layout.chunks))
        )

    def _within_warp(self, width: int) -> list[str]:
        return [
            "#pragma unroll",
            f"for (int h = 0; h < {self._held}; ++h) {{",
            f"  before[h] = {self.op}::join(carry, before[h]);",
            f"  carry = {self.op}::join(carry, __shfl_sync(0xffffffffu, whole[h], {width - 1}, {width}));",
            "}",
        ]

    def _across_warps(self) -> list[str]:
        """``before[h]`` grows by all that goes before this warp's part, and ``carry`` by the whole tile."""
        layout, held, warps, op = self.layout, self._held, self.layout.warps, self.op
        looped, width = held < layout.chunks, BYTES[self.type]
        if layout.clustered and (looped or width < 4):
            raise Unsupported(
                "a scan across a cluster of small integers, or of segments not in registers"
            )
        count = held * warps
        self.memory.take(f"totals{self.name}", self.type, count * layout.across, width)
        self.memory.take(f"tiles{self.name}", self.type, layout.across * layout.segments, width)
        slots, tiles = f"(totals{self.name} + r * {count})", f"tiles{self.name}"
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
        return (
            [*out, f"carry = {op}::join(carry, {tiles}[r]);", "__syncthreads();"] if looped else out
        )


class _OuterScan(_Scan):
    """One row in each lane; the threads of a team hold stretches of it, one after the other."""

    def lines(self) -> list[str]:
        layout = self.layout
        start, prior = self.prior()
        start = [*start, f"constexpr int L = {layout.vector};", f"auto before = {prior};"]
        if layout.team == 1 and not layout.clustered:
            return [*start, *position_loop(layout, self._onwards())]
        kept = layout.keep == "registers"
        hold = " held[k] = run;" if kept else ""
        first = self.values(f"run = {self._join('run', 'VALUE')};{hold}")
        out = [*start, f"auto run = ca::splat<{self.type}, L>({self.identity});"]
        out += [f"ca::vec<{self.type}, L> held[{layout.chunks}];"] if kept else []
        out += [*position_loop(layout, first), *self._across_team()]
        if not kept:
            return [*out, *position_loop(layout, self._onwards())]
        second = [
            self.scanned(self._join("before", "held[k]")),
            *self.statements,
            *self.stores,
        ]
        return [*out, *position_loop(layout, second)]

    def _join(self, a: str, b: str) -> str:
        return f"ca::scan_join<{self.op}>({a}, {b})"

    def _onwards(self) -> list[str]:
        step = self.values(f"before = {self._join('before', 'VALUE')};")
        return [*step, self.scanned("before"), *self.stores]

    def _across_team(self) -> list[str]:
        """``before`` grows by the stretches that go before this thread's."""
        layout, totals, whole = self.layout, f"totals{self.name}", f"tiles{self.name}"
        kind, width = f"ca::vec<{self.type}, {layout.vector}>", BYTES[self.type] * layout.vector
        self.memory.take(totals, kind, layout.team * layout.across, width)
        out = [f"{totals}[t * {layout.across} + x] = run;", "__syncthreads();"]
        if layout.clustered:
            if BYTES[self.type] < 4:
                raise Unsupported("a scan of small integers across a cluster")
            self.memory.take(whole, kind, layout.segments * layout.across, width)
            send = [
                f"auto all = {totals}[x];",
                f"for (int c = 1; c < {layout.team}; ++c)",
                f"  all = {self._join('all', f'{totals}[c * {layout.across} + x]')};",
                f"auto* const here = {whole} + segment * {layout.across} + x;",
                f"for (int c = 0; c < {layout.segments}; ++c) ca::store_remote(here, c, all);",
            ]
            earlier = self._join("before", f"{whole}[c * {layout.across} + x]")
            out += [
                f"if (t == {layout.team - 1}) {{",
                *indented(send),
                "}",
                "ca::cluster_arrive();",
                "ca::cluster_wait();",
                f"for (int c = 0; c < segment; ++c) before = {earlier};",
            ]
        mine = self._join("before", f"{totals}[c * {layout.across} + x]")
        return [*out, f"for (int c = 0; c < t; ++c) before = {mine};"]
