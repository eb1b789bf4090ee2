"""Kernels -> C++ for the cpu target (OpenMP over rows, vector lanes inside).

Schedule parameters of one kernel:

``lanes``   "inner": lanes run along the innermost loop of each stage, and a row's reduction ends across lanes;
            "outer": lanes run along the last row dimension, one row in each lane (rows next to each other in memory).
``width``   lanes of one vector (8 floats with AVX2, 16 with AVX-512).
``unroll``  vectors in flight: accumulators ("inner"), or neighbouring vectors of rows ("outer").
``stream``  1: outputs that the kernel does not read back go past the caches.
``chunk``   longest piece of the innermost loop handed to one thread (maps only).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import sympy
import torch

from cuda_agent_backend.sketch.lower import LoweredRegion
from cuda_agent_backend.sketch.nest import Dim, Kernel, RowStage, coefficient
from cuda_agent_backend.sketch.printer import COMPUTE_TYPES, STORAGE_TYPES, Printer, c_index
from cuda_agent_backend.sketch.schedule import Schedule
from cuda_agent_backend.sketch.ssa import Instruction, Unsupported
from sandbox.plan import Buffer as PlanBuffer
from sandbox.plan import Launch, Plan
from sandbox.specs import TensorSpec

ENTRY = "cuda_agent_kernel"
FLUSH_ELEMENTS = 1024
"""Elements of a sum between two flushes of its accumulators: the length of a run in the cascade."""
RUN_ROWS = 32
"""The same for sums with one row in each lane."""
MAX_STACK_BYTES = 512 * 1024
"""Row-local arrays of one thread; beyond this they would not stay in a core's caches anyway."""

_PRELUDE = Path(__file__).parent / "csrc" / "cpu.h"


def _sum(terms: list[str]) -> str:
    return " + ".join(terms) if terms else "0"


@dataclass
class _KernelWriter:
    """Writes one kernel. ``mode`` is the lane mode; ``lines`` the growing source."""

    kernel: Kernel
    region: LoweredRegion
    mode: str
    width: int
    unroll: int
    stream: bool
    chunk: int
    lines: list[str] = field(default_factory=list)

    # --- shared pieces ---

    def _dtype(self, buffer: str) -> torch.dtype:
        return self.region.buffers[buffer].dtype

    def _compute(self, stage: RowStage) -> str:
        return COMPUTE_TYPES[self._stage_dtype(stage)]

    @staticmethod
    def _stage_dtype(stage: RowStage) -> torch.dtype:
        assert isinstance(stage.dtype, torch.dtype)
        return stage.dtype

    def _local_type(self, buffer: str) -> str:
        return COMPUTE_TYPES[self._dtype(buffer)]

    def _read_back(self) -> set[str]:
        """Memory buffers that some stage of this kernel reads."""
        return {i.buffer for s in self.kernel.stages for i in s.body.loads() if i.buffer}

    def _printer(self, lane: sympy.Symbol | None, indent: str) -> Printer:
        return Printer(lane, lambda b: b, self._local_read, self._dtype, indent)

    def _local_read(self, i: Instruction) -> str:
        assert i.buffer is not None and i.index is not None
        local = self.kernel.locals[i.buffer]
        if self.mode == "outer":
            if local.size == 1:
                return f"l_{i.buffer}[u]"
            return f"ca::load<L>(l_{i.buffer} + ({c_index(i.index)}) * span + u * L)"
        if local.size == 1:
            return f"ca::splat<L>(l_{i.buffer})"
        lane = self._lane
        step = 0 if lane is None else coefficient(i.index, lane)
        at = f"l_{i.buffer} + {c_index(i.index)}"
        if step == 0:
            return f"ca::broadcast<L>({at})"
        if step == 1:
            return f"ca::load<L>({at})"
        if step is None:
            return f"ca::gather<L>(l_{i.buffer}, {self._printer(lane, '').vector_index(i.index)})"
        return f"ca::load_strided<L>({at}, {step})"

    _lane: sympy.Symbol | None = None

    def _stores(self, stage: RowStage, values: dict[int, str], printer: Printer, pad: str) -> list[str]:
        keep_cached = self._read_back()
        out = []
        for s in stage.stores:
            stream = self.stream and s.buffer not in keep_cached
            out.append(pad + printer.store(s.buffer, s.index, values[s.field], stream=stream))
        return out

    def emit(self) -> list[str]:
        return self._emit_outer() if self.mode == "outer" else self._emit_inner()

    # --- lanes along the inner loop ---

    def _emit_inner(self) -> list[str]:
        if self.kernel.is_map and not self.kernel.locals:
            for stage in self.kernel.stages:
                self._parallel_map(stage)
            return self.lines
        add = self.lines.append
        depth = len(self.kernel.outer)
        if depth:
            add(f"  #pragma omp for schedule(static) collapse({depth})" if depth > 1 else "  #pragma omp for schedule(static)")
            for symbol, size in self.kernel.outer:
                add(f"  for (int64_t {symbol} = 0; {symbol} < {size}; ++{symbol})")
        else:
            add("  #pragma omp single")
        add("  {")
        self._declare_locals()
        for stage in self.kernel.stages:
            add(f"    {{  // {stage.name}: {stage.kind} {stage.combine}".rstrip())
            getattr(self, f"_inner_{stage.kind}")(stage)
            add("    }")
        add("  }")
        return self.lines

    def _declare_locals(self) -> None:
        for name, local in self.kernel.locals.items():
            ctype = self._local_type(name)
            if local.size == 1:
                self.lines.append(f"    ca::vec<{ctype}, 1> l_{name}{{}};")
            else:
                self.lines.append(f"    alignas(64) {ctype} l_{name}[{local.size}];")

    def _body_lambda(self, stage: RowStage, arguments: str, tail: list[str]) -> list[str]:
        lane = stage.inner[-1][0] if stage.inner else None
        self._lane = lane
        printer = self._printer(lane, "        ")
        head = f"      auto step = [&](auto width_, int64_t {lane or 'unused_'}{arguments}) __attribute__((always_inline)) {{"
        return [
            head,
            "        constexpr int L = decltype(width_)::value; (void)L;",
            *printer.lines(stage.body),
            *["        " + t for t in tail],
            "      };",
        ]

    def _outer_loops(self, dims: tuple[Dim, ...], pad: str = "      ") -> None:
        for symbol, size in dims:
            self.lines.append(f"{pad}for (int64_t {symbol} = 0; {symbol} < {size}; ++{symbol})")

    def _map_tail(self, stage: RowStage) -> list[str]:
        lane = stage.inner[-1][0] if stage.inner else None
        printer = self._printer(lane, "")
        value = f"v{stage.body.results[0].number}"
        tail = self._stores(stage, {0: value}, printer, "")
        for s in stage.local_stores:
            if self.kernel.locals[s.buffer].size == 1:
                tail.append(f"l_{s.buffer} = ca::to<{self._local_type(s.buffer)}>({value});")
            elif lane is not None and coefficient(s.index, lane) not in (0, 1):
                tail.append(f"ca::store_strided<L>(l_{s.buffer} + {c_index(s.index)}, {coefficient(s.index, lane)}, {value});")
            else:
                tail.append(f"ca::store<L>(l_{s.buffer} + {c_index(s.index)}, {value});")
        return tail

    def _inner_map(self, stage: RowStage) -> None:
        self._outer_loops(stage.inner[:-1])
        self.lines.append("      {")
        self.lines += self._body_lambda(stage, "", self._map_tail(stage))
        if stage.inner:
            self._lane_loop("0", str(stage.inner[-1][1]))
        else:
            self.lines.append("      step(ca::lanes<1>{}, 0);")
        self.lines.append("      }")

    def _lane_loop(self, low: str, high: str) -> None:
        self.lines += [
            "      {",
            f"        int64_t i = {low};",
            f"        for (; i + {self.width} <= {high}; i += {self.width}) step(ca::lanes<{self.width}>{{}}, i);",
            f"        for (; i < {high}; ++i) step(ca::lanes<1>{{}}, i);",
            "      }",
        ]

    def _parallel_map(self, stage: RowStage) -> None:
        """A map without rows: threads share its outer loops, and pieces of the innermost one."""
        dims = (*self.kernel.outer, *stage.inner)
        if not dims:
            self.lines += ["  #pragma omp single", "  {"]
            self._inner_map(stage)
            self.lines.append("  }")
            return
        *outside, (lane, size) = dims
        stage = RowStage(stage.name, stage.kind, stage.combine, stage.dtype, dims, stage.body, stage.stores, ())
        pieces = max(1, -(-size // self.chunk))
        step = -(-size // pieces)
        step = -(-step // 64) * 64
        depth = len(outside) + 1
        self.lines.append(f"  #pragma omp for schedule(static) collapse({depth})")
        self._outer_loops(tuple(outside), "  ")
        self.lines.append(f"  for (int64_t piece = 0; piece < {-(-size // step)}; ++piece) {{")
        self.lines += self._body_lambda(stage, "", self._map_tail(stage))
        self._lane_loop(f"piece * {step}", f"ca::imin((piece + 1) * {step}, {size})")
        self.lines.append("  }")

    def _accumulator(self, combine: str, stage: RowStage) -> str:
        # An arg reduction accumulates the values compared, whose type only the body knows
        ctype = "T" if combine in ("argmax", "argmin", "any") else self._compute(stage)
        return f"ca::{combine}_acc<{ctype}"

    def _position(self, stage: RowStage) -> str:
        """Row-major number of a point within the row, in logical order."""
        total, stride = [], 1
        for symbol, size in reversed(stage.inner):
            total.append(f"{symbol} * {stride}" if stride > 1 else str(symbol))
            stride *= size
        return _sum(total[::-1])

    def _inner_reduce(self, stage: RowStage) -> None:
        if stage.combine == "welford":
            self._inner_welford(stage)
            return
        value = f"v{stage.body.results[0].number}"
        self._reduction_loops(stage, stage.combine, value, "r0")
        self._finish(stage, {0: "r0"})

    def _inner_welford(self, stage: RowStage) -> None:
        """Mean first, then squared deviations: the row is in the caches, and two passes lose no digits."""
        value = f"v{stage.body.results[0].number}"
        ctype, count = self._compute(stage), stage.points
        self._reduction_loops(stage, "sum", value, "total")
        self.lines.append(f"      const ca::vec<{ctype}, 1> r0 = {{total.x / {ctype}({count})}};")
        self._reduction_loops(stage, "sum", f"ca::square(ca::sub({value}, ca::splat<L>(r0)))", "r1")
        self.lines.append(f"      const ca::vec<{ctype}, 1> r2 = {{{ctype}({count})}};")
        self._finish(stage, {0: "r0", 1: "r1", 2: "r2"})

    def _reduction_loops(self, stage: RowStage, combine: str, value: str, result: str) -> None:
        if not stage.inner:
            raise Unsupported("reduction over a single point")
        step, width, unroll = f"step_{result}", self.width, self.unroll
        body = self._body_lambda(stage, ", auto& acc", [f"acc.update({value}, {self._position(stage)});"])
        body[0] = body[0].replace("auto step =", f"auto {step} =")
        size = stage.inner[-1][1]
        if combine in ("argmax", "argmin", "any"):
            # the type of the values compared, from a body run at the first point
            self.lines += [f"      typedef {self._compared_type(stage)} T;"]
        acc = self._accumulator(combine, stage)
        names = [f"{result}_a{u}" for u in range(unroll)]
        self.lines.append(f"      {acc}, {width}> " + ", ".join(names) + f"; {acc}, 1> {result}_tail;")
        self._outer_loops(stage.inner[:-1])
        calls = " ".join(f"{step}(ca::lanes<{width}>{{}}, i + {u * width}, {n});" for u, n in enumerate(names))
        flushes = " ".join(f"{n}.flush();" for n in names)
        block = max(FLUSH_ELEMENTS, width * unroll)
        self.lines += [
            "      {",
            *body,
            "        int64_t i = 0;",
            f"        while (i + {width * unroll} <= {size}) {{",
            f"          const int64_t stop = ca::imin(i + {block}, {size});",
            f"          for (; i + {width * unroll} <= stop; i += {width * unroll}) {{ {calls} }}",
            f"          {flushes}",
            "        }",
            f"        for (; i + {width} <= {size}; i += {width}) {step}(ca::lanes<{width}>{{}}, i, {names[0]});",
            f"        for (; i < {size}; ++i) {step}(ca::lanes<1>{{}}, i, {result}_tail);",
            "      }",
        ]
        self.lines += [f"      {names[0]}.merge({n});" for n in names[1:]]
        self.lines.append(f"      const auto {result} = ca::across({names[0]}, {result}_tail);")

    def _compared_type(self, stage: RowStage) -> str:
        """Compute type of the reduced value, found from the body's last typed instruction."""
        types: dict[int, str] = {}
        for i in stage.body.walk():
            if i.op in ("load", "local") and i.buffer is not None:
                types[i.result.number] = COMPUTE_TYPES[self._dtype(i.buffer)]
            elif i.dtype is not None:
                types[i.result.number] = COMPUTE_TYPES[i.dtype]
            elif i.op in ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "signbit") or i.op.startswith("logical"):
                types[i.result.number] = "bool"
            else:
                operands = [o for o in i.operands if hasattr(o, "number")]
                known = [types[o.number] for o in operands if o.number in types]
                if i.op == "masked" and i.body is not None:
                    known = [types[i.body.results[0].number]]
                elif i.op == "where":
                    known = [types[o.number] for o in operands[1:] if o.number in types]
                if not known:
                    raise Unsupported(f"type of {i.op} in a reduction of positions")
                types[i.result.number] = known[0]
        return types[stage.body.results[0].number]

    def _finish(self, stage: RowStage, results: dict[int, str]) -> None:
        """Put a reduction's results where they are wanted; they are single lanes."""
        self.lines.append("      { constexpr int L = 1; (void)L;")
        for s in stage.stores:
            at = f"{s.buffer} + {c_index(s.index)}"
            self.lines.append(f"        ca::store<1>({at}, {results[s.field]});")
        for s in stage.local_stores:
            self.lines.append(f"        l_{s.buffer} = ca::to<{self._local_type(s.buffer)}>({results[s.field]});")
        self.lines.append("      }")

    def _inner_scan(self, stage: RowStage) -> None:
        value = f"v{stage.body.results[0].number}"
        ctype, op = self._compute(stage), f"ca::scan_{stage.combine}"
        scan = f"const auto scanned = ca::scan_lanes<{op}>(ca::to<ca::scan_t<{ctype}>>({value}), carry);"
        lane = stage.inner[-1][0]
        printer = self._printer(lane, "")
        tail = [scan, *self._stores(stage, {0: f"ca::to<{ctype}>(scanned)"}, printer, "")]
        tail += [f"ca::store<L>(l_{s.buffer} + {c_index(s.index)}, ca::to<{ctype}>(scanned));" for s in stage.local_stores]
        self.lines.append(f"      ca::scan_t<{ctype}> carry = {op}::identity<ca::scan_t<{ctype}>>();")
        self.lines += self._body_lambda(stage, "", tail)
        if len(stage.inner) > 1:
            raise Unsupported("scan over several loops")
        width = min(self.width, 4) if ctype == "float" else self.width
        self.lines += [
            "      {",
            "        int64_t i = 0;",
            f"        for (; i + {width} <= {stage.inner[-1][1]}; i += {width}) step(ca::lanes<{width}>{{}}, i);",
            f"        for (; i < {stage.inner[-1][1]}; ++i) step(ca::lanes<1>{{}}, i);",
            "      }",
        ]

    # --- lanes along the rows ---

    def _emit_outer(self) -> list[str]:
        if not self.kernel.outer:
            raise Unsupported("lanes along rows of a kernel without rows")
        *outside, (lane, size) = self.kernel.outer
        self._lane = lane
        add = self.lines.append
        block = self.width * self.unroll
        blocks = -(-size // block)
        loops = [*outside, (sympy.Symbol("block"), blocks)]
        add(f"  #pragma omp for schedule(static) collapse({len(loops)})")
        for symbol, n in loops:
            add(f"  for (int64_t {symbol} = 0; {symbol} < {n}; ++{symbol}) {{" if symbol.name == "block" else
                f"  for (int64_t {symbol} = 0; {symbol} < {n}; ++{symbol})")
        add("    auto rows = [&](auto width_, auto unroll_, int64_t first) {")
        add("      constexpr int L = decltype(width_)::value, U = decltype(unroll_)::value;")
        add("      constexpr int64_t span = L * U; (void)span;")
        for name, local in self.kernel.locals.items():
            ctype = self._local_type(name)
            if local.size == 1:
                add(f"      ca::vec<{ctype}, L> l_{name}[U];")
            else:
                add(f"      alignas(64) {ctype} l_{name}[{local.size} * span];")
        for stage in self.kernel.stages:
            add(f"      {{  // {stage.name}: {stage.kind} {stage.combine}".rstrip())
            getattr(self, f"_outer_{stage.kind}")(stage, lane)
            add("      }")
        add("    };")
        add(f"    int64_t first = block * {block};")
        add(f"    const int64_t stop = ca::imin(first + {block}, {size});")
        add(f"    if (first + {block} <= stop) {{ rows(ca::lanes<{self.width}>{{}}, ca::lanes<{self.unroll}>{{}}, first); first = stop; }}")
        add(f"    for (; first + {self.width} <= stop; first += {self.width}) rows(ca::lanes<{self.width}>{{}}, ca::lanes<1>{{}}, first);")
        add("    for (; first < stop; ++first) rows(ca::lanes<1>{}, ca::lanes<1>{}, first);")
        add("  }")
        return self.lines

    def _outer_body(self, stage: RowStage, lane: sympy.Symbol, before: list[str], tail: list[str], flush: str) -> None:
        """Inner loops in order; at each point, the unrolled vectors of rows side by side."""
        add = self.lines.append
        for line in before:
            add("        " + line)
        pad = "        "
        body = [
            pad + "  for (int u = 0; u < U; ++u) {",
            pad + f"    const int64_t {lane} = first + u * L; (void){lane};",
            *["    " + x for x in self._printer(lane, pad).lines(stage.body)],
            *[pad + "    " + t for t in tail],
            pad + "  }",
        ]
        if not stage.inner:
            self.lines += [pad + "{", *body, pad + "}"]
            return
        *outside, (last, size) = stage.inner
        self._outer_loops(tuple(outside), pad)
        run = min(RUN_ROWS, size) if flush else size
        self.lines += [
            pad + "{",
            pad + f"for (int64_t run = 0; run < {size}; run += {run}) {{",
            pad + f"const int64_t run_end = ca::imin(run + {run}, {size});",
            pad + f"for (int64_t {last} = run; {last} < run_end; ++{last}) {{",
            *body,
            pad + "}",
            *([pad + f"for (int u = 0; u < U; ++u) {{ {flush} }}"] if flush else []),
            pad + "}",
            pad + "}",
        ]

    def _outer_targets(self, stage: RowStage, values: dict[int, str], printer: Printer) -> list[str]:
        out = self._stores(stage, values, printer, "")
        for s in stage.local_stores:
            ctype = self._local_type(s.buffer)
            if self.kernel.locals[s.buffer].size == 1:
                out.append(f"l_{s.buffer}[u] = ca::to<{ctype}>({values[s.field]});")
            else:
                out.append(f"ca::store<L>(l_{s.buffer} + ({c_index(s.index)}) * span + u * L, {values[s.field]});")
        return out

    def _outer_map(self, stage: RowStage, lane: sympy.Symbol) -> None:
        value = f"v{stage.body.results[0].number}"
        self._outer_body(stage, lane, [], self._outer_targets(stage, {0: value}, self._printer(lane, "")), "")

    def _outer_reduce(self, stage: RowStage, lane: sympy.Symbol) -> None:
        value = f"v{stage.body.results[0].number}"
        printer, ctype = self._printer(lane, ""), self._compute(stage)
        if stage.combine == "welford":
            count = stage.points
            self._outer_body(stage, lane, [f"ca::sum_acc<{ctype}, L> total[U];"], [f"total[u].update({value}, 0);"], "total[u].flush();")
            self.lines.append(f"        ca::vec<{ctype}, L> r0[U]; for (int u = 0; u < U; ++u) r0[u] = {{total[u].result().x / {ctype}({count})}};")
            self._outer_body(stage, lane, [f"ca::sum_acc<{ctype}, L> m2[U];"],
                             [f"m2[u].update(ca::square(ca::sub({value}, r0[u])), 0);"], "m2[u].flush();")
            results = {0: "r0[u]", 1: "m2[u].result()", 2: f"ca::splat<{ctype}, L>({ctype}({count}))"}
        else:
            if stage.combine in ("argmax", "argmin", "any"):
                self.lines.append(f"        typedef {self._compared_type(stage)} T;")
            acc = f"{self._accumulator(stage.combine, stage)}, L>"
            update = f"acc[u].template update<0>({value}, {self._position(stage)});" if stage.combine.startswith("arg") else (
                f"acc[u].update({value}, 0);"
            )
            self._outer_body(stage, lane, [f"{acc} acc[U];"], [update], "acc[u].flush();")
            results = {0: "acc[u].result()"}
        self.lines.append("        for (int u = 0; u < U; ++u) {")
        self.lines.append(f"          const int64_t {lane} = first + u * L; (void){lane};")
        self.lines += ["          " + t for t in self._outer_targets(stage, results, printer)]
        self.lines.append("        }")

    def _outer_scan(self, stage: RowStage, lane: sympy.Symbol) -> None:
        value = f"v{stage.body.results[0].number}"
        ctype, op = self._compute(stage), f"ca::scan_{stage.combine}"
        wide = f"ca::scan_t<{ctype}>"
        before = [f"ca::vec<{wide}, L> carry[U]; for (int u = 0; u < U; ++u) carry[u] = ca::splat<{wide}, L>({op}::identity<{wide}>());"]
        tail = [f"carry[u] = {op}::combine(carry[u], ca::to<{wide}>({value}));"]
        tail += self._outer_targets(stage, {0: f"ca::to<{ctype}>(carry[u])"}, self._printer(lane, ""))
        self._outer_body(stage, lane, before, tail, "")


def emit(region: LoweredRegion, kernels: tuple[Kernel, ...], schedule: Schedule) -> tuple[str, Plan]:
    """Source and plan of ``region`` under ``schedule``.

    Raises:
        Unsupported: the schedule does not fit a kernel, with the reason.
    """
    if len(schedule.kernels) != len(kernels):
        raise Unsupported(f"schedule for {len(schedule.kernels)} kernels where there are {len(kernels)}")
    plan = _plan(region, kernels)
    out = [_PRELUDE.read_text(encoding="utf-8"), f'extern "C" void {ENTRY}(void* const* buffers) {{']
    for number, buffer in enumerate(plan.buffers):
        ctype = STORAGE_TYPES[getattr(torch, buffer.spec.dtype)]
        const = "const " if buffer.kind == "input" else ""
        out.append(f"  {const}{ctype}* __restrict__ {buffer.name} = static_cast<{const}{ctype}*>(buffers[{number}]); (void){buffer.name};")
    out.append("  #pragma omp parallel")
    out.append("  {")
    streamed = False
    for number, kernel in enumerate(kernels):
        p = schedule.parameters(number)
        stream = bool(p.get("stream", 0))
        streamed |= stream
        _check_stack(kernel, region, p)
        writer = _KernelWriter(kernel, region, str(p.get("lanes", "inner")), int(p.get("width", 8)),
                               int(p.get("unroll", 1)), stream, int(p.get("chunk", 16384)))
        out += writer.emit()
    if streamed:
        out.append("  ca::stream_fence();")
    out += ["  }", "}", ""]
    return "\n".join(out), plan


def _check_stack(kernel: Kernel, region: LoweredRegion, p: dict[str, int | str]) -> None:
    span = int(p.get("width", 8)) * int(p.get("unroll", 1)) if p.get("lanes") == "outer" else 1
    size = sum(v.size * region.buffers[n].dtype.itemsize * span for n, v in kernel.locals.items())
    if size > MAX_STACK_BYTES:
        raise Unsupported(f"row of {size} bytes does not stay on the core")


def _plan(region: LoweredRegion, kernels: tuple[Kernel, ...]) -> Plan:
    """Buffers in plan order: inputs, outputs, and the temporaries that pass from kernel to kernel."""
    written = {s.buffer for k in kernels for st in k.stages for s in st.stores}
    temporaries = [b for b in region.buffers.values() if b.role == "temporary" and b.name in written]

    def entry(name: str, kind: Literal["input", "output"]) -> PlanBuffer:
        b = region.buffers[name]
        return PlanBuffer(name, kind, TensorSpec(_name(b.dtype), b.shape, b.stride))

    buffers = [entry(n, "input") for n in region.inputs] + [entry(n, "output") for n in region.outputs]
    buffers += [
        PlanBuffer(b.name, "temporary", TensorSpec(_name(b.dtype), (b.extent,), (1,))) for b in temporaries
    ]
    return Plan("cpu", tuple(buffers), (Launch(ENTRY),))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- schedules ------------------------------------------------------------------------------------------------


def _lane_modes(kernel: Kernel) -> list[str]:
    """Lane modes that read memory contiguously, better one first."""
    inner = outer = 0
    for stage in kernel.stages:
        for i in stage.body.loads():
            assert i.index is not None
            if stage.inner:
                inner += (coefficient(i.index, stage.inner[-1][0]) == 1) * stage.points
            if kernel.outer:
                outer += (coefficient(i.index, kernel.outer[-1][0]) == 1) * stage.points
    modes = ["inner"] if inner or not outer else []
    if outer and not kernel.is_map:
        modes.append("outer")
    return modes if inner >= outer else modes[::-1]


def schedules(kernels: tuple[Kernel, ...], width: int, bytes_moved: int, cache_bytes: int) -> list[Schedule]:
    """Schedules worth trying, best guess first. Streaming stores pay once outputs exceed the caches."""
    per_kernel: list[list[dict[str, int | str]]] = []
    big = bytes_moved > cache_bytes // 4
    for kernel in kernels:
        options: list[dict[str, int | str]] = []
        for mode in _lane_modes(kernel):
            unrolls = [4, 2, 8] if mode == "inner" else [4, 8, 2, 16]
            if kernel.is_map and mode == "inner":
                unrolls = [1]
            for unroll in unrolls:
                for stream in ([1, 0] if big else [0, 1]):
                    options.append({"lanes": mode, "width": width, "unroll": unroll, "stream": stream})
        if kernel.is_map:
            options += [{**o, "chunk": 4096} for o in options]
        per_kernel.append(options)
    return _combine(per_kernel)


def _combine(per_kernel: list[list[dict[str, int | str]]]) -> list[Schedule]:
    """All firsts, then one kernel's choice changed at a time: kernels of a region hardly interact."""
    first = [options[0] for options in per_kernel]
    result = [Schedule.of(*first)]
    for position, options in enumerate(per_kernel):
        for option in options[1:]:
            result.append(Schedule.of(*[option if j == position else f for j, f in enumerate(first)]))
    return result


def estimated_points(kernels: tuple[Kernel, ...]) -> int:
    """Loop points over all stages: what decides whether threads pay."""
    return sum(k.rows * s.points for k in kernels for s in k.stages)

