"""One seed number: composed, probed, scaled until its time lies in the window, and decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from trainer.synthesis.compose.sized import aim_of, next_rung
from trainer.synthesis.compose.task import Composed, Composer, NotComposed, Wishes, window_of
from trainer.synthesis.filters.decide import Claim, why_dropped
from trainer.synthesis.machine import Machine
from trainer.synthesis.probe.request import CROWDED, ProbeRequest

SCALINGS = 4
"""How often a task's size is changed at most."""
PASSED, DROPPED = "passed", "dropped"
NO_ROOM = "no room beside others"
"""The filter of a task that found no memory since others had it: no verdict on the task."""


@dataclass(frozen=True)
class Limits:
    """Of one task: seconds of work, and bytes of the device's memory."""

    seconds: float
    device_bytes: int


Probe = Callable[[ProbeRequest], dict[str, Any]]


def decided(
    seed: int, composer: Composer, probe: Probe, wishes: Wishes, machine: Machine, limits: Limits
) -> dict[str, Any]:
    """The journal's entry of a seed number."""
    rung = 0
    tried: set[int] = set()
    spent: Counter[str] = Counter()
    while True:
        task = composer.compose(seed, rung)
        if isinstance(task, NotComposed):
            return dropped(seed, "not composed", task.reason)
        window = window_of(wishes, task.small)
        facts = probe(request_of(task, wishes, window, machine, limits, composer.trusted))
        spent.update(facts.pop("cpu_s", {}))
        tried.add(rung)
        if facts.get("in_window", True) or not composer.scales or len(tried) > SCALINGS:
            break
        rung = next_rung(rung, facts["quick_s"], aim_of(seed, window, wishes.short))
        if rung in tried:
            break
    cost = {"cpu_s": {name: round(seconds, 3) for name, seconds in spent.items()}}
    if facts.get("stage") == CROWDED:
        return {**dropped(seed, NO_ROOM, facts["failed"], task), **cost}
    found = why_dropped(Claim(task.ops, task.dtype, task.exempt), facts)
    if found is not None:
        return {**dropped(seed, found.filter, found.reason, task), **cost}
    kept = {**asdict(task), "id": task.id}
    return {"seed": seed, "status": PASSED, "task": kept, "facts": facts, **cost}


def dropped(seed: int, filter: str, reason: str, task: Composed | None = None) -> dict[str, Any]:
    """The entry of a task that does not stay."""
    entry: dict[str, Any] = {"seed": seed, "status": DROPPED, "filter": filter, "reason": reason}
    return entry if task is None else {**entry, "ops": list(task.ops)}


def request_of(
    task: Composed,
    wishes: Wishes,
    window: tuple[float, float],
    machine: Machine,
    limits: Limits,
    trusted: bool,
) -> ProbeRequest:
    """What to ask of a task."""
    return ProbeRequest(
        code=task.code,
        target=wishes.device,
        training=task.training,
        least_s=window[0],
        most_s=window[1],
        memory_bytes=wishes.memory_bytes,
        device_bytes=limits.device_bytes,
        limit_s=limits.seconds,
        ops=task.ops,
        dtype=task.dtype,
        exempt=task.exempt,
        ceilings=dict(machine.ceilings_for(task.dtype)),
        alone=not trusted,
    )
