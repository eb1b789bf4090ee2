"""What a probe is asked, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

CROWDED = "crowded"
"""In the facts of a probe the stage of a task that found no memory on a GPU because others fill it."""


@dataclass(frozen=True)
class ProbeRequest:
    """One task to look at.

    code: the file's text. training: times are those of forward and backward. least_s, most_s: eager's time outside of
    these ends the probe early. memory_bytes: of inputs and weights together. device_bytes: what the process may take
    of the GPU's memory, or of the machine's. limit_s: seconds of work, turns that it waits for not counted. ops, dtype,
    exempt: what the row says (see `Composed`), so that a task that a filter drops is looked at no further. ceilings: of
    `sandbox.timing.machine`, with ``call_s``; empty where the floor is not wanted. alone: it gets a process that has
    looked at no other task and will look at none, as code of others must. regions: the facts wanted are the task's
    regions, and nothing is timed.
    """

    code: str
    target: str
    training: bool
    least_s: float
    most_s: float
    memory_bytes: int
    device_bytes: int
    limit_s: float
    ops: tuple[str, ...] = ()
    dtype: str = "float32"
    exempt: tuple[str, ...] = ()
    ceilings: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = True
    regions: bool = False

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> ProbeRequest:
        """From `to_json`. Raises TypeError on anything else."""
        lists = {name: tuple(value.get(name, ())) for name in ("ops", "exempt")}
        return ProbeRequest(**{**value, **lists})
