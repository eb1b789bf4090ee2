"""Strided transposed convolutions in float32 -> CUDA on tensor cores, where a block has all phases of its box.

See ``transposed.cuh``. Results of phases that are next to each other are stored together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.common.text import indented
from cuda_agent_backend.codegen.cuda.conv.halo.params import read_box
from cuda_agent_backend.codegen.cuda.conv.halo.sizes import CHUNK, PIECE, is_narrow
from cuda_agent_backend.codegen.cuda.conv.halo.writer import HaloWriter
from cuda_agent_backend.codegen.cuda.conv.transposed.match import SubPixelPhases, phases_of
from cuda_agent_backend.codegen.cuda.family import Problem
from cuda_agent_backend.codegen.cuda.gemm.filter_taps import FilterTaps
from cuda_agent_backend.codegen.cuda.gemm.operands import Output
from cuda_agent_backend.codegen.cuda.gemm.templates import SubPixelConvolution, Template
from cuda_agent_backend.codegen.cuda.gemm.tiles import REGISTERS
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Parameter

PRELUDE = "cuda/conv/transposed/transposed.cuh"
SKETCH = "phases"
MOST_PHASES, MOST_VISITS = 18, 128
"""What registers hold, and what is written out in a kernel."""
MOST_SUMS = 255
"""Of a thread, which has no more registers: what has to be kept elsewhere takes the compiler minutes."""
OWN_REGISTERS = 20
"""Of a thread, beside what `registers_of` names."""


@dataclass
class SubPixelWriter(HaloWriter):
    """Writes the kernels of a transposed convolution whose blocks have all phases of a box."""

    phases: SubPixelPhases

    def _output(self) -> Output:
        """Phases that are next to each other, then the next row's."""
        found = super()._output()
        return (
            found
            if found.by_rows or self.phases.near == 1
            else replace(found, across=self.phases.near)
        )

    def _taps(self) -> FilterTaps | None:
        return None  # no block lacks any

    def emit(self) -> Emitted:
        made = super().emit()
        return replace(made, functions=(self._visits(), *made.functions))

    def check(self) -> None:
        super().check()
        sums = self.phases.count * self.tiles.warp_m * self.tiles.warp_n // 32
        if sums > MOST_SUMS:
            raise Unsupported(f"{sums} sums of a thread; at most {MOST_SUMS}")

    # --- sizes ---

    @property
    def outputs(self) -> int:
        return self.phases.outputs

    @property
    def stored_columns(self) -> int:
        return self.tiles.tile_n * self.phases.near

    @property
    def steps(self) -> int:
        return sub_pixel_steps(self.phases)

    @property
    def _apart(self) -> int:
        """Columns from a phase that is stored apart to the next."""
        return self.outputs * self.phases.near

    # --- text ---

    @property
    def _table(self) -> str:
        return f"{self.name}_visits"

    def _visits(self) -> str:
        """What is multiplied, for ``phased_contraction``."""
        phases = self.phases
        visits, pairs = phases.visits, phases.pairs
        sizes = {
            "phases": phases.count, "taps": phases.halo.tap_count, "count": len(visits), "pairs": len(pairs),
        }  # fmt: skip
        lists = {
            "tap": [tap for tap, _ in visits],
            "phase": [phase for _, phase in visits],
            "first": [first for first, _, _ in pairs],
            "second": [second for _, second, _ in pairs],
            "paired": [phase for *_, phase in pairs],
        }
        body = [f"static constexpr int {name} = {size};" for name, size in sizes.items()]
        for name, numbers in lists.items():
            body += _function(name, numbers)
        return "\n".join([f"struct {self._table} {{", *indented(body), "};"])

    def _step_lines(self) -> list[str]:
        visits, count, name = len(self.phases.visits), self.halo.channel[1], self._table
        near, full = self.phases.near, ceildiv(count, CHUNK)
        lines = [
            f"const int visit = step % {visits};",
            f"int phase = {name}::phase(visit);",
            f"tap = {name}::tap(visit), first = step / {visits} * {CHUNK} + {PIECE} * e;",
        ]
        if is_narrow(count):
            full -= 1
            last = full * visits
            lines += [
                f"if (step >= {last}) {{",
                f"  phase = {name}::paired(step - {last}), first = {full * CHUNK};",
                f"  tap = e ? {name}::second(step - {last}) : {name}::first(step - {last});",
                "}",
            ]
        column = f"phase / {near} * {self._apart} + output * {near} + phase % {near}"
        return [*lines, f"const int column = {column};"]

    @property
    def _bound(self) -> str:
        """The compiler has each fragment of a tap loaded early, whatever that leaves for other blocks."""
        t = self.tiles
        needed = registers_of(self.phases.count, t.warp_m, t.warp_n, self.parts)
        blocks = REGISTERS // (t.threads * needed)
        return f"{t.threads}, {blocks}" if blocks > 1 else str(t.threads)

    @property
    def _sums(self) -> Template:
        visits, near, parts = self._table, self._near, self.parts
        return SubPixelConvolution(self._tile_of_positions, visits=visits, near=near, parts=parts)

    def _stored(self, tail: Sequence[str]) -> list[str]:
        """Part by part, as shared memory does not hold the results of all phases."""
        near = self.phases.near
        first = f"part * {self._apart} + tile_n * {self.stored_columns}"
        body = [
            f"const int column0 = {first}, column_end = (part + 1) * {self._apart};",
            f"sums.each<{near}>(part, [&](int m, int n, float v) {{ memory[{self._to}] = v; }});",
            "__syncthreads();",
            *tail,
            "__syncthreads();",
        ]
        return [
            "#pragma unroll 1",
            f"for (int part = 0; part < {self.phases.count // near}; ++part) {{",
            *indented(body),
            "}",
        ]

    @property
    def _is_column(self) -> str:
        return "column < column_end"


def _function(name: str, numbers: Sequence[int]) -> list[str]:
    """One that gives each of ``numbers``."""
    cases = " ".join(f"case {at}: return {number};" for at, number in enumerate(numbers))
    return [
        f"static CA_INLINE constexpr int {name}(int v) {{",
        f"  switch (v) {{ {cases} default: return 0; }}",
        "}",
    ]


def registers_of(phases: int, warp_m: int, warp_n: int, parts: int) -> int:
    """Of a thread, about: its sums, those of a step, its parts of the image and of two steps' weights."""
    own = warp_m * warp_n // 32
    return OWN_REGISTERS + (phases + 1) * own + 4 * parts * (warp_m // 16 + warp_n // 8)


def sub_pixel_steps(phases: SubPixelPhases) -> int:
    """Products of 16 terms for each result of all phases together."""
    channels, visits = phases.halo.channel[1], len(phases.visits)
    if is_narrow(channels):
        return channels // CHUNK * visits + len(phases.pairs)
    return ceildiv(channels, CHUNK) * visits


def sub_pixel_writer(
    problem: Problem, found: GemmForm, parameters: Mapping[str, Parameter], name: str
) -> SubPixelWriter:
    """Raises Unsupported where this is no such convolution, or the schedule does not fit."""
    kernel, region, device = problem.kernel, problem.region, problem.device
    phases = phases_of(kernel, found)
    if phases is None:
        raise Unsupported("no transposed convolution with a stride, whose phases are columns")
    if phases.count > MOST_PHASES or len(phases.visits) > MOST_VISITS:
        raise Unsupported(f"{phases.count} phases and {len(phases.visits)} of their taps")
    box, tiles, parts = read_box(parameters, phases.halo)
    ordered, halo = phases.gemm, phases.halo
    return SubPixelWriter(kernel, ordered, region, tiles, name, device, halo, box, parts, phases)
