"""Sums over rows of which one operand lies along the rows in memory, and another one along their neighbours.

The diagonal of a product A B is one: row i adds up A[i, k] B[k, i], and A's neighbours are those of k, B's those of i.
Whichever way rows are laid over threads, one of the two would be read a number at a time, a sector of memory for each.
So a thread has a square of neighbours, as many of either way as a vector has elements. It reads what lies along the
rows by vectors along them, one for each of its rows, and all else by vectors across; the square is turned in registers,
where that costs nothing. Lanes of a warp lie both ways, so that each of its reads covers whole sectors in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sympy

from cuda_agent_backend.codegen.cuda.common.flat_loops import POSITION
from cuda_agent_backend.codegen.cuda.common.lane_printer import LanePrinter, is_aligned
from cuda_agent_backend.codegen.cuda.common.text import indented
from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.cuda.rows.program import Key, RowProgram
from cuda_agent_backend.codegen.ir.device import WARP, DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES
from cuda_agent_backend.codegen.ir.schedule import Parameter
from cuda_agent_backend.codegen.ir.ssa import Body

LARGEST = 4
"""Rows and positions of a square: registers of a thread hold a few of them."""
LEAST = 1 << 18
"""Products from which on the time is that of memory."""
LINE_BYTES, BLOCK = 128, 256
BLOCKS_EACH = 2
"""Blocks of a multiprocessor from which on rows are not cut into segments."""


def turned_loads(bodies: Iterable[Body], lane: sympy.Symbol) -> list[Key]:
    """Loads along the row of what lies apart across it, with their indices over the flat position."""
    found: dict[Key, None] = {}
    for body in bodies:
        for (
            i
        ) in body.instructions:  # not those of branches, which may not be read where no element is
            if i.op != "load" or i.buffer is None or i.index is None:
                continue
            across = coefficient(i.index, lane)
            if coefficient(i.index, POSITION) == 1 and across not in (None, 0, 1):
                found[i.buffer, i.index] = None
    return list(found)


def check_square(program: RowProgram, layout: Layout) -> None:
    """Raise Unsupported where threads cannot have squares of a kernel's rows."""
    full = [p for p in program.passes if p.inner]
    problems = {
        "squares of passes that are no reductions": any(
            stage.kind != "reduce" or stage.combine.startswith("arg")
            for p in full
            for stage in p.stages
        ),
        "a square across the end of a line within the row": any(
            p.inner[-1][1] % layout.vector for p in full
        ),
        "squares of rows with loops over part of them": any(
            stage.points != layout.points for p in full for stage in p.stages
        ),
    }
    for problem, applies in problems.items():
        if applies:
            raise Unsupported(problem)


def square_names(loads: Sequence[Key]) -> dict[Key, str]:
    """What is printed for loads that are at hand at position ``c`` of a square."""
    return {key: f"turned{n}.at[c]" for n, key in enumerate(loads)}


def square_lines(
    layout: Layout,
    loads: Sequence[Key],
    printer: LanePrinter,
    body: Sequence[str],
    statements: Sequence[str],
) -> list[str]:
    """A step at a square whose first position is ``j``: reads along the row, then ``body`` at each of its positions."""
    out = list(statements)
    assert printer.lane is not None
    for n, (buffer, index) in enumerate(loads):
        once = "_once" if buffer in printer.once else ""
        aligned = is_aligned(index, POSITION, 1, layout.vector, printer.unit(buffer))
        kind = f"load{once}" if aligned else "load_unaligned"
        step, at = coefficient(index, printer.lane), printer.address(buffer, index)
        place = f"const auto* const at{n} = {at};"
        read = f"turned{n}.set(i, ca::{kind}<L>(at{n} + int64_t({step}) * i));"
        ctype = COMPUTE_TYPES[printer.dtype_of(buffer)]
        out += [place, f"ca::turned<{ctype}, L> turned{n};", f"CA_LANES {read}"]
    inner = [f"const {layout.index_type} j = first + q + c;", *statements, *body]
    return [*out, "#pragma unroll", "for (int c = 0; c < L; ++c) {", *indented(inner), "}"]


def square_schedules(
    kernel: Kernel, item: int, line: int, columns: int, device: DeviceFacts
) -> list[dict[str, Parameter]]:
    """Schedules with squares for sums that read both ways, best guess first.

    Args:
        item: bytes of an element; line: what a vector along the row must divide; columns: rows that are neighbours.
    """
    if not _reads_both_ways(kernel):
        return []
    points = max(stage.points for stage in kernel.stages)
    vector = next((v for v in (LARGEST, 2) if line % v == 0 == columns % v), 1)
    found: list[dict[str, Parameter]] = []
    # a thread of few registers lets all blocks be at work at once, which counts for more than its reads under way
    for part, turns, more in ((1, 1, 1), (1, 1, 2), (2, 1, 1), (1, 2, 1)):
        across = max(1, min(WARP // 2, LINE_BYTES // (vector * item)) // part)
        team = BLOCK // across
        groups = kernel.rows // columns * ceildiv(columns, across * vector)
        tiles, segments = ceildiv(points, team * vector), 1
        while groups * segments < BLOCKS_EACH * device.sm_count and 2 * segments <= tiles:
            segments *= 2
        segments = min(segments * more, tiles)
        cut: dict[str, Parameter] = {"lanes": "outer", "vector": vector, "team": team}
        cut |= {"across": across, "segments": segments, "keep": "none"}
        cut |= {"exchange": "split" if segments > 1 else "block"}
        cut |= {"unroll": turns if vector > 1 else LARGEST * turns}
        found.append({**cut, "square": 1} if vector > 1 else cut)
    return found


def _reads_both_ways(kernel: Kernel) -> bool:
    """Whether a kernel is large sums of which some reads lie along the row, and others across it."""
    stages = [stage for stage in kernel.stages if stage.inner]
    if not kernel.outer or not stages or any(stage.kind != "reduce" for stage in stages):
        return False
    row, along, across = kernel.outer[-1][0], False, False
    for stage in stages:
        if stage.points * kernel.rows < LEAST:
            continue
        for i in stage.body.loads():
            if i.index is None:
                continue
            steps = coefficient(i.index, stage.inner[-1][0]), coefficient(i.index, row)
            along |= steps[0] == 1 and steps[1] not in (None, 0, 1)
            across |= steps[1] == 1 and steps[0] not in (None, 0, 1)
    return along and across
