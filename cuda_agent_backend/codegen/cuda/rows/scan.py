"""Scans along a row: within a thread, then its warp, its block, its cluster, each level as a tree or nearly so.

A row that is split over launches is read twice: a first launch leaves the total of every segment in memory, and the
second starts each segment from what goes before it.

A tree takes factors in other orders than eager. That matters where a running product is no number any more: behind
factors whose product comes to zero an infinity makes NaN, alone it stays one. A tile of which that is true is done once
more from left to right, as torch's own blocks nearly are; but not where blocks of a cluster share a row.
"""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent_backend.codegen.analysis.passes import one_before
from cuda_agent_backend.codegen.cuda.common.parts import BYTES, Accumulator
from cuda_agent_backend.codegen.cuda.common.text import block, indented
from cuda_agent_backend.codegen.cuda.rows.combine import join, load_partials, store_partial
from cuda_agent_backend.codegen.cuda.rows.loops import position_loop
from cuda_agent_backend.codegen.cuda.rows.pass_bodies import PassBodies, shared_arrays
from cuda_agent_backend.codegen.ir.device import WARP
from cuda_agent_backend.codegen.ir.nest import RowStage
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES
from cuda_agent_backend.codegen.ir.ssa import Unsupported
from cuda_agent_backend.codegen.ir.value_types import stage_dtype


def scan_pass(writer: PassBodies, number: int) -> list[str]:
    """Statements of the scan that is pass ``number``."""
    p, layout = writer.program.passes[number], writer.layout
    stage = p.stages[0]
    if len(p.inner) != 1 or stage.points != layout.points:
        raise Unsupported("scan over part of a row")
    made = shared_arrays(writer, p.stages)
    if made and layout.segments > 1:
        raise Unsupported("an array read across the segments of a row")
    scan = _InnerScan if layout.inner else _OuterScan
    return [*scan(writer, number, stage).lines(), *(["__syncthreads();"] if made else [])]


def scan_total(writer: PassBodies, number: int) -> list[str]:
    """Statements that leave the total of this block's segment in memory."""
    layout, ((name, acc),) = writer.layout, writer.scan_totals(number)
    body = _values(writer, number, acc, f"a{name}.update(VALUE);")
    return [
        f"{acc.of(layout.vector)} a{name};",
        *position_loop(layout, body),
        f"constexpr int L = {layout.vector};",
        *join(layout, writer.memory, [(name, acc)], cluster=False),
        *store_partial(layout, name, acc),
    ]


def _values(writer: PassBodies, number: int, acc: Accumulator, use: str) -> list[str]:
    """The scan's body at one position and a statement that uses its value."""

    def at_end(_: int, stage: RowStage, value: str) -> list[str]:
        return [use.replace("VALUE", f"ca::to<{acc.value}>({value})")]

    return [*writer.program.flats[number].statements, *writer.bodies(number, at_end, among=(0,))]


def _each(held: int, statements: Sequence[str]) -> list[str]:
    """Statements for each vector ``h`` that a thread holds."""
    return ["#pragma unroll", f"for (int h = 0; h < {held}; ++h) {{", *indented(statements), "}"]


class _Scan:
    """What both lane modes share: names, and what goes before this block's segment."""

    def __init__(self, writer: PassBodies, number: int, stage: RowStage) -> None:
        self.writer, self.number, self.layout, self.memory = (
            writer,
            number,
            writer.layout,
            writer.memory,
        )
        ((self.name, self.acc),) = writer.scan_totals(number)
        self.type, self.op = self.acc.value, f"ca::scan_{stage.combine}"
        self.result = COMPUTE_TYPES[stage_dtype(stage)]
        self.identity = f"{self.op}::identity<{self.type}>()"
        flat = writer.program.flats[number]
        self.statements = list(flat.statements)
        p = writer.program.passes[number]
        self.stores = writer.stores(p, flat, stage, "scanned", writer.row_guard)
        before = set(one_before(stage).values())
        self.needs_previous = any(
            i.op == "local" and i.index in before for st in p.stages[1:] for i in st.body.walk()
        )

    def prior(self) -> tuple[list[str], str]:
        """Statements, and the value that goes before this segment, of ``scalar_lanes`` lanes."""
        lanes = self.layout.scalar_lanes
        if self.writer.source_segments == 1:
            return [], f"ca::splat<{self.type}, {lanes}>({self.identity})"
        loads = load_partials(
            self.layout, self.writer.source_segments, self.name, self.acc, "segment"
        )
        joined = self.writer.join_lanes([(self.name, self.acc)])
        joined = [line.replace("across<L>", f"across<{lanes}>") for line in joined]
        return [*loads, *joined], f"f{self.name}.result()"

    def finish(self, found: str, previous: str) -> list[str]:
        """Statements that store what was ``found``, and what follows. ``previous``: what was, one element before."""
        given = {"scanned": found} | ({"previous": previous} if self.needs_previous else {})
        if self.type != self.result and not self.narrow:
            given = {name: f"ca::to<{self.result}>({value})" for name, value in given.items()}
        names = [f"const auto {name} = {value};" for name, value in given.items()]
        return [*names, *self.statements, *self.stores, *self.writer.after_scan(self.number)]

    @property
    def narrow(self) -> bool:
        """Whether what goes before a vector is wider than its elements, which are held as they are read."""
        return False

    def values(self, use: str) -> list[str]:
        return _values(self.writer, self.number, self.acc, use)


class _InnerScan(_Scan):
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
            *_each(
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
            *_each(
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
        return _each(held, [self._at, "if (q < limit) {", *indented(give), "}"])

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
        out = _each(
            held,
            [
                f"before[h] = {self.op}::join(carry, before[h]);",
                f"carry = {self.op}::join(carry, __shfl_sync(0xffffffffu, whole[h], {width - 1}, {width}));",
            ],
        )
        if not self._in_turn:
            return out
        turn = f"start = ca::scan_in_turn<{self.op}, {width}>(start, held[h], before[h]);"
        return [
            "double start = carry;",
            *out,
            "if (__any_sync(0xffffffffu, ca::scan_left(start, carry))) {",
            *indented(_each(held, [turn])),
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
        return [f"if ({ended}) {{", "  after = carry;", *indented(_each(held, turn)), "}"]


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
        earlier = f"k > 0 ? {self._join('before', 'held[k > 0 ? k - 1 : 0]')} : before"
        second = self.finish(self._join("before", "held[k]"), earlier)
        return [*out, *position_loop(layout, second)]

    def _join(self, a: str, b: str) -> str:
        return f"ca::scan_join<{self.op}>({a}, {b})"

    def _onwards(self) -> list[str]:
        keep = "const auto earlier = before; " if self.needs_previous else ""
        step = self.values(f"{keep}before = {self._join('before', 'VALUE')};")
        return [*step, *self.finish("before", "earlier")]

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
