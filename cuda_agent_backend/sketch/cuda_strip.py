"""Row kernels of one launch whose blocks go through strips together and meet in memory: long rows, read once.

A strip is some rows, or groups of columns, that the L2 cache has room for beside the next. Blocks take pieces of work
in one order: the first pass of a strip, the second of a strip before it, and so on. So what a pass reads again is still
in the cache, while the first pass of the next strip keeps the memory busy. The order is that of tickets, so a block
waits only for such as have started, however many of them the device holds at once.

The last block of a pass over some rows joins what all of them left in memory, always in the same order, for the blocks
of the next pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from cuda_agent_backend.sketch.cuda_frame import (
    block,
    indented,
    row_groups,
    row_lines,
    thread_lines,
)
from cuda_agent_backend.sketch.cuda_join import load_partials, load_total, store_total
from cuda_agent_backend.sketch.cuda_layout import DeviceFacts, Layout, ceildiv
from cuda_agent_backend.sketch.cuda_parts import (
    Emitted,
    parameters_of,
    partial_buffers,
    temporary,
)
from cuda_agent_backend.sketch.cuda_program import RowProgram, is_full, read_once
from cuda_agent_backend.sketch.cuda_rows import Item, RowWriter
from cuda_agent_backend.sketch.cuda_split import goes_over_rows, launches_of
from cuda_agent_backend.sketch.lower import LoweredRegion
from cuda_agent_backend.sketch.ssa import Unsupported
from sandbox.plan import Buffer as PlanBuffer
from sandbox.plan import Launch

CLEARING = 256
"""Threads of a block that sets counts to zero."""
WORD = "word"
"""In shared memory: what one thread tells all of its block."""


def emit_strips(
    region: LoweredRegion, layout: Layout, program: RowProgram, name: str, device: DeviceFacts
) -> Emitted:
    """Raises Unsupported where a pass cannot be cut, or nothing is read again."""
    if any(p.inner and not is_full(p, layout.points) for p in program.passes):
        raise Unsupported("strips of rows with loops over part of them")
    if any(p.kind == "scan" for p in program.passes):
        raise Unsupported("scans in strips")
    launches = launches_of(program.passes)
    phases = [items for items in launches if goes_over_rows(program.passes, items)]
    if len(phases) < 2:
        raise Unsupported("strips of rows that are read once")
    rest = [item for items in launches[len(phases) :] for item in items]
    return StripWriter(region, layout, program, device, name, phases, rest).emitted()


@dataclass
class StripWriter:
    """Writes the launch that does ``phases``, lists of items of which each but the last ends in partial results.

    If the last one does, too, ``rest`` is what is left to do with what they come to, on scalars.
    """

    region: LoweredRegion
    layout: Layout
    program: RowProgram
    device: DeviceFacts
    name: str
    phases: list[list[Item]]
    rest: list[Item]

    def __post_init__(self) -> None:
        outer = self.program.kernel.outer
        self.groups = row_groups(self.layout, outer[-1][1] if outer else 1)
        self.shared = 0
        self.parameters: list[str] = []
        self.temporaries: list[PlanBuffer] = []

    @property
    def counts(self) -> str:
        """The buffer of the tickets and, by phase and group, of how many blocks are done."""
        return f"{self.name}_counts"

    def emitted(self) -> Emitted:
        layout, name = self.layout, self.name
        meetings = sum(items[-1][0] == "partial" for items in self.phases)
        size = 1 + meetings * self.groups
        self.temporaries.append(temporary(self.counts, torch.int32, size))
        self.parameters.append("int* counts")
        for items in self.phases:
            self._declare_partials(items)
        bodies = [self._phase(number) for number in range(len(self.phases))]
        writer = self._writer(0)
        declared = parameters_of(self.region, writer.reads, writer.writes)
        bounds = f"__launch_bounds__({layout.threads}, {max(1, layout.blocks)})"
        lines = [
            f'extern "C" __global__ void {bounds} {name}({", ".join([*declared, *self.parameters])}) {{',
            "  extern __shared__ __align__(16) unsigned char shared[];",
            *indented(
                [*self._item_lines(), *thread_lines(layout), *row_lines(layout, writer.outer)]
            ),
            *indented([line for n, body in enumerate(bodies) for line in _branch(n, body)]),
            "}",
        ]
        part = layout.strip * layout.segments
        strips = ceildiv(self.groups, layout.strip) + (len(self.phases) - 1) * layout.ahead
        args = (*writer.reads, *writer.writes, *(t.name for t in self.temporaries))
        main = Launch(
            name,
            (strips * len(self.phases) * part, 1, 1),
            (layout.threads, 1, 1),
            self.shared,
            args,
        )
        text, clear = self._clearing(size)
        return Emitted((text, "\n".join(lines)), (clear, main), tuple(self.temporaries))

    def _clearing(self, size: int) -> tuple[str, Launch]:
        """Counts begin at zero in each launch, whatever the one before left."""
        name = f"{self.name}_clear"
        lines = [
            f'extern "C" __global__ void __launch_bounds__({CLEARING}) {name}(int* counts) {{',
            f"  const int n = int(blockIdx.x) * {CLEARING} + int(threadIdx.x);",
            f"  if (n < {size}) counts[n] = 0;",
            "}",
        ]
        grid = (ceildiv(size, CLEARING), 1, 1)
        return "\n".join(lines), Launch(name, grid, (CLEARING, 1, 1), 0, (self.counts,))

    def _item_lines(self) -> list[str]:
        """Which phase this block does, and the ``item`` that says of which rows what segment."""
        layout, count = self.layout, len(self.phases)
        part = layout.strip * layout.segments
        return [
            f"int* const {WORD} = reinterpret_cast<int*>(shared);",
            f"const int ticket = ca::take_ticket(counts, {WORD});",
            f"const int phase = ticket / {part} % {count};",
            f"const int strip = ticket / {part * count} - phase * {layout.ahead};",
            f"const int item = strip * {part} + ticket % {part};",
            f"if (strip < 0 || item >= {self.groups * layout.segments}) return;",
            f"int* const done = counts + 1 + item / {layout.segments};",
        ]

    # --- phases ---

    def _writer(self, number: int) -> RowWriter:
        """A writer of phase ``number``, whose shared memory begins with the word."""
        program = replace(self.program, once=self._once(number))
        writer = RowWriter(self.region, self.layout, program, self.device, self.layout.segments)
        writer.memory.take(WORD, "int", 1, 4)
        return writer

    def _once(self, number: int) -> frozenset[str]:
        """What phase ``number`` reads once and no later one reads."""
        passes, flats = self.program.passes, self.program.flats
        of = [
            [(passes[n], flats[n]) for what, n in items if what != "combine"]
            for items in self.phases
        ]
        later = {
            i.buffer
            for flat in of[number + 1 :]
            for p, _ in flat
            for s in p.stages
            for i in s.body.loads()
        }
        elements = self.layout.rows * self.layout.points
        return read_once(of[number], {}, elements, self.region) - later

    def _phase(self, number: int) -> list[str]:
        writer, items = self._writer(number), self.phases[number]
        writer.keeper.declare_shared()
        body = self._items(writer, items)
        lines = [*writer.memory.lines, *self._waits(number), *body]
        self._take(writer.memory.size)
        last, n = items[-1]
        return [*lines, *self._joins(number, n)] if last == "partial" else lines

    def _items(self, writer: RowWriter, items: Sequence[Item]) -> list[str]:
        out = writer.keeper.declarations()
        for what, n in items:
            lines = self._total(writer, n) if what == "combine" else writer.item(what, n)
            out += [f"{{  // {what} {n}", *indented(lines), "}"]
        return out

    def _waits(self, number: int) -> list[str]:
        """The join is counted as well as the segments."""
        if not number:
            return []
        return [
            f"ca::wait_for_count(done + {(number - 1) * self.groups}, {self.layout.segments + 1});"
        ]

    def _total(self, writer: RowWriter, number: int) -> list[str]:
        """The whole result of pass ``number``, as the block that joined it left it."""
        loads = [
            line for n, acc in writer.reductions(number) for line in load_total(self.layout, n, acc)
        ]
        return [*loads, *writer.results(number)]

    def _joins(self, number: int, n: int) -> list[str]:
        """The row's last block of the phase joins what all of them left of pass ``n``."""
        layout, writer = self.layout, self._writer(number)
        done, lines = f"done + {number * self.groups}", list[str]()
        for name, acc in writer.reductions(n):
            lines += load_partials(layout, layout.segments, name, acc)
            lines += writer.join_lanes(name, acc)
            lines += store_total(layout, name, acc)
        if number < len(self.phases) - 1:
            lines.append(f"ca::count_once_more({done});")
        else:
            lines += ["__syncthreads();", *block(self._scalars())]
        self._take(writer.memory.size)
        return [
            f"if (ca::counts_last({done}, {layout.segments}, {WORD})) {{",
            *indented([*writer.memory.lines, *lines]),
            "}",
        ]

    def _scalars(self) -> list[str]:
        """What is left to do once all is reduced, by the block that joined it, whatever its segment."""
        return ["constexpr int segment = 0;", *self._items(self._writer(0), self.rest)]

    def _take(self, size: int) -> None:
        """Phases, and what a phase does one after the other, lie over each other in shared memory."""
        self.shared = max(self.shared, size)
        if self.shared > self.device.shared_per_block_bytes:
            raise Unsupported(f"{self.shared} bytes of shared memory")

    def _declare_partials(self, items: Sequence[Item]) -> None:
        """Memory for what segments and rows come to in ``items``, not restricted: others write there meanwhile."""
        writer, layout = self._writer(0), self.layout
        for what, n in items:
            if what != "partial":
                continue
            reductions = writer.reductions(n)
            partial = partial_buffers(self.name, reductions, layout.rows * layout.segments)
            total = partial_buffers(f"{self.name}_all", reductions, layout.rows)
            for parameter, ctype, buffer in partial:
                self.parameters.append(f"{ctype}* {parameter}")
                self.temporaries.append(buffer)
            for parameter, ctype, buffer in total:
                self.parameters.append(f"{ctype}* all_{parameter}")
                self.temporaries.append(buffer)


def _branch(number: int, body: Sequence[str]) -> list[str]:
    return [f"if (phase == {number})", *block(body)]
