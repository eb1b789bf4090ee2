"""What became of each region of each graph: plain data, ready for JSON."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from cuda_agent_backend.partition.region import Region

HIT, MISS, NEGATIVE, LEFT, DROPPED = "hit", "miss", "negative", "left", "dropped"
"""Used; no kernel known; searched in vain; not offered or not usable; known but not used in this graph."""


@dataclass(frozen=True)
class RegionReport:
    """One region. `operators` counts them by name; `moved`: bytes of inputs and outputs; `nodes`: how many.

    `status` is one of hit, miss, negative, left, dropped; `reason` says why it is not a hit. `task` is the task's
    digest, "" where there is none. `speedup`, `low`, `high`: the kernel's recorded speed-up over the faster baseline
    and its 95 % interval. `room`: estimated ratio of Inductor's time to the roofline floor, None if not estimated.
    `beside`: it is the rest of the region before it, whose product a library runs.
    """

    operators: dict[str, int]
    nodes: int
    moved: int
    status: str
    reason: str = ""
    task: str = ""
    label: str = ""
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    error_ratio: float | None = None
    room: float | None = None
    beside: bool = False


@dataclass(frozen=True)
class GraphReport:
    """One graph: `kind` is forward or backward; `acceptance` what the whole-graph measurement said, {} if none.

    `layouts`: what was measured of eager's layouts of convolutions against those that Inductor chooses, {} if nothing.
    """

    digest: str
    kind: str
    regions: tuple[RegionReport, ...]
    acceptance: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    layouts: dict[str, Any] = field(default_factory=dict)

    @property
    def eager_layouts(self) -> bool:
        """Whether its convolutions keep eager's layouts, which Inductor would change."""
        return bool(self.layouts.get("eager_layouts"))

    @property
    def replayed(self) -> bool:
        """Whether it is replayed from a CUDA graph."""
        return bool(self.acceptance.get("replay"))

    @property
    def wholes(self) -> int:
        """How many regions there are, where a region and its rest are one."""
        return sum(not region.beside for region in self.regions)

    def count(self, status: str) -> int:
        """How many regions have a status."""
        return sum(region.status == status for region in self.regions)

    def summary(self) -> str:
        """One line for the log."""
        counts = Counter(region.status for region in self.regions)
        parts = [f"{counts[s]} {s}" for s in (HIT, MISS, NEGATIVE, DROPPED, LEFT) if counts[s]]
        parts += ["eager's layouts"] if self.eager_layouts else []
        parts += ["replayed"] if self.replayed else []
        return f"{self.kind} graph {self.digest[:12]}: {', '.join(parts) or 'no regions'}"

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def describe(region: Region, status: str, reason: str = "", **more: Any) -> RegionReport:
    """The report of a region; `more` fills the fields that need a task or a record."""
    names = Counter(
        str(node.target).split(".")[1]
        for node in region.nodes
        if node.op == "call_function" and str(node.target).count(".") == 2
    )
    return RegionReport(dict(names), len(region.nodes), region.moved, status, reason, **more)


def finite(value: object) -> float | None:
    """A number that JSON can hold, or None."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None  # type: ignore[arg-type]
