"""What a judge is told when it is made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """Seconds: start of a worker, preparation (Inductor's compilation), compilation of a candidate,
    one call of anything."""

    start: float = 180.0
    prepare: float = 300.0
    compile: float = 120.0
    run: float = 20.0
