"""Kernels -> C++ for the cpu target (OpenMP over rows, vector lanes inside).

Schedule parameters of one kernel:

``lanes``   "inner": lanes run along the innermost loop of each stage, and a row's reduction ends across lanes;
            "outer": lanes run along the last row dimension, one row in each lane (rows next to each other in memory).
``width``   lanes of one vector (8 floats with AVX2, 16 with AVX-512).
``unroll``  vectors in flight: accumulators ("inner"), or neighbouring vectors of rows ("outer").
``ahead``   elements ahead of a row's first reading that are fetched into the cache ("inner"; 0: none). Rows end where
            pages do, and there the processor's own prefetcher stops.
``stream``  1: outputs that the kernel does not read back go past the caches.
``threads`` 0: one thread runs everything, where starting the others costs more than the work (all kernels alike).
``chunk``   longest piece of the innermost loop handed to one thread (maps only).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import sympy
import torch

from cuda_agent_backend.codegen.analysis.cancellation import mark_cancelling
from cuda_agent_backend.codegen.analysis.passes import (
    Pass,
    expand_welford,
    mark_means,
    passes,
    scratch,
)
from cuda_agent_backend.codegen.cpu import gemm as cpu_product
from cuda_agent_backend.codegen.cpu.gemm_match import Product, product_of
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.headers import header
from cuda_agent_backend.codegen.ir.indices import coefficient, stays_within
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, RowStage, temporaries
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES, STORAGE_TYPES, Printer, c_index
from cuda_agent_backend.codegen.ir.program import Program
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Store
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.ir.ssa import Instruction
from cuda_agent_backend.codegen.ir.value_types import value_type
from sandbox.plan.plan import Buffer as PlanBuffer
from sandbox.plan.plan import Launch, Plan
from sandbox.task.specs import TensorSpec

ENTRY = "cuda_agent_kernel"
MAX_WRITTEN_OUT = 64
"""Of a width and of vectors in flight: each is written out, so a huge number would be a source of megabytes."""
FLUSH_ELEMENTS = 1024
"""Elements of a sum between two flushes of its accumulators: the length of a run in the cascade."""
RUN_ROWS = 32
"""The same for sums with one row in each lane."""
MEAN_RUNS = 4
"""How many times shorter the runs of a sum are whose mean is subtracted from every term."""
MAX_STACK_BYTES = 512 * 1024
"""Row-local arrays of one thread; beyond this they would not stay in a core's caches anyway."""


_PRELUDE = "cpu/prelude.h"


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
    ahead: int
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kernel = mark_cancelling(mark_means(expand_welford(self.kernel)))
        self.passes = passes(self.kernel)
        self.scratch = scratch(self.kernel, self.passes)
        self._types = {
            s.buffer: COMPUTE_TYPES[_dtype(st)]
            for st in self.kernel.stages
            for s in st.local_stores
        }
        self._lane: sympy.Symbol | None = None
        self._forwarded: dict[str, str] = {}
        # memory that this kernel reads back should stay in the caches
        self._read_back = {i.buffer for s in self.kernel.stages for i in s.body.accesses()}

    def emit(self) -> list[str]:
        """The kernel's statements, inside a parallel region."""
        return self._emit_outer() if self.mode == "outer" else self._emit_inner()

    # --- shared pieces ---

    def _printer(self, indent: str = "") -> Printer:
        return Printer(
            self._lane,
            lambda b: b,
            self._local_read,
            lambda b: self.region.buffers[b].dtype,
            indent,
            local_masked=self._local_read_masked,
        )

    def _local_read_masked(self, i: Instruction, mask: str) -> str:
        """As `_local_read`, for an index that may leave the array where ``mask`` does not hold."""
        assert i.buffer is not None and i.index is not None
        loops = [dim for stage in self.kernel.stages for dim in stage.inner]
        if i.buffer in self._forwarded or stays_within(
            i.index, self.kernel.locals[i.buffer].size, loops
        ):
            return self._local_read(i)
        if self.mode == "outer":
            at = f"ca::iota<L>(({c_index(i.index)}) * span + u * L)"
        elif self._lane is not None and i.index.has(self._lane):
            at = self._printer().vector_index(i.index)
        else:
            at = f"ca::splat<int64_t, L>({c_index(i.index)})"
        return f"ca::gather_masked<L>(l_{i.buffer}, {at}, {mask})"

    def _local_read(self, i: Instruction) -> str:
        assert i.buffer is not None and i.index is not None
        if i.buffer in self._forwarded:
            return self._forwarded[i.buffer]
        name, scalar = f"l_{i.buffer}", self.kernel.locals[i.buffer].size == 1
        if self.mode == "outer":
            return (
                f"{name}[u]"
                if scalar
                else f"ca::load<L>({name} + ({c_index(i.index)}) * span + u * L)"
            )
        if scalar:
            return f"ca::splat<L>({name})"
        step = 0 if self._lane is None else coefficient(i.index, self._lane)
        at = f"{name} + {c_index(i.index)}"
        if step is None:
            return f"ca::gather<L>({name}, {self._printer().vector_index(i.index)})"
        if step in (0, 1):
            return f"ca::{'load' if step else 'broadcast'}<L>({at})"
        return f"ca::load_strided<L>({at}, {step})"

    def _local_store(self, s: Store, value: str) -> str:
        ctype, name = self._types[s.buffer], f"l_{s.buffer}"
        scalar = self.kernel.locals[s.buffer].size == 1
        if self.mode == "outer":
            if scalar:
                return f"{name}[u] = ca::to<{ctype}>({value});"
            return f"ca::store<L>({name} + ({c_index(s.index)}) * span + u * L, {value});"
        if scalar:
            return f"{name} = ca::to<{ctype}>({value});"
        step = 0 if self._lane is None else coefficient(s.index, self._lane)
        if step in (0, 1):
            return f"ca::store<L>({name} + {c_index(s.index)}, {value});"
        return f"ca::store_strided<L>({name} + {c_index(s.index)}, {step}, {value});"

    def _memory_stores(self, stage: RowStage, value: str) -> list[str]:
        printer = self._printer()
        return [
            printer.store(
                s.buffer, s.index, value, stream=self.stream and s.buffer not in self._read_back
            )
            for s in stage.stores
        ]

    def _all_stores(self, stage: RowStage, value: str) -> list[str]:
        kept = [s for s in stage.local_stores if s.buffer in self.scratch]
        return [*self._memory_stores(stage, value), *[self._local_store(s, value) for s in kept]]

    def _body(self, p: Pass, at_end: Callable[[int, RowStage, str], list[str]]) -> list[str]:
        """Bodies of all stages in order; ``at_end(number, stage, value)`` says what becomes of each value."""
        self._forwarded = {}
        out: list[str] = []
        for number, stage in enumerate(p.stages):
            prefix = f"s{number}v"
            out += self._printer().lines(stage.body, prefix)
            value = f"{prefix}{stage.body.results[0].number}"
            out += at_end(number, stage, value)
            if stage.kind == "map":
                cast = [s.buffer for s in stage.local_stores]
                for buffer in cast:
                    self._forwarded[buffer] = f"ca::to<{self._types[buffer]}>({value})"
        self._forwarded = {}
        return out

    def _loops(self, dims: Sequence[Dim], pad: str) -> None:
        for symbol, size in dims:
            self.lines.append(f"{pad}for (int64_t {symbol} = 0; {symbol} < {size}; ++{symbol})")

    def _accumulator(self, stage: RowStage) -> str:
        # these keep the values compared, whose type differs from that of the result
        typed = stage.combine in ("argmax", "argmin", "any")
        ctype = COMPUTE_TYPES[_dtype(stage)]
        if typed:
            dtype_of = self.region.buffers.__getitem__
            ctype = value_type(stage.body, lambda b: dtype_of(b).dtype, self._types.__getitem__)
        return f"ca::{stage.combine}_acc<{ctype}"

    # --- lanes along the inner loop ---

    def _emit_inner(self) -> list[str]:
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
            {"map": self._inner_map, "reduce": self._inner_reduce, "scan": self._inner_scan}[
                p.kind
            ](p)
            add("    }")
        add("  }")
        return self.lines

    def _parallel_for(self, dims: Sequence[Dim]) -> None:
        if not dims:
            self.lines.append("  #pragma omp single")
            return
        self.lines.append(f"  #pragma omp for schedule(static) collapse({len(dims)})")
        self._loops(dims, "  ")

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

    def _inner_map(self, p: Pass) -> None:
        body = self._step(self._body(p, lambda _, stage, value: self._all_stores(stage, value)))
        self._loops(p.inner[:-1], "      ")
        call = (
            self._lane_loop("0", str(p.inner[-1][1]), self.width)
            if p.inner
            else ["      step(ca::lanes<1>{}, 0);"]
        )
        self.lines += ["      {", *body, *call, "      }"]

    def _parallel_map(self, p: Pass) -> None:
        """Maps without rows: threads share the outer loops, and pieces of the innermost one."""
        dims = _by_memory((*self.kernel.outer, *p.inner), p)
        if not dims:
            self.lines += ["  #pragma omp single", "  {"]
            self._inner_map(p)
            self.lines.append("  }")
            return
        *outside, (self._lane, size) = dims
        step = -(-min(size, self.chunk) // 64) * 64
        self._parallel_for((*outside, (sympy.Symbol("piece"), -(-size // step))))
        body = self._step(self._body(p, lambda _, stage, value: self._all_stores(stage, value)))
        loop = self._lane_loop(
            f"piece * {step}", f"ca::imin((piece + 1) * {step}, {size})", self.width
        )
        self.lines += ["  {", *body, *loop, "  }"]

    def _inner_reduce(self, p: Pass) -> None:
        reductions = [(n, s) for n, s in enumerate(p.stages) if s.kind == "reduce"]
        width, unroll, size = self.width, self.unroll, p.inner[-1][1]
        add = self.lines.append
        for n, stage in reductions:
            acc = self._accumulator(stage)
            add(f"      {acc}, {width}> a{n}[{unroll}]; {acc}, 1> t{n};")

        def at_end(number: int, stage: RowStage, value: str) -> list[str]:
            if stage.kind == "map":
                return self._all_stores(stage, value)
            return [f"acc{number}.update({value}, {_position(stage)});"]

        lines = [*self._fetches(p), *self._body(p, at_end)]
        body = self._step(lines, "".join(f", auto& acc{n}" for n, _ in reductions))
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
        block = width * unroll * max(1, FLUSH_ELEMENTS // _finer(p) // (width * unroll))
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
            add(f"      const auto r{n} = ca::across(a{n}[0], t{n});")
            add("      {")
            self._lane, lane = None, self._lane
            add("        constexpr int L = 1; (void)L;")
            self.lines += ["        " + line for line in self._all_stores(stage, f"r{n}")]
            self._lane = lane
            add("      }")

    def _fetches(self, p: Pass) -> list[str]:
        """Prefetches of what the first pass over a row reads of that row."""
        if not self.ahead or p is not self.passes[0]:
            return []
        rows = {symbol for symbol, _ in self.kernel.outer}
        found = {
            f"ca::fetch<L>({i.buffer} + {c_index(i.index)} + {self.ahead});"
            for stage in p.stages
            for i in stage.body.loads()
            if i.buffer not in self.kernel.locals
            and i.index is not None
            and coefficient(i.index, p.inner[-1][0]) == 1
            and rows & i.index.free_symbols
        }
        return sorted(found)

    def _inner_scan(self, p: Pass) -> None:
        (stage,) = p.stages
        if len(p.inner) != 1:
            raise Unsupported("scan over several loops")
        ctype, op = COMPUTE_TYPES[_dtype(stage)], f"ca::scan_{stage.combine}"
        wide = f"ca::scan_t<{ctype}>"

        def at_end(number: int, stage: RowStage, value: str) -> list[str]:
            scanned = f"const auto scanned = ca::scan_lanes<{op}>(ca::to<{wide}>({value}), carry);"
            return [scanned, *self._all_stores(stage, f"ca::to<{ctype}>(scanned)")]

        self.lines.append(f"      {wide} carry = {op}::identity<{wide}>();")
        self.lines += self._step(self._body(p, at_end))
        # a vector of doubles twice as wide as a register makes its shuffles slow
        width = max(1, self.width // 2) if ctype == "float" else self.width
        self.lines += ["      {", *self._lane_loop("0", str(p.inner[0][1]), width), "      }"]

    # --- lanes along the rows ---

    def _emit_outer(self) -> list[str]:
        if not self.kernel.outer:
            raise Unsupported("lanes along rows of a kernel without rows")
        *outside, (self._lane, size) = self.kernel.outer
        add, width, unroll = self.lines.append, self.width, self.unroll
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
            {"map": self._outer_map, "reduce": self._outer_reduce, "scan": self._outer_scan}[
                p.kind
            ](p)
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

    def _outer_loop(self, p: Pass, body: list[str], flush: str = "") -> None:
        inside = self._side_by_side(body)
        if p.inner:
            last, size = p.inner[-1]
            run = min(RUN_ROWS // _finer(p), size) if flush else size
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

    def _outer_map(self, p: Pass) -> None:
        self._outer_loop(p, self._body(p, lambda _, stage, value: self._all_stores(stage, value)))

    def _outer_reduce(self, p: Pass) -> None:
        reductions = [(n, s) for n, s in enumerate(p.stages) if s.kind == "reduce"]
        for n, stage in reductions:
            self.lines.append(f"        {self._accumulator(stage)}, L> a{n}[U];")

        def at_end(number: int, stage: RowStage, value: str) -> list[str]:
            if stage.kind == "map":
                return self._all_stores(stage, value)
            if stage.combine in ("argmax", "argmin"):
                return [f"a{number}[u].template update<0>({value}, {_position(stage)});"]
            return [f"a{number}[u].update({value}, 0);"]

        self._outer_loop(
            p, self._body(p, at_end), " ".join(f"a{n}[u].flush();" for n, _ in reductions)
        )
        for n, stage in reductions:
            finish = [f"const auto r{n} = a{n}[u].result();", *self._all_stores(stage, f"r{n}")]
            self.lines += ["        " + line for line in self._side_by_side(finish)]

    def _outer_scan(self, p: Pass) -> None:
        (stage,) = p.stages
        ctype, op = COMPUTE_TYPES[_dtype(stage)], f"ca::scan_{stage.combine}"
        wide = f"ca::scan_t<{ctype}>"
        self.lines.append(
            f"        ca::vec<{wide}, L> carry[U]; for (int u = 0; u < U; ++u) "
            f"carry[u] = ca::splat<{wide}, L>({op}::identity<{wide}>());"
        )

        def at_end(number: int, stage: RowStage, value: str) -> list[str]:
            combine = f"carry[u] = {op}::combine(carry[u], ca::to<{wide}>({value}));"
            return [combine, *self._all_stores(stage, f"ca::to<{ctype}>(carry[u])")]

        self._outer_loop(p, self._body(p, at_end))


def _finer(p: Pass) -> int:
    return MEAN_RUNS if any(stage.combine == "mean_sum" for stage in p.stages) else 1


def _by_memory(dims: tuple[Dim, ...], p: Pass) -> tuple[Dim, ...]:
    """Loops of a map in the order of memory, as its first store sees it: they may run in any order."""
    index = next((s.index for stage in p.stages for s in stage.stores), None)
    steps = {symbol: coefficient(index, symbol) for symbol, _ in dims} if index is not None else {}
    if not steps or not all(steps.values()):
        return dims
    return tuple(sorted(dims, key=lambda dim: -(steps[dim[0]] or 0)))


def _dtype(stage: RowStage) -> torch.dtype:
    assert isinstance(stage.dtype, torch.dtype)
    return stage.dtype


def _position(stage: RowStage) -> str:
    """Row-major number of a point within the row, in logical order."""
    total, stride = sympy.S.Zero, 1
    for symbol, size in reversed(stage.inner):
        total += symbol * stride
        stride *= size
    return c_index(total)


def emit(
    region: LoweredRegion, kernels: tuple[Kernel, ...], schedule: Schedule
) -> tuple[str, Plan]:
    """Source and plan of ``region`` under ``schedule``.

    Raises:
        Unsupported: the schedule does not fit a kernel, with the reason.
    """
    made = program(region, kernels, schedule)
    return made.source, made.plan


def program(
    region: LoweredRegion, kernels: tuple[Kernel, ...], schedule: Schedule, entry: str = ENTRY
) -> Program:
    """As `emit`, in parts. entry: the function's name.

    Raises:
        Unsupported: the schedule does not fit a kernel, with the reason.
    """
    if len(schedule.kernels) != len(kernels):
        raise Unsupported(
            f"schedule for {len(schedule.kernels)} kernels where there are {len(kernels)}"
        )
    products = _products(kernels, schedule)
    plan = _plan(region, kernels, [t for _, p in products.values() for t in p.temporaries()])
    preludes = [_PRELUDE, *([cpu_product.PRELUDE] if products else [])]
    out = [
        f'extern "C" void {entry}(void* const* buffers) {{',
    ]
    for number, buffer in enumerate(plan.buffers):
        ctype = STORAGE_TYPES[getattr(torch, buffer.spec.dtype)]
        const = "const " if buffer.kind == "input" else ""
        out.append(
            f"  {const}{ctype}* __restrict__ {buffer.name} = "
            f"static_cast<{const}{ctype}*>(buffers[{number}]); (void){buffer.name};"
        )
    threads = (
        ""
        if any(schedule.parameters(n).get("threads", 1) for n in range(len(kernels)))
        else " if(0)"
    )
    out.append(f"  #pragma omp parallel{threads}")
    out.append("  {")
    streamed = False
    for number, kernel in enumerate(kernels):
        p = schedule.parameters(number)
        _check_written_out(p)
        if number in products:
            product, panels = products[number]
            width, rows = int(p.get("width", 8)), int(p.get("rows", cpu_product.ROWS[0]))
            out += cpu_product.ProductWriter(kernel, product, region, panels, width, rows).emit()
            continue
        stream = bool(p.get("stream", 0))
        streamed |= stream
        _check_stack(kernel, region, p)
        writer = _KernelWriter(
            kernel,
            region,
            str(p.get("lanes", "inner")),
            int(p.get("width", 8)),
            int(p.get("unroll", 1)),
            stream,
            int(p.get("chunk", 16384)),
            int(p.get("ahead", 0)),
        )
        out += writer.emit()
    if streamed:
        out.append("  ca::stream_fence();")
    out += ["  }", "}"]
    texts = tuple(map(header, preludes))
    return Program(texts, ("\n".join(out),), plan)


def _products(
    kernels: tuple[Kernel, ...], schedule: Schedule
) -> dict[int, tuple[Product, cpu_product.Panels]]:
    """The kernels that are matrix products, by number, with the temporaries they need."""
    found = {}
    for number, kernel in enumerate(kernels):
        product = product_of(kernel)
        if product is not None:
            width = int(schedule.parameters(number).get("width", 8))
            found[number] = product, cpu_product.panels(product, number, width)
    return found


def _check_written_out(p: dict[str, int | str]) -> None:
    for name in ("width", "unroll"):
        if not 1 <= int(p.get(name, 1)) <= MAX_WRITTEN_OUT:
            raise Unsupported(f"{name} is {p[name]}, not within 1 and {MAX_WRITTEN_OUT}")


def _check_stack(kernel: Kernel, region: LoweredRegion, p: dict[str, int | str]) -> None:
    span = int(p.get("width", 8)) * int(p.get("unroll", 1)) if p.get("lanes") == "outer" else 1
    size = sum(v.size * region.buffers[n].dtype.itemsize * span for n, v in kernel.locals.items())
    if size > MAX_STACK_BYTES:
        raise Unsupported(f"row of {size} bytes does not stay on the core")


def _plan(
    region: LoweredRegion, kernels: tuple[Kernel, ...], panels: Sequence[tuple[str, int]]
) -> Plan:
    """Buffers in plan order: inputs, outputs, the temporaries that pass from kernel to kernel, panels of products."""

    def entry(name: str, kind: Literal["input", "output"]) -> PlanBuffer:
        b = region.buffers[name]
        return PlanBuffer(name, kind, TensorSpec(_name(b.dtype), b.shape, b.stride))

    buffers = [entry(n, "input") for n in region.inputs] + [
        entry(n, "output") for n in region.outputs
    ]
    buffers += [
        PlanBuffer(b.name, "temporary", TensorSpec(_name(b.dtype), (b.extent,), (1,)))
        for b in temporaries(region, kernels)
    ]
    buffers += [
        PlanBuffer(name, "temporary", TensorSpec("float32", (elements,), (1,)))
        for name, elements in panels
    ]
    return Plan("cpu", tuple(buffers), (Launch(ENTRY),))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
