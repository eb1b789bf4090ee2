"""What a row kernel keeps on the chip between its passes: loads that repeat, and row-local arrays and scalars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import sympy

from cuda_agent_backend.codegen.cuda.common.flat_loops import POSITION, Flat
from cuda_agent_backend.codegen.cuda.common.lane_printer import (
    LanePrinter,
    is_aligned,
    memory_printer,
)
from cuda_agent_backend.codegen.cuda.common.parts import BYTES, SharedMemory, local_types
from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.cuda.rows.loops import Span, position_loop, span_loops
from cuda_agent_backend.codegen.cuda.rows.program import Key, RowProgram
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient, stays_within
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES, STORAGE_TYPES, c_index, c_place
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Store
from cuda_agent_backend.codegen.ir.ssa import Instruction

COPY_BYTES = (16, 8, 4)
"""What can be copied to shared memory at once, best first."""
PARTS = 4
"""In which what is kept in shared memory arrives: one is worked on while the next are under way."""


@dataclass
class OnChipCache:
    """Declares, fills, reads and writes what is kept.

    Attributes:
        made: values of arrays that were made earlier in the same pass, by name.
        previous: values of arrays that a scan makes, at the position before.
        rest: whether what is printed is for positions that are not kept; ``last``: for the last pass over them.
        turned: what to print for loads that a square has at hand.
    """

    region: LoweredRegion
    layout: Layout
    program: RowProgram
    memory: SharedMemory
    made: dict[str, str] = field(default_factory=dict)
    previous: dict[str, str] = field(default_factory=dict)
    rest: bool = False
    last: bool = False
    turned: dict[Key, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kernel = self.program.kernel
        self.types = local_types(kernel)
        self.lane: sympy.Symbol = POSITION if self.layout.inner else kernel.outer[-1][0]

    def printer(self, lane: sympy.Symbol | None, width: int) -> LanePrinter:
        """Prints bodies whose loads and local reads go to what is kept."""
        return memory_printer(
            self.region, self.read, lane, width,
            kept=self._kept, once=self._once, local_masked=self.read_masked,
        )  # fmt: skip

    @property
    def _once(self) -> frozenset[str]:
        if not self.layout.once:
            return frozenset()
        if self.rest and not self.last:
            return self.program.once - {buffer for buffer, _ in self.program.kept}
        return self.program.once

    @property
    def arriving(self) -> bool:
        """Whether the first pass over the row waits for what is kept, part by part, rather than ``fetch``."""
        layout = self.layout
        return layout.keep == "shared" and layout.stages == 1 and not layout.ordered

    def parts(self) -> list[Span]:
        """The kept chunks in the parts that arrive one after another, each with the wait for it."""
        chunks = self.layout.kept_chunks
        count = min(PARTS, chunks)
        ends = [chunks * n // count for n in range(count + 1)]
        return [
            Span(ends[n], ends[n + 1], (f"ca::copy_wait<{count - 1 - n}>();",))
            for n in range(count)
        ]

    # --- declarations ---

    def declare_shared(self) -> None:
        """Take shared memory. Raises Unsupported where rows in flight do not fit their copies."""
        layout, program = self.layout, self.program
        for name in sorted(program.shared):
            copies = layout.across * layout.scalar_lanes
            ctype = self.types[name]
            self.memory.take(
                f"l_{name}", ctype, program.kernel.locals[name].size * copies, BYTES[ctype]
            )
        if layout.keep != "shared":
            return
        if not layout.even and layout.stages > 1 and not layout.in_grid:
            raise Unsupported("rows in flight with uneven segments")
        for (buffer, _), name in program.kept.items():
            ctype = STORAGE_TYPES[self.region.buffers[buffer].dtype]
            self.memory.take(name, ctype, self._own_size * layout.stages, BYTES[ctype])
        for name in sorted(program.own - set(program.reuse)):
            ctype = self.types[name]
            self.memory.take(f"l_{name}", ctype, self._own_size, BYTES[ctype])

    def declarations(self) -> list[str]:
        """Scalars and register arrays of the row."""
        layout, program = self.layout, self.program
        out = []
        for name in sorted(program.scratch):
            if program.kernel.locals[name].size == 1:
                out.append(f"ca::vec<{self.types[name]}, {layout.scalar_lanes}> l_{name};")
            elif name in program.own and layout.keep == "registers":
                out.append(
                    f"ca::vec<{self.types[name]}, {layout.vector}> l_{name}[{layout.chunks}];"
                )
        return out

    # --- loads that repeat ---

    def fetch(self) -> list[str]:
        """Bring the kept loads of the row in, all at once."""
        layout = self.layout
        if not self.program.kept:
            return []
        if layout.keep == "shared":
            if self.arriving:
                commit = "ca::copy_commit();"
                parts = self.parts()
                spans = [Span(s.low, s.high, (commit,) if s.low else ()) for s in parts]
                return [*self.copies(spans), commit]
            return [*self.copies(), "ca::copy_commit();", "ca::copy_wait<0>();"]
        printer, out, loads = self.printer(self.lane, layout.vector), [], []
        for (buffer, index), name in self.program.kept.items():
            ctype = COMPUTE_TYPES[self.region.buffers[buffer].dtype]
            out.append(f"ca::vec<{ctype}, {layout.vector}> {name}[{layout.chunks}];")
            loads.append(f"{name}[k] = {printer.load_text(buffer, index)};")
        return [*out, *position_loop(layout, loads, self.program.recover)]

    def copies(self, spans: Sequence[Span] = ()) -> list[str]:
        """Start the kept loads of a row (of ``spans`` of it) on their way to this thread's place in shared memory."""
        layout, out = self.layout, []
        stage = f"stage * {self._own_size} + " if layout.stages > 1 else ""
        printer = self.printer(self.lane, layout.vector)
        for (buffer, index), name in self.program.kept.items():
            item = self.region.buffers[buffer].dtype.itemsize
            place, size = f"{name} + {stage}{self._own_at}", self._copied_at_once(index, item)
            if size:
                source = f"m_{buffer} + {c_place(index)}"
                copy = "copy_async" + (f"_narrow<{size}>" if size < COPY_BYTES[0] else "")
                offsets = range(0, layout.vector, size // item)
                out += [f"ca::{copy}({place} + {o}, {source} + {o});" for o in offsets]
            else:
                out.append(f"ca::store<L>({place}, {printer.load_text(buffer, index)});")
        if spans:
            return span_loops(layout, out, self.program.recover, (), spans)
        return position_loop(layout, out, self.program.recover)

    def _copied_at_once(self, index: sympy.Expr, item: int) -> int:
        """Bytes of a vector of elements of ``item`` bytes that one copy may take; 0: there is no such copy."""
        vector = self.layout.vector
        if coefficient(index, self.lane) != 1:
            return 0
        for size in COPY_BYTES:
            unit = size // item
            whole = unit > 0 and vector % unit == 0
            if whole and is_aligned(index, self.lane, 1, vector, unit):
                return size
        return 0

    def _kept(self, i: Instruction) -> str | None:
        if i.index is not None and (at_hand := self.turned.get((i.buffer or "", i.index))):
            return at_hand
        if i.index is None or self.rest:
            return None
        name = self.program.kept.get((i.buffer or "", i.index))
        if name is None or self.layout.keep == "registers":
            return name and f"{name}[k]"
        return f"ca::load<L>({self._staged(name)})"

    # --- this thread's own places in shared memory ---

    @property
    def _own_size(self) -> int:
        return self.layout.threads * self.layout.kept_chunks * self.layout.vector

    @property
    def _own_at(self) -> str:
        return f"(k * {self.layout.threads} + tid) * {self.layout.vector}"

    def _staged(self, name: str) -> str:
        stage = f"turn * {self._own_size} + " if self.layout.stages > 1 else ""
        return f"{name} + {stage}{self._own_at}"

    def _own_place(self, name: str) -> str:
        if name in self.program.reuse:
            return (
                f"reinterpret_cast<{self.types[name]}*>({self._staged(self.program.reuse[name])})"
            )
        return f"l_{name} + {self._own_at}"

    # --- row-local arrays and scalars ---

    def read(self, i: Instruction) -> str:
        """The read of a row-local buffer."""
        assert i.buffer is not None and i.index is not None
        name, program = f"l_{i.buffer}", self.program
        if i.buffer in self.previous and i.index == POSITION - 1:
            return self.previous[i.buffer]
        if i.buffer in self.made:
            return self.made[i.buffer]
        if program.kernel.locals[i.buffer].size == 1:
            return f"ca::splat<L>({name})"
        if i.buffer in program.own:
            registers = self.layout.keep == "registers"
            return f"{name}[k]" if registers else f"ca::load<L>({self._own_place(i.buffer)})"
        if not self.layout.inner:
            return f"ca::load<L>({self._shared_place(i.buffer, i.index)})"
        step = coefficient(i.index, POSITION)
        if step is None:
            at = self.printer(POSITION, 1).vector_index(i.index)
            return f"ca::gather<L>({name}{self._row_offset(i.buffer)}, {at})"
        return f"ca::load_strided<L>({self._shared_place(i.buffer, i.index)}, {step})"

    def read_masked(self, i: Instruction, mask: str) -> str:
        """As `read`, for an index that may leave the buffer where ``mask`` does not hold."""
        assert i.buffer is not None and i.index is not None
        size, layout = self.program.kernel.locals[i.buffer].size, self.layout
        shared = i.buffer in self.program.shared and i.buffer not in self.made
        if not shared or stays_within(i.index, size, [(POSITION, layout.points)]):
            return self.read(i)
        if not layout.inner:
            place = f"(({c_index(i.index)}) * {layout.across} + x) * {layout.vector}"
            return f"ca::gather_masked<L>(l_{i.buffer}, ca::iota<L>({place}), {mask})"
        if i.index.has(POSITION):
            at = self.printer(POSITION, 1).vector_index(i.index)
        else:
            at = f"ca::splat<int, L>({c_index(i.index)})"
        name = f"l_{i.buffer}{self._row_offset(i.buffer)}"
        return f"ca::gather_masked<L>({name}, {at}, {mask})"

    def write(self, s: Store, flat: Flat, value: str) -> str:
        """The store of ``value`` to a row-local buffer."""
        ctype, name = self.types[s.buffer], f"l_{s.buffer}"
        if self.program.kernel.locals[s.buffer].size == 1:
            return f"{name} = ca::to<{ctype}>({value});"
        if s.buffer in self.program.own:
            if self.layout.keep == "registers":
                return f"{name}[k] = ca::to<{ctype}>({value});"
            return f"ca::store<L>({self._own_place(s.buffer)}, {value});"
        place = self._shared_place(s.buffer, flat.of(s.index))
        return f"ca::store{'_unaligned' if self.layout.inner else ''}<L>({place}, {value});"

    def _row_offset(self, buffer: str) -> str:
        size = self.program.kernel.locals[buffer].size
        return f" + r * {size}" if self.layout.inner and self.layout.across > 1 else ""

    def _shared_place(self, buffer: str, index: sympy.Expr) -> str:
        layout = self.layout
        if layout.inner:
            return f"l_{buffer}{self._row_offset(buffer)} + {c_index(index)}"
        return f"l_{buffer} + (({c_index(index)}) * {layout.across} + x) * {layout.vector}"
