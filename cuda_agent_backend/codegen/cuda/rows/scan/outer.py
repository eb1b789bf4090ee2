"""Scans with lanes across rows: each thread goes along a stretch of its own rows, one element after the other."""

from __future__ import annotations

from cuda_agent_backend.codegen.cuda.common.parts import BYTES
from cuda_agent_backend.codegen.cuda.common.text import indented
from cuda_agent_backend.codegen.cuda.rows.loops import position_loop
from cuda_agent_backend.codegen.cuda.rows.scan.base import ScanText
from cuda_agent_backend.codegen.ir.failure import Unsupported


class OuterScan(ScanText):
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
        along = position_loop(layout, first)
        out += [*along, *self._across_team(along)]
        if not kept:
            return [*out, *position_loop(layout, self._onwards())]
        first_of = "origin" if self._keeps_origin else "before"
        earlier = f"k > 0 ? {self._join('before', 'held[k > 0 ? k - 1 : 0]')} : {first_of}"
        second = self.finish(self._join("before", "held[k]"), earlier)
        return [*out, *position_loop(layout, second)]

    def _join(self, a: str, b: str) -> str:
        return f"ca::scan_join<{self.op}>({a}, {b})"

    def _onwards(self) -> list[str]:
        keep = "const auto earlier = before; " if self.needs_previous else ""
        step = self.values(f"{keep}before = {self._join('before', 'VALUE')};")
        return [*step, *self.finish("before", "earlier")]

    @property
    def _in_turn(self) -> bool:
        """Whether stretches are gone along again, one after the other, where numbers end in one: a sum of a stretch
        alone may overflow where no sum from the row's beginning does, and makes NaN of the other infinity before it."""
        return (
            self.op == "ca::scan_sum"
            and self.type in ("float", "double")
            and not self.layout.clustered
        )

    @property
    def _keeps_origin(self) -> bool:
        """Whether what goes before the stretch is wanted where ``before`` is in what is held."""
        return self._in_turn and self.layout.keep == "registers" and self.needs_previous

    def _across_team(self, along: list[str]) -> list[str]:
        """``before`` grows by the stretches that go before this thread's; ``along`` goes along its own."""
        layout, totals, whole = self.layout, f"totals{self.name}", f"tiles{self.name}"
        kind, width = f"ca::vec<{self.type}, {layout.vector}>", BYTES[self.type] * layout.vector
        self.memory.take(totals, kind, layout.team * layout.across, width)
        mine = self._join("before", f"{totals}[c * {layout.across} + x]")
        upto = f"for (int c = 0; c < t; ++c) before = {mine};"
        if self._in_turn:
            return self._team_in_turn(totals, along, upto)
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
        return [*out, upto]

    def _team_in_turn(self, totals: str, along: list[str], upto: str) -> list[str]:
        layout, kept = self.layout, self.layout.keep == "registers"
        mine = f"{totals}[t * {layout.across} + x]"
        turn = [
            f"if (t > 0) before = {totals}[(t - 1) * {layout.across} + x];",
            "run = before;",
            *along,
            f"{mine} = run;",
        ]
        # What is held has what goes before in it already.
        joined = [f"before = ca::splat<{self.type}, L>({self.identity});"] if kept else []
        origin = ["origin = before;"] if self._keeps_origin else []
        return [
            f"{mine} = run;",
            "bool ended = false;",
            "CA_LANES ended |= run.v[i] - run.v[i] != 0;",
            *(f"auto {line}" for line in origin),
            "if (__syncthreads_or(ended)) {",
            "#pragma unroll 1",
            f"  for (int c = 0; c < {layout.team}; ++c) {{",
            "    if (t == c) {",
            *indented(indented(indented(turn))),
            "    }",
            "    __syncthreads();",
            "  }",
            *indented([*origin, *joined]),
            "} else {",
            f"  {upto}",
            *indented(origin),
            "}",
        ]
