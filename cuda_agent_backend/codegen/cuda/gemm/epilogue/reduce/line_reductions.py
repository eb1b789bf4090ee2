"""The source that reduces the lines of a tile, its rows or its columns, in one direction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch

from cuda_agent_backend.codegen.cuda.common.body_rewrites import share_divisors
from cuda_agent_backend.codegen.cuda.common.lane_printer import LanePrinter, memory_printer
from cuda_agent_backend.codegen.cuda.common.parts import local_types
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.directions import (
    Direction,
    accumulator,
    shape_of,
    vector_of,
)
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.gather import KIND
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.stages import multiple_of, tops_in
from cuda_agent_backend.codegen.cuda.gemm.writer import GemmWriter
from cuda_agent_backend.codegen.ir.device import WARP, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import RowStage
from cuda_agent_backend.codegen.ir.printer import c_index, literal
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction

RUN = 16
"""Results that a thread sums in one go; longer sums go in two levels, which keeps their error low."""
Numbered = tuple[int, RowStage]


@dataclass(frozen=True)
class Statements:
    """Statements, the text of what they make by name, and of the last of it."""

    lines: list[str]
    made: dict[str, str]
    value: str


@dataclass(frozen=True)
class LineReductions:
    """Writes the reductions of a tile in one direction; its lines lie in shared memory, or across those that do."""

    writer: GemmWriter
    direction: Direction

    @property
    def _name(self) -> str:
        """Of a result's number along the line."""
        return "row" if self.direction.by_rows else "column"

    @property
    def _others(self) -> str:
        """Of the line's number."""
        return "column" if self.direction.by_rows else "row"

    @property
    def _across(self) -> bool:
        return self.direction.by_rows != self.writer.output.by_rows

    @property
    def _high(self) -> int:
        """Lines."""
        t = self.writer.tiles
        return t.tile_n if self.direction.by_rows else t.tile_m

    @property
    def _wide(self) -> int:
        """Results of a line."""
        return self.direction.width(shape_of(self.writer.tiles))

    @property
    def _vector(self) -> int:
        return vector_of(self.direction)

    @property
    def _reductions(self) -> dict[str, Numbered]:
        """By name, in order, with their numbers among the kernel's stages."""
        stages, own = enumerate(self.writer.kernel.stages), self.direction.names
        return {s.name: (n, s) for n, s in stages if s.name in own and s.kind == "reduce" and n}

    @property
    def _team(self) -> int:
        """Threads that share a line."""
        own = self.writer.tiles.threads - self.writer.tiles.preparing
        most = min(WARP, own // self._high, self._wide // self._vector)
        return 1 << max(0, most.bit_length() - 1)

    def _at(self, number: str) -> str:
        """Where a result of the line is."""
        return f"{number} * stride" if self._across else number

    @property
    def _load(self) -> str:
        """Results of the line from the ``i``-th on."""
        if self._across:
            return "ca::load_apart<L>(results + i * stride, stride)"
        return "ca::load<L>(results + i)"

    # --- text ---

    def text(self, anew: bool) -> list[str]:
        """The reductions of all lines. ``anew``: whether sums that are not finite are worked out anew before."""
        c, t, team = self.writer.gemm, self.writer.tiles, self._team
        by_rows, high, name = self.direction.by_rows, self._high, self._others
        at_once = (t.threads - t.preparing) // team
        size, others = (c.n, c.columns) if by_rows else (c.m, c.rows)
        lies = "" if self._across else " * stride"
        line = [
            f"const int line = turn * {at_once} + own / team;",
            f"const bool live = line < {high} && {name}0 + line < {size};",
            f"const int {name} = min({name}0 + line, {size - 1});",
            f"float* const results = memory + min(line, {high - 1}){lies};",
            *decompose(name, others, self.writer.index),
            *(self._corrected() if anew else []),
            *self._picks(anew),
            *self._passes(),
        ]
        return [
            f"constexpr int L = {self._vector}, team = {team};",
            "const int member = own % team;",
            f"const int tile = {'tile_m' if by_rows else 'tile_n'}, from = {self._name}0;",
            f"const int limit = min({self._wide}, {self.direction.extent} - from);",
            "#pragma unroll 1",
            f"for (int turn = 0; turn < {ceildiv(high, at_once)}; ++turn) {{",
            *indented(line),
            "}",
        ]

    def _corrected(self) -> list[str]:
        """Sums times what terms are scaled by; those not finite anew, each by the thread that will read it."""
        place = "from + i + e, column" if self.direction.by_rows else "row, from + i + e"
        result = f"results[{self._at('(i + e)')}]"
        body = [
            f"{'auto' if self._constants else 'const auto'} total = {self._load};",
            *self._multiplied(),
            "bool usual = true;",
            "#pragma unroll",
            "for (int e = 0; e < L; ++e) usual = usual && fabsf(total.v[e]) < 3.402823466e38f;",
            "if (usual) continue;",
            "#pragma unroll 1",
            "for (int e = 0; e < L; ++e)",
            f"  if (!(fabsf({result}) < 3.402823466e38f)) {result} = exact({place});",
        ]
        return [
            "for (int i = live ? member * L : limit; i < limit; i += team * L) {",
            *indented(body),
            "}",
        ]

    @property
    def _constants(self) -> list[str]:
        """What operands are scaled by."""
        c = self.writer.gemm
        constants = [f.constant for f in (c.left, c.right) if f.scale is not None]
        return [literal(repr(constant), torch.float32) for constant in constants]

    def _multiplied(self) -> list[str]:
        """Has ``total`` multiplied by constants, where it lies as well."""
        if not self._constants:
            return []
        return [
            *(
                f"total = ca::scale_sums(total, ca::splat<float, L>({constant}));"
                for constant in self._constants
            ),
            "#pragma unroll",
            f"for (int e = 0; e < L; ++e) results[{self._at('(i + e)')}] = total.v[e];",
        ]

    def _picks(self, anew: bool) -> list[str]:
        """Single results of the line, to memory where they are this tile's."""
        picks = [(n, s) for n, s in enumerate(self.writer.kernel.stages)]
        picks = [(n, s) for n, s in picks if s.kind == KIND and s.name in self.direction.stages]
        # another thread of the team may have worked out the result anew
        out = ["__syncwarp();"] if picks and anew else []
        for number, stage in picks:
            place, made = f"s{number}v{stage.body.results[0].number}", self._before(None, 1)
            body = [
                f"const int {self._name} = from + int(at);",
                *decompose(self._name, self.direction.along, self.writer.index),
                f"auto total = ca::load<L>(results + {self._at('at')});",
                *made.lines,
                *(f"m_{s.buffer}[{c_index(s.index)}] = {made.value}.v[0];" for s in stage.stores),
            ]
            out += [
                "{",
                "  constexpr int L = 1;",
                *indented(self._printer(None, 1, {}).lines(stage.body, f"s{number}v")),
                f"  const int64_t at = int64_t({place}.v[0]) - from;",
                "  if (live && member == 0 && at >= 0 && at < limit) {",
                *indented(body, "    "),
                "  }",
                "}",
            ]
        return out

    def _passes(self) -> list[str]:
        """Loops over the line, each of which needs those before, and then what its reductions came to."""
        reductions, out = self._reductions, []
        stages = {name: stage for name, (_, stage) in reductions.items()}
        deep = [item for item in reductions.values() if tops_in(item[1], stages)]
        flat = [item for item in reductions.values() if item not in deep]
        for group in (flat, deep):
            if group:
                out += [*self._loops(group), *(line for item in group for line in self._end(*item))]
        return out

    def _loops(self, group: Sequence[Numbered]) -> list[str]:
        accumulators = {n: accumulator(s) for n, s in group}
        out = [f"{acc.of('L')} a{n};" for n, acc in accumulators.items()]
        sums = [n for n, acc in accumulators.items() if acc.is_real_sum]
        out += self._loop(group, sums)
        centred = [item for item in group if accumulators[item[0]].is_welford]
        if centred:
            out += [f"a{n}.center();" for n, _ in centred]
            out += self._loop(centred, [], again=True)
        return out

    def _loop(
        self, group: Sequence[Numbered], sums: Sequence[int], again: bool = False
    ) -> list[str]:
        """``sums``: numbers of those that go in runs."""

        def update(number: int, stage: RowStage, value: str) -> str:
            acc = accumulator(stage)
            what = ("deviate" if again else "count") if acc.is_welford else "update"
            into = f"run{number}" if number in sums else f"a{number}"
            return f"{into}.{what}(ca::to<{acc.value}>({value}));"

        body = self._body(group, update)
        if not sums:
            return ["for (int i = member * L; i < limit; i += team * L) {", *indented(body), "}"]
        acc = {n: accumulator(s).of("L") for n, s in group}
        return [
            f"for (int begin = member * L; begin < limit; begin += {RUN} * team * L) {{",
            *(f"  {acc[n]} run{n};" for n in sums),
            f"  const int end = min(limit, begin + {RUN} * team * L);",
            "  for (int i = begin; i < end; i += team * L) {",
            *indented(body, "    "),
            "  }",
            *(f"  a{n}.merge(run{n});" for n in sums),
            "}",
        ]

    def _body(
        self, group: Sequence[Numbered], update: Callable[[int, RowStage, str], str]
    ) -> list[str]:
        """The tail on results at ``i`` of the line, and what reductions make of them."""
        lane, width = self.direction.along[-1][0], self._vector
        out = [f"const int {self._name} = from + i;"]
        out += decompose(self._name, self.direction.along, self.writer.index)
        tail = self._before(lane, width)
        out += [f"auto total = {self._load};", *tail.lines]
        printer = self._printer(lane, width, {**self._tops, **tail.made})
        for number, stage in group:
            prefix, scaled = f"s{number}v", _scaled(stage)
            if scaled is not None:
                out.append(update(number, stage, tail.made[str(scaled.buffer)]))
                continue
            out += printer.lines(_sharing(stage.body), prefix)
            out.append(update(number, stage, f"{prefix}{stage.body.results[0].number}"))
        return out

    def _before(self, lane: sympy.Symbol | None, width: int) -> Statements:
        """What is made of ``total`` before it is reduced."""
        types, value = local_types(self.writer.kernel), "total"
        made: dict[str, str] = {}
        lines: list[str] = []
        for number, stage in enumerate(self.writer.kernel.stages):
            if number and stage.kind != "map":
                break
            if number:
                lines += self._printer(lane, width, made).lines(stage.body, f"s{number}v")
                value = f"s{number}v{stage.body.results[0].number}"
            made |= {s.buffer: f"ca::to<{types[s.buffer]}>({value})" for s in stage.local_stores}
        return Statements(lines, made, value)

    def _printer(
        self, lane: sympy.Symbol | None, width: int, made: Mapping[str, str]
    ) -> LanePrinter:
        """``made``: the text of values at hand."""

        def local(i: Instruction) -> str:
            if i.buffer is None or i.buffer not in made:
                raise Unsupported("a value of the tail that is not there")
            return made[i.buffer]

        return memory_printer(self.writer.region, local, lane, width)

    @property
    def _tops(self) -> dict[str, str]:
        """Maxima of the line that other reductions read, by name."""
        found = self._reductions.values()
        tops = [(n, s) for n, s in found if s.combine == "max"]
        stores = ((n, accumulator(s).word, t.buffer) for n, s in tops for t in s.local_stores)
        return {buffer: f"ca::splat<{word}, L>(top{n})" for n, word, buffer in stores}

    def _end(self, number: int, stage: RowStage) -> list[str]:
        """What the team's threads found together, to memory."""
        members = [member for member, _ in accumulator(stage).fields]
        stores = (
            f"m_{s.buffer}[{c_index(s.index)}] = f{number}.{member}[0];"
            for s, member in zip(stage.stores, members, strict=True)
        )
        out = [
            f"auto f{number} = ca::warp_join<team>(ca::across<L>(a{number}));",
            *self._multiple(number, stage),
            f"if (live && member == 0) {{ {' '.join(stores)} }}",
        ]
        # of a tile without any number exponentials are 0, not those of NaN
        if stage.combine == "max":
            top = f"f{number}.v[0]"
            out.append(f"const auto top{number} = {top} == -INFINITY ? 0 : {top};")
        return out

    def _multiple(self, number: int, stage: RowStage) -> list[str]:
        """The extreme of multiples from that of what they are multiples of."""
        scaled = _scaled(stage)
        if scaled is None:
            return []
        prefix, extreme = f"s{number}v", f"f{number}.v[0]"
        made = {str(scaled.buffer): f"ca::splat<float, L>({extreme})"}
        lines = self._printer(None, 1, made).lines(_sharing(stage.body), prefix)
        last = f"{extreme} = {prefix}{stage.body.results[0].number}.v[0];"
        return ["{", "  constexpr int L = 1;", *indented([*lines, last]), "}"]


def _scaled(stage: RowStage) -> Instruction | None:
    """What an extreme's values are positive multiples of: it is worked out of those, and scaled once for the line."""
    extreme = stage.combine in ("max", "min") and stage.dtype == torch.float32
    return multiple_of(stage.body) if extreme else None


def _sharing(body: Body) -> Body:
    """With divisions by constants as a row's kernel does them, which takes fewer instructions and no branch."""
    return share_divisors(body, set())
