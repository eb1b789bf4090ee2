"""A kernel over rows for which layouts are sought, with what all that propose some need to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cuda_agent_backend.codegen.cuda.common.sizes import vectors
from cuda_agent_backend.codegen.cuda.rows.facts import RowFacts, row_facts
from cuda_agent_backend.codegen.cuda.rows.layout import Layout, read_layout
from cuda_agent_backend.codegen.cuda.rows.writer import emit_rows
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter

Parameters = dict[str, Parameter]


@dataclass(frozen=True)
class RowProblem:
    """A kernel of a region, for a device."""

    kernel: Kernel
    region: LoweredRegion
    device: DeviceFacts

    @cached_property
    def facts(self) -> RowFacts:
        """Raises Unsupported where the kernel has no row form."""
        return row_facts(self.kernel, self.region)

    @property
    def bytes(self) -> int:
        """Of all rows, about."""
        return self.facts.points * self.facts.rows * self.facts.item

    @property
    def is_in_l2(self) -> bool:
        """Whether the L2 cache holds all rows."""
        return self.bytes < self.device.l2_bytes

    def vector(self, size: int) -> int:
        """The widest vector that divides ``size``."""
        return vectors(self.facts.item, size)[0]

    def layout(self, parameters: Parameters, ordered: bool | None = None) -> Layout:
        """As `read_layout`. ``ordered``: whether as for a scan; None: as the kernel is."""
        facts = self.facts
        ordered = facts.scans if ordered is None else ordered
        return read_layout(parameters, facts.points, facts.rows, ordered, facts.wide)

    def text(self, parameters: Parameters) -> tuple[str, ...]:
        """The functions that a schedule prints; none where it does not fit."""
        try:
            return emit_rows(self.kernel, self.region, parameters, "k", self.device).functions
        except Unsupported:
            return ()

    def fits(self, parameters: Parameters) -> bool:
        """Whether a schedule can be printed."""
        return bool(self.text(parameters))
