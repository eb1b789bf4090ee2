"""Kernels over rows -> CUDA: reductions, norms, the softmax family and scans, with all that is fused to them.

See ``cuda_layout`` for how rows are laid over threads. A pass whose loops cover the whole row is *full*: its
positions are dealt to the team, and what its threads keep of one pass is at hand in the next without an exchange.
Other passes (a value for each channel, say) are *side* passes: they loop over their own few points, and their arrays
are in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import sympy

from cuda_agent_backend.sketch.cuda_access import (
    POSITION,
    Flat,
    LanePrinter,
    flat_body,
    flatten,
    is_aligned,
    value_type,
)
from cuda_agent_backend.sketch.cuda_inline import inline_arrays
from cuda_agent_backend.sketch.cuda_join import join, load_partials, store_partial
from cuda_agent_backend.sketch.cuda_layout import DeviceFacts, Layout, ceildiv, read_layout
from cuda_agent_backend.sketch.cuda_parts import (
    BYTES,
    PARTIAL_TYPES,
    Accumulator,
    Emitted,
    SharedMemory,
    buffers_of,
    local_types,
    needs_wide,
    parameters_of,
    stage_dtype,
    temporary,
)
from cuda_agent_backend.sketch.lower import LoweredRegion, Store
from cuda_agent_backend.sketch.nest import Kernel, RowStage, coefficient
from cuda_agent_backend.sketch.passes import Pass, expand_welford, passes, scratch
from cuda_agent_backend.sketch.printer import COMPUTE_TYPES, STORAGE_TYPES, c_index
from cuda_agent_backend.sketch.schedule import Parameter
from cuda_agent_backend.sketch.ssa import Instruction, Unsupported
from sandbox.plan import Buffer as PlanBuffer
from sandbox.plan import Launch

Key = tuple[str, sympy.Expr]


def row_points(kernel: Kernel) -> int:
    """Elements of a row: those of the longest loop over it."""
    return max((s.points for s in kernel.stages), default=1)


def is_full(p: Pass, points: int) -> bool:
    return bool(p.inner) and p.stages[0].points == points


@dataclass(frozen=True)
class RowProgram:
    """A kernel as passes, prepared for one layout, and where its arrays live.

    ``own``: arrays whose elements only the thread that makes them reads; ``shared``: the others. ``kept``: loads that
    several passes do, by name. ``reuse``: own arrays that may overwrite a kept load, which nobody needs by then.
    """

    kernel: Kernel
    passes: tuple[Pass, ...]
    flats: tuple[Flat, ...]
    scratch: frozenset[str]
    own: frozenset[str]
    shared: frozenset[str]
    kept: dict[Key, str]
    reuse: dict[str, str]

    @staticmethod
    def of(kernel: Kernel, layout: Layout, region: LoweredRegion) -> RowProgram:
        kernel = expand_welford(kernel)
        if layout.keep == "none":
            scanned = frozenset(
                s.buffer for st in kernel.stages if st.kind == "scan" for s in st.local_stores
            )
            kernel = inline_arrays(kernel, scanned)
        grouped = passes(kernel)
        flats = tuple(flatten(p.inner, layout.index_type) for p in grouped)
        kept = frozenset(scratch(kernel, grouped))
        arrays = {n for n in kept if kernel.locals[n].size > 1}
        own = frozenset(
            n
            for n in arrays
            if layout.keep != "none" and _only_own(n, grouped, flats, layout.points)
        )
        loads = _repeated_loads(grouped, flats, layout.points) if layout.keep != "none" else {}
        reuse = _overwritten(own, loads, grouped, flats, region) if layout.keep == "shared" else {}
        return RowProgram(kernel, grouped, flats, kept, own, frozenset(arrays - own), loads, reuse)


def _only_own(name: str, grouped: Sequence[Pass], flats: Sequence[Flat], points: int) -> bool:
    """Whether array ``name`` is made and read at the current position only, by full passes."""
    for p, flat in zip(grouped, flats, strict=True):
        for stage in p.stages:
            indices = [s.index for s in stage.local_stores if s.buffer == name]
            indices += [
                i.index
                for i in stage.body.walk()
                if i.op == "local" and i.buffer == name and i.index is not None
            ]
            if indices and not is_full(p, points):
                return False
            if any(flat.of(index) != POSITION for index in indices):
                return False
    return True


def _repeated_loads(grouped: Sequence[Pass], flats: Sequence[Flat], points: int) -> dict[Key, str]:
    seen: dict[Key, int] = {}
    for p, flat in zip(grouped, flats, strict=True):
        if not is_full(p, points):
            continue
        mine: set[Key] = set()
        for stage in p.stages:
            for i in stage.body.instructions:
                if i.op == "load" and i.index is not None and i.buffer is not None:
                    index = flat.of(i.index)
                    if POSITION in index.free_symbols and not index.free_symbols & set(
                        dict(p.inner)
                    ):
                        mine.add((i.buffer, index))
        for key in mine:
            seen[key] = seen.get(key, 0) + 1
    repeated = sorted((key for key, count in seen.items() if count > 1), key=str)
    return {key: f"kept{n}" for n, key in enumerate(repeated)}


def _overwritten(
    own: frozenset[str],
    kept: dict[Key, str],
    grouped: Sequence[Pass],
    flats: Sequence[Flat],
    region: LoweredRegion,
) -> dict[str, str]:
    """Own arrays that can lie where a kept load lay: it has elements of that size, and is not read after."""
    stages = [(stage, flat) for p, flat in zip(grouped, flats, strict=True) for stage in p.stages]
    last = {
        name: max(n for n, (st, flat) in enumerate(stages)
                  if any(i.op == "load" and i.buffer == buffer and i.index is not None and flat.of(i.index) == index
                         for i in st.body.walk()))
        for (buffer, index), name in kept.items()
    }  # fmt: skip
    width = {name: region.buffers[buffer].dtype.itemsize for (buffer, _), name in kept.items()}
    result: dict[str, str] = {}
    for number, (stage, _) in enumerate(stages):
        for s in stage.local_stores:
            size = BYTES[COMPUTE_TYPES[stage_dtype(stage)]]
            free = [
                n
                for n in last
                if n not in result.values() and last[n] <= number and width[n] == size
            ]
            if s.buffer in own and free:
                result[s.buffer] = free[0]
    return result


@dataclass
class RowWriter:
    """Writes the functions of one kernel under one layout."""

    region: LoweredRegion
    layout: Layout
    program: RowProgram
    name: str
    device: DeviceFacts
    source_segments: int = 1
    memory: SharedMemory = field(default_factory=SharedMemory)

    def __post_init__(self) -> None:
        kernel = self.program.kernel
        self.types = local_types(kernel)
        self.lane = POSITION if self.layout.inner else kernel.outer[-1][0]
        self.reads, self.writes = buffers_of(kernel)
        self._made: dict[str, str] = {}

    # --- one launch ---

    def function(
        self, name: str, items: Iterable[tuple[str, int]], extra: Sequence[str] = ()
    ) -> tuple[str, Launch]:
        """The function that does ``items`` (("pass" | "partial" | "combine", pass number)...), and its launch."""
        layout = self.layout
        self.memory = SharedMemory()
        self._declare_shared()
        body = self.declarations()
        if layout.stages == 1:
            body += self._fetch_kept()
        for what, number in items:
            body += [
                f"  {{  // {what} {number}",
                *["    " + s for s in self._item(what, number)],
                "  }",
            ]
        parameters = [*parameters_of(self.region, self.reads, self.writes), *extra]
        head = [
            f'extern "C" __global__ void __launch_bounds__({layout.threads}, {max(1, layout.blocks)}) {name}({", ".join(parameters)}) {{',
            "  extern __shared__ __align__(16) unsigned char shared[]; (void)shared;",
        ]
        lines = [*head, *self.memory.lines, *self._threads(), *self._rows(body), "}"]
        if self.memory.size > self.device.shared_per_block_bytes:
            raise Unsupported(f"{self.memory.size} bytes of shared memory")
        return "\n".join(lines), self._launch(name)

    def _launch(self, name: str) -> Launch:
        layout = self.layout
        groups = ceildiv(layout.rows, layout.across) if layout.inner else self._column_groups()[0]
        grid = groups * layout.segments
        if layout.stages > 1:
            grid = (
                min(groups, max(1, layout.blocks * self.device.sm_count // layout.segments))
                * layout.segments
            )
        cluster = (
            (layout.segments, 1, 1)
            if layout.exchange == "cluster" and layout.segments > 1
            else None
        )
        return Launch(
            name,
            (grid, 1, 1),
            (layout.threads, 1, 1),
            self.memory.size,
            (*self.reads, *self.writes),
            cluster,
        )

    @property
    def clustered(self) -> bool:
        return self.layout.exchange == "cluster" and self.layout.segments > 1

    def _threads(self) -> list[str]:
        layout = self.layout
        out = ["  const int tid = threadIdx.x; (void)tid;"]
        if layout.inner:
            out.append(
                f"  const int t = tid % {layout.team}, r = tid / {layout.team}; (void)t; (void)r;"
            )
        else:
            out.append(
                f"  const int x = tid % {layout.across}, t = tid / {layout.across}; (void)t;"
            )
        segment = "ca::cluster_rank()" if self.clustered else f"blockIdx.x % {layout.segments}"
        out.append(f"  const int segment = {segment}; (void)segment;")
        first = f"  const {layout.index_type} first = {layout.index_type}(segment) * {layout.segment}; (void)first;"
        limit = (
            f"{layout.segment}"
            if layout.even
            else f"min({layout.segment}, {layout.points} - int(segment) * {layout.segment})"
        )
        return [*out, first, f"  const int limit = {limit}; (void)limit;"]

    def _column_groups(self) -> tuple[int, int]:
        size = self.program.kernel.outer[-1][1]
        per_line = ceildiv(size, self.layout.across * self.layout.vector)
        return self.layout.rows // size * per_line, per_line

    def _rows(self, body: list[str]) -> list[str]:
        layout, kernel = self.layout, self.program.kernel
        start = ["  ca::cluster_arrive(); ca::cluster_wait();"] if self.clustered else []
        group = f"blockIdx.x / {layout.segments}"
        if layout.stages > 1:
            return [*start, *self._staged_rows(group, body)]
        if layout.inner:
            out = [
                f"  int row = int({group}) * {layout.across} + r;",
                "  const bool live = true; (void)live;",
            ]
            if layout.rows % layout.across:
                out[1] = (
                    f"  const bool live = row < {layout.rows}; row = live ? row : {layout.rows - 1};"
                )
            return [*start, *out, *self._decompose("row"), *body]
        size, (_, per_line) = kernel.outer[-1][1], self._column_groups()
        width = layout.across * layout.vector
        out = [
            f"  const int group = {group};",
            f"  int column = (group % {per_line}) * {width} + x * {layout.vector};",
            "  const bool live = true; (void)live;",
        ]
        if size % width:
            out[2] = f"  const bool live = column < {size}; column = live ? column : 0;"
        out.append(f"  const int row = (group / {per_line}) * {size} + column; (void)row;")
        return [*start, *out, *self._decompose("row"), *body]

    def _decompose(self, row: str) -> list[str]:
        out, stride = [], 1
        outer = self.program.kernel.outer
        for number, (symbol, size) in reversed(list(enumerate(outer))):
            value = row if stride == 1 else f"ca::idiv({row}, {stride})"
            if number:
                value = f"ca::imod({value}, {size})"
            out.append(f"  const {self.layout.index_type} {symbol} = {value}; (void){symbol};")
            stride *= size
        return out[::-1]

    def _staged_rows(self, group: str, body: list[str]) -> list[str]:
        """Rows in a loop; those to come are on their way to shared memory while one is worked on."""
        layout = self.layout
        stages, step = layout.stages, f"int(gridDim.x / {layout.segments})"
        fetch = [
            "  auto fetch = [&](int row, int stage) {",
            f"    if (row < {layout.rows}) {{",
            *["    " + s for s in self._decompose("row")],
            *["    " + s for s in self._copies()],
            "    }",
            "    ca::copy_commit();",
            "  };",
        ]
        return [
            *fetch,
            "  const bool live = true; (void)live;",
            f"  for (int s = 0; s < {stages - 1}; ++s) fetch(int({group}) + s * {step}, s);",
            "  int turn = 0;",
            f"  for (int row = {group}; row < {layout.rows}; row += {step}) {{",
            f"  fetch(row + {stages - 1} * {step}, turn == 0 ? {stages - 1} : turn - 1);",
            f"  ca::copy_wait<{stages - 1}>();",
            *self._decompose("row"),
            *body,
            *(["  __syncthreads();"] if self.program.shared else []),
            f"  turn = turn == {stages - 1} ? 0 : turn + 1;",
            "  }",
        ]

    # --- what is kept on the chip ---

    def _declare_shared(self) -> None:
        layout, kernel = self.layout, self.program.kernel
        for name in sorted(self.program.shared):
            copies = layout.across * (1 if layout.inner else layout.vector)
            ctype = self.types[name]
            self.memory.take(f"l_{name}", ctype, kernel.locals[name].size * copies, BYTES[ctype])
        if layout.keep == "shared":
            if not layout.even and layout.stages > 1:
                raise Unsupported("rows in flight with uneven segments")
            for (buffer, _), name in self.program.kept.items():
                ctype = STORAGE_TYPES[self.region.buffers[buffer].dtype]
                self.memory.take(name, ctype, self._own_size() * layout.stages, BYTES[ctype])
            for name in sorted(self.program.own - set(self.program.reuse)):
                ctype = self.types[name]
                self.memory.take(f"l_{name}", ctype, self._own_size(), BYTES[ctype])

    def _own_size(self) -> int:
        return self.layout.threads * self.layout.chunks * self.layout.vector

    def _own_place(self, name: str) -> str:
        """This thread's ``k``-th vector of an own array in shared memory."""
        if name not in self.program.reuse:
            return f"l_{name} + {self._own_at}"
        stage = f"turn * {self._own_size()} + " if self.layout.stages > 1 else ""
        place = f"{self.program.reuse[name]} + {stage}{self._own_at}"
        return f"reinterpret_cast<{self.types[name]}*>({place})"

    @property
    def _own_at(self) -> str:
        return f"(k * {self.layout.threads} + tid) * {self.layout.vector}"

    def declarations(self) -> list[str]:
        """Scalars and register arrays of the row."""
        layout, program = self.layout, self.program
        out = []
        for name in sorted(program.scratch):
            if program.kernel.locals[name].size == 1:
                out.append(
                    f"  ca::vec<{self.types[name]}, {layout.scalar_lanes}> l_{name}; (void)l_{name};"
                )
            elif name in program.own and layout.keep == "registers":
                out.append(
                    f"  ca::vec<{self.types[name]}, {layout.vector}> l_{name}[{layout.chunks}];"
                )
        return out

    def _fetch_kept(self) -> list[str]:
        layout = self.layout
        out: list[str] = []
        if not self.program.kept:
            return out
        if layout.keep == "shared":
            return [*out, *self._copies(), "  ca::copy_commit();", "  ca::copy_wait<0>();"]
        printer = self._printer(self.lane, layout.vector)
        loads = []
        for (buffer, index), name in self.program.kept.items():
            ctype = COMPUTE_TYPES[self.region.buffers[buffer].dtype]
            out.append(f"  ca::vec<{ctype}, {layout.vector}> {name}[{layout.chunks}];")
            loads.append(f"{name}[k] = {printer.load_text(buffer, index)};")
        return [*out, "  {", *["    " + s for s in self.loop(loads)], "  }"]

    def _copies(self) -> list[str]:
        """Statements that bring the kept loads of a row to this thread's place in shared memory."""
        layout = self.layout
        copies = []
        stage = f"stage * {self._own_size()} + " if layout.stages > 1 else ""
        printer = self._printer(self.lane, layout.vector)
        for (buffer, index), name in self.program.kept.items():
            dtype = self.region.buffers[buffer].dtype
            place = f"{name} + {stage}{self._own_at}"
            bytes_, step = layout.vector * dtype.itemsize, coefficient(index, self.lane)
            whole = (
                bytes_ % 16 == 0
                and step == 1
                and is_aligned(index, self.lane, 1, layout.vector, 16 // dtype.itemsize)
            )
            if whole:
                for part in range(bytes_ // 16):
                    off = part * 16 // dtype.itemsize
                    copies.append(
                        f"ca::copy_async({place} + {off}, m_{buffer} + {c_index(index)} + {off});"
                    )
            else:
                copies.append(f"ca::store<L>({place}, {printer.load_text(buffer, index)});")
        return ["  {", *["    " + s for s in self.loop(copies)], "  }"]

    def _kept(self, i: Instruction) -> str | None:
        name = self.program.kept.get((i.buffer or "", i.index)) if i.index is not None else None
        if name is None:
            return None
        if self.layout.keep == "registers":
            return f"{name}[k]"
        stage = f"turn * {self._own_size()} + " if self.layout.stages > 1 else ""
        return f"ca::load<L>({name} + {stage}{self._own_at})"

    # --- loops over a thread's positions ---

    def loop(self, body: Sequence[str], statements: Sequence[str] = ()) -> list[str]:
        """``body`` at each position ``j`` of this thread, the ``k``-th of them."""
        layout = self.layout
        lane_count = f"constexpr int L = {layout.vector}; (void)L;"
        chunks = layout.chunks
        inside = [
            lane_count,
            f"const {layout.index_type} j = first + q; (void)j;",
            *statements,
            *body,
        ]
        step = ["auto step = [&](const int k, const int q) {", *["  " + s for s in inside], "};"]
        if layout.blocked:
            at, full = f"t * {chunks} + k", chunks if layout.team * chunks == layout.segment else 0
        elif layout.inner:
            at, full = f"(k * {layout.team} + t) * {layout.vector}", layout.segment // layout.tile
        else:
            at, full = f"k * {layout.team} + t", layout.segment // layout.tile
        if not layout.even:
            full = 0
        if layout.keep == "registers":
            guard = f"if (k < {full} || q < limit) " if full < chunks else ""
            return [
                *step,
                "#pragma unroll",
                f"for (int k = 0; k < {chunks}; ++k) {{ const int q = {at}; {guard}step(k, q); }}",
            ]
        unroll = f"#pragma unroll {max(1, min(layout.unroll, chunks))}"
        if layout.even or layout.blocked:
            whole = str(full)
        else:
            whole = f"limit / {layout.tile}"
        return [
            *step,
            unroll,
            f"for (int k = 0; k < {whole}; ++k) step(k, {at});",
            *(
                [
                    f"for (int k = {whole}; k < {chunks}; ++k) {{ const int q = {at}; if (q < limit) step(k, q); }}"
                ]
                if full < chunks
                else []
            ),
        ]

    # --- bodies ---

    def _printer(self, lane: sympy.Symbol | None, width: int) -> LanePrinter:
        return LanePrinter(lane, lambda b: f"m_{b}", self._local_read, lambda b: self.region.buffers[b].dtype,
                           "", width, self._kept)  # fmt: skip

    def _pass_printer(self, p: Pass) -> LanePrinter:
        if self.layout.inner:
            full = is_full(p, self.layout.points)
            return self._printer(POSITION if p.inner else None, self.layout.vector if full else 1)
        return self._printer(self.lane, self.layout.vector)

    def _local_read(self, i: Instruction) -> str:
        assert i.buffer is not None and i.index is not None
        if i.buffer in self._made:
            return self._made[i.buffer]
        name = f"l_{i.buffer}"
        if self.program.kernel.locals[i.buffer].size == 1:
            return f"ca::splat<L>({name})"
        if i.buffer in self.program.own:
            return (
                f"{name}[k]"
                if self.layout.keep == "registers"
                else f"ca::load<L>({self._own_place(i.buffer)})"
            )
        return self._shared_read(name, i)

    def _shared_read(self, name: str, i: Instruction) -> str:
        assert i.index is not None and i.buffer is not None
        layout = self.layout
        if not layout.inner:
            return f"ca::load<L>({name} + (({c_index(i.index)}) * {layout.across} + x) * {layout.vector})"
        base = (
            f"{name} + r * {self.program.kernel.locals[i.buffer].size}"
            if layout.across > 1
            else name
        )
        step = coefficient(i.index, POSITION)
        if step is None:
            return f"ca::gather<L>({base}, {self._printer(POSITION, 1).vector_index(i.index)})"
        return f"ca::load_strided<L>({base} + {c_index(i.index)}, {step})"

    def _local_store(self, s: Store, flat: Flat, value: str) -> str:
        layout, ctype, name = self.layout, self.types[s.buffer], f"l_{s.buffer}"
        if self.program.kernel.locals[s.buffer].size == 1:
            return f"{name} = ca::to<{ctype}>({value});"
        if s.buffer in self.program.own:
            if layout.keep == "registers":
                return f"{name}[k] = ca::to<{ctype}>({value});"
            return f"ca::store<L>({self._own_place(s.buffer)}, {value});"
        index = c_index(flat.of(s.index))
        if not layout.inner:
            return f"ca::store<L>({name} + (({index}) * {layout.across} + x) * {layout.vector}, {value});"
        row = f"r * {self.program.kernel.locals[s.buffer].size} + " if layout.across > 1 else ""
        return f"ca::store_strided<L>({name} + {row}{index}, 1, {value});"

    def stores(self, p: Pass, flat: Flat, stage: RowStage, value: str, guard: str) -> list[str]:
        """All stores of a stage's value, those to memory under ``guard`` (a condition, or nothing)."""
        printer = self._pass_printer(p)
        if stage.kind == "reduce" and self.layout.inner:
            printer = self._printer(None, 1)
        to_memory = [
            printer.store(s.buffer, flat.of(s.index), value, stream=bool(self.layout.stream))
            for s in stage.stores
        ]
        if guard and to_memory:
            to_memory = [f"if ({guard}) {{ {' '.join(to_memory)} }}"]
        local = [
            self._local_store(s, flat, value)
            for s in stage.local_stores
            if s.buffer in self.program.scratch
        ]
        return [*to_memory, *local]

    def bodies(self, number: int, at_end: Callable[[int, RowStage, str], list[str]]) -> list[str]:
        """Bodies of the pass's stages in order; ``at_end(stage number, stage, value)`` consumes each value."""
        p, flat = self.program.passes[number], self.program.flats[number]
        printer = self._pass_printer(p)
        self._made = {}
        out: list[str] = []
        for n, stage in enumerate(p.stages):
            prefix = f"s{n}v"
            out += printer.lines(flat_body(stage.body, flat), prefix)
            value = f"{prefix}{stage.body.results[0].number}"
            out += at_end(n, stage, value)
            if stage.kind == "map":
                self._made |= {
                    s.buffer: f"ca::to<{self.types[s.buffer]}>({value})" for s in stage.local_stores
                }
        self._made = {}
        return out

    def accumulator(self, stage: RowStage, flat: Flat) -> Accumulator:
        if stage.combine in ("argmax", "argmin"):
            ctype = value_type(
                stage.body, lambda b: self.region.buffers[b].dtype, lambda b: self.types[b]
            )
        else:
            ctype = COMPUTE_TYPES[stage_dtype(stage)]
        return Accumulator(stage.combine, ctype)

    @property
    def row_guard(self) -> str:
        """Condition for stores of a full pass."""
        partial = (
            self.layout.rows % self.layout.across
            if self.layout.inner
            else self.program.kernel.outer[-1][1] % (self.layout.across * self.layout.vector)
        )
        return "live" if partial else ""

    # --- passes ---

    def _item(self, what: str, number: int) -> list[str]:
        p = self.program.passes[number]
        if what == "combine":
            return self._combine(number)
        if p.kind == "scan":
            from cuda_agent_backend.sketch.cuda_scan import scan_pass

            return scan_pass(self, number)
        if not p.inner:
            return self._scalar_pass(number)
        if not is_full(p, self.layout.points):
            return self._side_pass(number)
        return self._full_pass(number, partial=what == "partial")

    def _scalar_pass(self, number: int) -> list[str]:
        p, flat = self.program.passes[number], self.program.flats[number]
        guard = "t == 0 && segment == 0 && live"
        body = self.bodies(
            number, lambda n, stage, value: self.stores(p, flat, stage, value, guard)
        )
        return [f"constexpr int L = {self.layout.scalar_lanes}; (void)L;", *body]

    def _at_end(self, number: int, guard: str) -> Callable[[int, RowStage, str], list[str]]:
        p, flat = self.program.passes[number], self.program.flats[number]
        accumulators = {
            n: self.accumulator(s, flat) for n, s in enumerate(p.stages) if s.kind == "reduce"
        }

        def at_end(n: int, stage: RowStage, value: str) -> list[str]:
            if stage.kind == "map":
                return self.stores(p, flat, stage, value, guard)
            step = 1 if self.layout.inner else 0
            return [f"a{number}_{n}.update(ca::to<{accumulators[n].value}>({value}), j, {step});"]

        return at_end

    def reductions(self, number: int) -> list[tuple[str, Accumulator]]:
        p, flat = self.program.passes[number], self.program.flats[number]
        return [
            (f"{number}_{n}", self.accumulator(s, flat))
            for n, s in enumerate(p.stages)
            if s.kind == "reduce"
        ]

    def _results(self, number: int) -> list[str]:
        p, flat = self.program.passes[number], self.program.flats[number]
        out = [f"constexpr int L = {self.layout.scalar_lanes}; (void)L;"]
        for n, stage in enumerate(p.stages):
            if stage.kind == "reduce":
                value = f"f{number}_{n}.result()"
                out += self.stores(p, Flat({}, ()), stage, value, "t == 0 && segment == 0 && live")
        return out

    def _full_pass(self, number: int, partial: bool) -> list[str]:
        p, flat = self.program.passes[number], self.program.flats[number]
        layout = self.layout
        if layout.inner and len(p.inner) > 1 and p.inner[-1][1] % layout.vector:
            raise Unsupported("a vector across the end of a line within the row")
        made = {s.buffer for st in p.stages for s in st.local_stores} & self.program.shared
        if made and layout.segments > 1:
            raise Unsupported("an array read across the segments of a row")
        reductions = self.reductions(number)
        out = [f"{acc.of(layout.vector)} a{n};" for n, acc in reductions]
        out += [
            "{",
            *[
                "  " + s
                for s in self.loop(
                    self.bodies(number, self._at_end(number, self.row_guard)), flat.statements
                )
            ],
            "}",
        ]
        if made:
            out.append("__syncthreads();")
        if not reductions:
            return out
        lanes = f"constexpr int L = {layout.vector}; (void)L;"
        out += [lanes, *join(layout, self.memory, reductions, self.clustered)]
        if partial:
            for n, acc in reductions:
                out += store_partial(layout, n, acc)
            return out
        return [*out, "{", *["  " + s for s in self._results(number)], "}"]

    def _side_pass(self, number: int) -> list[str]:
        p, flat = self.program.passes[number], self.program.flats[number]
        layout, points = self.layout, p.stages[0].points
        if layout.segments > 1 and layout.exchange == "split":
            raise Unsupported("a side pass of a split row")
        lanes = 1 if layout.inner else layout.vector
        reductions = self.reductions(number)
        out = [f"{acc.of(lanes)} a{n};" for n, acc in reductions]
        guard = "segment == 0 && live"
        out += [
            f"for (int j = t; j < {points}; j += {layout.team}) {{",
            f"  constexpr int L = {lanes}; (void)L;",
            *["  " + s for s in flat.statements],
            *["  " + s for s in self.bodies(number, self._at_end(number, guard))],
            "}",
        ]
        if {s.buffer for st in p.stages for s in st.local_stores} & self.program.shared:
            out.append("__syncthreads();")
        if not reductions:
            return out
        lane_line = f"constexpr int L = {lanes}; (void)L;"
        out += [
            lane_line,
            *join(replace(layout, vector=lanes), self.memory, reductions, cluster=False),
        ]
        return [*out, "{", *["  " + s for s in self._results(number)], "}"]

    def _combine(self, number: int) -> list[str]:
        """Join the partial results of an earlier launch."""
        out = []
        reductions = self.reductions(number)
        for n, acc in reductions:
            out += load_partials(self.layout, self.source_segments, n, acc)
        alone = replace(self.layout, vector=self.layout.scalar_lanes)
        out += [f"constexpr int L = {self.layout.scalar_lanes}; (void)L;"]
        out += join(alone, self.memory, reductions, cluster=False)
        return [*out, "{", *["  " + s for s in self._results(number)], "}"]


def emit_rows(
    kernel: Kernel,
    region: LoweredRegion,
    parameters: Mapping[str, Parameter],
    name: str,
    device: DeviceFacts,
) -> Emitted:
    """Raises Unsupported where the schedule does not fit."""
    ordered = any(s.kind == "scan" for s in kernel.stages)
    layout = read_layout(
        parameters, row_points(kernel), kernel.rows, ordered, needs_wide(region, kernel)
    )
    split = layout.exchange == "split" and layout.segments > 1
    if split:
        layout = replace(layout, keep="none")  # nothing stays on the chip from launch to launch
    layout.check(device)
    if not layout.inner and (not kernel.outer or kernel.outer[-1][1] % layout.vector):
        raise Unsupported("lanes across the end of the rows")
    program = RowProgram.of(kernel, layout, region)
    if split:
        from cuda_agent_backend.sketch.cuda_split import emit_split

        return emit_split(region, layout, program, name, device)
    writer = RowWriter(region, layout, program, name, device)
    text, launch = writer.function(name, [("pass", n) for n in range(len(program.passes))])
    return Emitted((text,), (launch,))


def partial_buffers(
    name: str, reductions: list[tuple[str, Accumulator]], size: int
) -> list[tuple[str, str, PlanBuffer]]:
    """(parameter name, C type, plan buffer) for the partial results of ``reductions``."""
    result = []
    for n, acc in reductions:
        result.append(
            (f"part{n}", acc.word, temporary(f"{name}_part{n}", PARTIAL_TYPES[acc.word], size))
        )
        if acc.is_arg:
            result.append(
                (f"place{n}", "int", temporary(f"{name}_place{n}", PARTIAL_TYPES["int"], size))
            )
    return result
