"""What both ways to lay a scan over threads share: names, and what goes before this block's segment of the row."""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent_backend.codegen.analysis.passes import one_before
from cuda_agent_backend.codegen.cuda.common.parts import Accumulator
from cuda_agent_backend.codegen.cuda.common.text import indented
from cuda_agent_backend.codegen.cuda.rows.combine import load_partials
from cuda_agent_backend.codegen.cuda.rows.pass_bodies import PassBodies
from cuda_agent_backend.codegen.ir.kernel import RowStage
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES
from cuda_agent_backend.codegen.ir.value_types import stage_dtype


def scan_values(writer: PassBodies, number: int, acc: Accumulator, use: str) -> list[str]:
    """The scan's body at one position and a statement that uses its value."""

    def at_end(_: int, stage: RowStage, value: str) -> list[str]:
        return [use.replace("VALUE", f"ca::to<{acc.value}>({value})")]

    return [*writer.program.flats[number].statements, *writer.bodies(number, at_end, among=(0,))]


def each_held(held: int, statements: Sequence[str]) -> list[str]:
    """Statements for each vector ``h`` that a thread holds."""
    return ["#pragma unroll", f"for (int h = 0; h < {held}; ++h) {{", *indented(statements), "}"]


class ScanText:
    """Writes the scan that is pass ``number``. Its values are scanned by the accumulator's operation ``op``."""

    def __init__(self, writer: PassBodies, number: int, stage: RowStage) -> None:
        self.writer, self.number, self.layout, self.memory = (
            writer,
            number,
            writer.layout,
            writer.memory,
        )
        ((self.name, self.acc),) = writer.scan_totals(number)
        self.type, self.op = self.acc.value, f"ca::scan_{stage.combine}"
        self.result = COMPUTE_TYPES[stage_dtype(stage)]
        self.identity = f"{self.op}::identity<{self.type}>()"
        flat = writer.program.flats[number]
        self.statements = list(flat.statements)
        p = writer.program.passes[number]
        self.stores = writer.stores(p, flat, stage, "scanned", writer.row_guard)
        before = set(one_before(stage).values())
        self.needs_previous = any(
            i.op == "local" and i.index in before for st in p.stages[1:] for i in st.body.walk()
        )

    def prior(self) -> tuple[list[str], str]:
        """Statements, and the value that goes before this segment, of ``scalar_lanes`` lanes."""
        lanes = self.layout.scalar_lanes
        if self.writer.source_segments == 1:
            return [], f"ca::splat<{self.type}, {lanes}>({self.identity})"
        loads = load_partials(
            self.layout, self.writer.source_segments, self.name, self.acc, "segment"
        )
        joined = self.writer.join_lanes([(self.name, self.acc)])
        joined = [line.replace("across<L>", f"across<{lanes}>") for line in joined]
        return [*loads, *joined], f"f{self.name}.result()"

    def finish(self, found: str, previous: str) -> list[str]:
        """Statements that store what was ``found``, and what follows. ``previous``: what was, one element before."""
        given = {"scanned": found} | ({"previous": previous} if self.needs_previous else {})
        if self.type != self.result and not self.narrow:
            given = {name: f"ca::to<{self.result}>({value})" for name, value in given.items()}
        names = [f"const auto {name} = {value};" for name, value in given.items()]
        return [*names, *self.statements, *self.stores, *self.writer.after_scan(self.number)]

    @property
    def narrow(self) -> bool:
        """Whether what goes before a vector is wider than its elements, which are held as they are read."""
        return False

    def values(self, use: str) -> list[str]:
        return scan_values(self.writer, self.number, self.acc, use)
