"""Kernels whose vector lanes run along the innermost loop of each stage. A row's reduction ends across lanes."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cpu.loop_nest import (
    LoopNestWriter,
    position,
    shortened,
    with_wide_windows,
)
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, RowStage
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES, c_index
from cuda_agent_backend.codegen.ir.running import EXPONENTIALS

FLUSH_ELEMENTS = 1024
"""Elements of a sum between two flushes of its accumulators: the length of a run in the cascade."""


class InnerLanes(LoopNestWriter):
    """Writes a kernel with lanes along inner loops."""

    def emit(self) -> list[str]:
        if self.kernel.is_map and not self.scratch and len(self.passes) == 1:
            self._parallel_map(self.passes[0])
            return self.lines
        add = self.lines.append
        self._parallel_for(self.kernel.outer)
        add("  {")
        for name in sorted(self.scratch):
            local, ctype = self.kernel.locals[name], self._types[name]
            add(
                f"    ca::vec<{ctype}, 1> l_{name}{{}};"
                if local.size == 1
                else f"    alignas(64) {ctype} l_{name}[{local.size}];"
            )
        for p in self.passes:
            add("    {  // " + ", ".join(f"{s.name} {s.combine or s.kind}" for s in p.stages))
            self._lane = p.inner[-1][0] if p.inner else None
            {"map": self._map, "reduce": self._reduce, "scan": self._scan}[p.kind](p)
            add("    }")
        add("  }")
        return self.lines

    def _marked(self, kernel: Kernel) -> Kernel:
        """Windows whose rows no vector fits into."""
        width = self.params.width
        marked = with_wide_windows(kernel, lambda stage: stage.inner[-1][1] < width)
        pairs = zip(marked.stages, kernel.stages, strict=True)
        self._windows = {stage.name for stage, before in pairs if stage is not before}
        return marked

    def _step(self, body: list[str], arguments: str = "") -> list[str]:
        return [
            f"      auto step = [&](auto width_, int64_t {self._lane or 'unused_'}{arguments}) "
            "__attribute__((always_inline)) {",
            "        constexpr int L = decltype(width_)::value; (void)L;",
            *["        " + line for line in body],
            "      };",
        ]

    def _lane_loop(self, low: str, high: str, width: int) -> list[str]:
        return [
            f"        int64_t i = {low};",
            f"        for (; i + {width} <= {high}; i += {width}) step(ca::lanes<{width}>{{}}, i);",
            f"        for (; i < {high}; ++i) step(ca::lanes<1>{{}}, i);",
        ]

    def _map(self, p: Pass) -> None:
        body = self._step(self._body(p, lambda _, stage, value: self._all_stores(stage, value)))
        self._loops(p.inner[:-1], "      ")
        call = (
            self._lane_loop("0", str(p.inner[-1][1]), self.params.width)
            if p.inner
            else ["      step(ca::lanes<1>{}, 0);"]
        )
        self.lines += ["      {", *body, *call, "      }"]

    def _parallel_map(self, p: Pass) -> None:
        """Maps without rows: threads share the outer loops, and pieces of the innermost one."""
        dims = _by_memory((*self.kernel.outer, *p.inner), p)
        if not dims:
            self.lines += ["  #pragma omp single", "  {"]
            self._map(p)
            self.lines.append("  }")
            return
        *outside, (self._lane, size) = dims
        step = -(-min(size, self.params.chunk) // 64) * 64
        self._parallel_for((*outside, (sympy.Symbol("piece"), -(-size // step))))
        body = self._step(self._body(p, lambda _, stage, value: self._all_stores(stage, value)))
        loop = self._lane_loop(
            f"piece * {step}", f"ca::imin((piece + 1) * {step}, {size})", self.params.width
        )
        self.lines += ["  {", *body, *loop, "  }"]

    def _reduce(self, p: Pass) -> None:
        reductions = [(n, s) for n, s in enumerate(p.stages) if s.kind == "reduce"]
        width, unroll, size = self.params.width, self.params.unroll, p.inner[-1][1]
        add = self.lines.append
        body = self._updates(p, reductions)
        if self._windows.issuperset(stage.name for _, stage in reductions):
            self._reduce_windows(p, reductions, body)
            return
        for n, stage in reductions:
            acc = self._accumulator(stage)
            add(f"      {acc}, {width}> a{n}[{unroll}]; {acc}, 1> t{n};")
        calls = " ".join(
            f"step(ca::lanes<{width}>{{}}, i + {u * width}{''.join(f', a{n}[{u}]' for n, _ in reductions)});"
            for u in range(unroll)
        )
        firsts, tails = (
            "".join(f", a{n}[0]" for n, _ in reductions),
            "".join(f", t{n}" for n, _ in reductions),
        )
        flush = " ".join(f"a{n}[{u}].flush();" for n, _ in reductions for u in range(unroll))
        # what is left of an innermost loop is a run of its own: over many rounds its chain would grow long
        short = [
            *(["t{n}"] if size % width else []),
            *(["a{n}[0]"] if size % (width * unroll) >= width else []),
        ]
        end = [f"{acc.format(n=n)}.flush();" for acc in short for n, _ in reductions]
        block = width * unroll * max(1, FLUSH_ELEMENTS // shortened(p) // (width * unroll))
        self._loops(p.inner[:-1], "      ")
        self.lines += [
            "      {",
            *body,
            "        int64_t i = 0;",
            f"        while (i + {width * unroll} <= {size}) {{",
            f"          const int64_t stop = ca::imin(i + {block}, {size});",
            f"          for (; i + {width * unroll} <= stop; i += {width * unroll}) {{ {calls} }}",
            f"          {flush}",
            "        }",
            f"        for (; i + {width} <= {size}; i += {width}) step(ca::lanes<{width}>{{}}, i{firsts});",
            f"        for (; i < {size}; ++i) step(ca::lanes<1>{{}}, i{tails});",
            *(["        " + " ".join(end)] if len(p.inner) > 1 and end else []),
            "      }",
        ]
        for n, stage in reductions:
            self.lines += [f"      a{n}[0].merge(a{n}[{u}]);" for u in range(1, unroll)]
            total = f"ca::across(a{n}[0], t{n})"
            self._finish(n, stage, self._result(p, n, total, self._one_by_one))

    def _one_by_one(self, p: Pass, body: list[str]) -> list[str]:
        """``body`` in a pass's loops, without vectors."""
        outside = [f"for (int64_t {s} = 0; {s} < {size}; ++{s})" for s, size in p.inner[:-1]]
        last = f"for (int64_t i = 0; i < {p.inner[-1][1]}; ++i) step(ca::lanes<1>{{}}, i);"
        return [*outside, "{", *self._step(body), last, "}"]

    def _updates(self, p: Pass, reductions: Sequence[tuple[int, RowStage]]) -> list[str]:
        """The step of a reducing pass, which is given the accumulators."""

        def at_end(number: int, stage: RowStage, value: str) -> list[str]:
            if stage.kind == "map":
                return self._all_stores(stage, value)
            return [f"acc{number}.update({self._kept(stage, value)}, {position(stage)});"]

        lines = [*self._fetches(p), *self._body(p, at_end)]
        return self._step(lines, "".join(f", auto& acc{n}" for n, _ in reductions))

    def _reduce_windows(
        self, p: Pass, reductions: Sequence[tuple[int, RowStage]], body: list[str]
    ) -> None:
        """Element by element, in eager's order: where two of the largest numbers cancel, it decides what is left."""
        for n, stage in reductions:
            self.lines.append(f"      {self._accumulator(stage)}, 1> t{n};")
        self._loops(p.inner[:-1], "      ")
        given = "".join(f", t{n}" for n, _ in reductions)
        loop = f"for (int64_t i = 0; i < {p.inner[-1][1]}; ++i) step(ca::lanes<1>{{}}, i{given});"
        self.lines += ["      {", *body, f"        {loop}", "      }"]
        for n, stage in reductions:
            self._finish(n, stage, [f"const auto r{n} = t{n}.result();"])  # a window is no mean

    def _finish(self, number: int, stage: RowStage, result: list[str]) -> None:
        """Make the result of a stage of a reducing pass, and store it."""
        self.lines += [*("      " + line for line in result), "      {"]
        self._lane, lane = None, self._lane
        self.lines.append("        constexpr int L = 1; (void)L;")
        self.lines += ["        " + line for line in self._all_stores(stage, f"r{number}")]
        self._lane = lane
        self.lines.append("      }")

    def _fetches(self, p: Pass) -> list[str]:
        """Prefetches of what the first pass over a row reads of that row."""
        if not self.params.ahead or p is not self.passes[0]:
            return []
        rows = {symbol for symbol, _ in self.kernel.outer}
        found = {
            f"ca::fetch<L>({i.buffer} + {c_index(i.index)} + {self.params.ahead});"
            for stage in p.stages
            for i in stage.body.loads()
            if i.buffer not in self.kernel.locals
            and i.index is not None
            and coefficient(i.index, p.inner[-1][0]) == 1
            and rows & i.index.free_symbols
        }
        return sorted(found)

    def _scan(self, p: Pass) -> None:
        (stage,) = p.stages
        if len(p.inner) != 1:
            raise Unsupported("scan over several loops")
        ctype, op = COMPUTE_TYPES[stage.dtype], f"ca::scan_{stage.combine}"
        wide = f"ca::scan_t<{ctype}>"

        def at_end(number: int, stage: RowStage, value: str) -> list[str]:
            scanned = f"const auto scanned = ca::scan_lanes<{op}>(ca::to<{wide}>({value}), carry);"
            return [scanned, *self._all_stores(stage, f"ca::to<{ctype}>(scanned)")]

        start = f"{wide} carry = {op}::identity<{wide}>();"
        if stage.combine == EXPONENTIALS:
            start = "ca::exponentials<1> carry;"
        self.lines.append(f"      {start}")
        self.lines += self._step(self._body(p, at_end))
        # a vector of doubles twice as wide as a register makes its shuffles slow
        width = max(1, self.params.width // 2) if ctype == "float" else self.params.width
        self.lines += ["      {", *self._lane_loop("0", str(p.inner[0][1]), width), "      }"]

    def _gather_index(self, index: sympy.Expr) -> str:
        if self._lane is not None and index.has(self._lane):
            return self._printer().vector_index(index)
        return f"ca::splat<int64_t, L>({c_index(index)})"

    def _read(self, name: str, scalar: bool, index: sympy.Expr) -> str:
        if scalar:
            return f"ca::splat<L>({name})"
        step = 0 if self._lane is None else coefficient(index, self._lane)
        at = f"{name} + {c_index(index)}"
        if step is None:
            return f"ca::gather<L>({name}, {self._printer().vector_index(index)})"
        if step in (0, 1):
            return f"ca::{'load' if step else 'broadcast'}<L>({at})"
        return f"ca::load_strided<L>({at}, {step})"

    def _write(self, name: str, ctype: str, scalar: bool, index: sympy.Expr, value: str) -> str:
        if scalar:
            return f"{name} = ca::to<{ctype}>({value});"
        step = 0 if self._lane is None else coefficient(index, self._lane)
        if step in (0, 1):
            return f"ca::store<L>({name} + {c_index(index)}, {value});"
        return f"ca::store_strided<L>({name} + {c_index(index)}, {step}, {value});"


def _by_memory(dims: tuple[Dim, ...], p: Pass) -> tuple[Dim, ...]:
    """Loops of a map in the order of memory, as its first store sees it: they may run in any order."""
    index = next((s.index for stage in p.stages for s in stage.stores), None)
    steps = {symbol: coefficient(index, symbol) for symbol, _ in dims} if index is not None else {}
    if not steps or not all(steps.values()):
        return dims
    return tuple(sorted(dims, key=lambda dim: -(steps[dim[0]] or 0)))
