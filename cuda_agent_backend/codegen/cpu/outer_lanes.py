"""Kernels with one row in each vector lane, of rows that are next to each other in memory."""

from __future__ import annotations

import sympy

from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cpu.loop_nest import LoopNestWriter, position, shortened
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import RowStage
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES, c_index
from cuda_agent_backend.codegen.ir.region import ARG_REDUCTIONS
from cuda_agent_backend.codegen.ir.running import EXPONENTIALS

RUN_ROWS = 32
"""Elements of a sum between two flushes of its accumulators."""
WINDOW = 64
"""Elements of a window up to which its sum is one run, as in eager: a run for each of its rows may overflow beside an
infinity that eager has met before, and the two make a NaN."""


class OuterLanes(LoopNestWriter):
    """Writes a kernel with lanes along its last outer loop."""

    def emit(self) -> list[str]:
        if not self.kernel.outer:
            raise Unsupported("lanes along rows of a kernel without rows")
        *outside, (self._lane, size) = self.kernel.outer
        add, width, unroll = self.lines.append, self.params.width, self.params.unroll
        block = width * unroll
        self._parallel_for((*outside, (sympy.Symbol("block"), -(-size // block))))
        add("  {")
        add("    auto rows = [&](auto width_, auto unroll_, int64_t first) {")
        add("      constexpr int L = decltype(width_)::value, U = decltype(unroll_)::value;")
        add("      constexpr int64_t span = L * U; (void)span;")
        for name in sorted(self.scratch):
            local, ctype = self.kernel.locals[name], self._types[name]
            add(
                f"      ca::vec<{ctype}, L> l_{name}[U];"
                if local.size == 1
                else f"      alignas(64) {ctype} l_{name}[{local.size} * span];"
            )
        for p in self.passes:
            add("      {  // " + ", ".join(f"{s.name} {s.combine or s.kind}" for s in p.stages))
            {"map": self._map, "reduce": self._reduce, "scan": self._scan}[p.kind](p)
            add("      }")
        add("    };")
        add(f"    int64_t first = block * {block};")
        add(f"    const int64_t stop = ca::imin(first + {block}, {size});")
        add(
            f"    if (first + {block} <= stop) {{ "
            f"rows(ca::lanes<{width}>{{}}, ca::lanes<{unroll}>{{}}, first); first = stop; }}"
        )
        add(
            f"    for (; first + {width} <= stop; first += {width}) "
            f"rows(ca::lanes<{width}>{{}}, ca::lanes<1>{{}}, first);"
        )
        add("    for (; first < stop; ++first) rows(ca::lanes<1>{}, ca::lanes<1>{}, first);")
        add("  }")
        return self.lines

    def _side_by_side(self, lines: list[str]) -> list[str]:
        """``lines`` for each of the unrolled vectors of rows."""
        head = f"const int64_t {self._lane} = first + u * L; (void){self._lane};"
        return ["for (int u = 0; u < U; ++u) {", "  " + head, *["  " + line for line in lines], "}"]

    def _loop(self, p: Pass, body: list[str], flush: str = "") -> None:
        inside = self._side_by_side(body)
        if p.inner:
            last, size = p.inner[-1]
            run = min(RUN_ROWS // shortened(p), size) if flush else size
            inside = [
                f"for (int64_t run = 0; run < {size}; run += {run}) {{",
                f"  const int64_t run_end = ca::imin(run + {run}, {size});",
                f"  for (int64_t {last} = run; {last} < run_end; ++{last})",
                *["    " + line for line in inside],
                *([f"  for (int u = 0; u < U; ++u) {{ {flush} }}"] if flush else []),
                "}",
            ]
        self._loops(p.inner[:-1], "        ")
        self.lines += ["        " + line for line in inside]

    def _map(self, p: Pass) -> None:
        self._loop(p, self._body(p, lambda _, stage, value: self._all_stores(stage, value)))

    def _reduce(self, p: Pass) -> None:
        reductions = [(n, s) for n, s in enumerate(p.stages) if s.kind == "reduce"]
        for n, stage in reductions:
            self.lines.append(f"        {self._accumulator(stage)}, L> a{n}[U];")

        def at_end(number: int, stage: RowStage, value: str) -> list[str]:
            if stage.kind == "map":
                return self._all_stores(stage, value)
            if stage.combine in ARG_REDUCTIONS:
                kept = self._kept(stage, value)
                return [f"a{number}[u].template update<0>({kept}, {position(stage)});"]
            return [f"a{number}[u].update({value}, 0);"]

        flush = " ".join(f"a{n}[u].flush();" for n, _ in reductions)
        self._loop(p, self._body(p, at_end), "" if _is_window(p) else flush)
        for n, stage in reductions:
            result = self._result(p, n, f"a{n}[u].result()", _in_loops)
            finish = [*result, *self._all_stores(stage, f"r{n}")]
            self.lines += ["        " + line for line in self._side_by_side(finish)]

    def _scan(self, p: Pass) -> None:
        (stage,) = p.stages
        ctype, op = COMPUTE_TYPES[stage.dtype], f"ca::scan_{stage.combine}"
        wide = f"ca::scan_t<{ctype}>"
        start = (
            f"ca::vec<{wide}, L> carry[U]; for (int u = 0; u < U; ++u) "
            f"carry[u] = ca::splat<{wide}, L>({op}::identity<{wide}>());"
        )
        if stage.combine == EXPONENTIALS:
            start = "ca::exponentials<L> carry[U];"
        self.lines.append(f"        {start}")

        def at_end(number: int, stage: RowStage, value: str) -> list[str]:
            combine = f"carry[u] = {op}::combine(carry[u], ca::to<{wide}>({value}));"
            return [combine, *self._all_stores(stage, f"ca::to<{ctype}>(carry[u])")]

        self._loop(p, self._body(p, at_end))

    def _gather_index(self, index: sympy.Expr) -> str:
        return f"ca::iota<L>(({c_index(index)}) * span + u * L)"

    def _read(self, name: str, scalar: bool, index: sympy.Expr) -> str:
        if scalar:
            return f"{name}[u]"
        return f"ca::load<L>({name} + ({c_index(index)}) * span + u * L)"

    def _write(self, name: str, ctype: str, scalar: bool, index: sympy.Expr, value: str) -> str:
        if scalar:
            return f"{name}[u] = ca::to<{ctype}>({value});"
        return f"ca::store<L>({name} + ({c_index(index)}) * span + u * L, {value});"


def _in_loops(p: Pass, body: list[str]) -> list[str]:
    """``body`` in a pass's loops, for one vector of rows."""
    loops = [f"for (int64_t {s} = 0; {s} < {size}; ++{s})" for s, size in p.inner]
    return [*loops, "{", *body, "}"]


def _is_window(p: Pass) -> bool:
    """Whether a pass adds up a few elements of several loops, and no products, of which there may be many."""
    first = p.stages[0]
    value, *_ = first.body.results
    products = any(i.op == "mul" and i.result == value for i in first.body.instructions)
    alone = len(p.stages) == 1 and first.combine == "sum"
    return alone and len(p.inner) > 1 and first.points <= WINDOW and not products
