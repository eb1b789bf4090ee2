"""One seed number: composed, probed, scaled until its time lies in the window, and decided."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from trainer.synthesis.compose.task import Composed, Composer, NotComposed, Wishes
from trainer.synthesis.filters.decide import Claim, why_dropped
from trainer.synthesis.machine import Machine
from trainer.synthesis.probe.request import ProbeRequest

SCALINGS = 4
"""How often a task's size is changed at most."""
MOST_RUNGS = 12
SMALL_S = {"cuda": (5e-6, 1e-3), "cpu": (5e-6, 0.2e-3)}
"""The window of a task that is marked as bound by launches."""
PASSED, DROPPED = "passed", "dropped"


@dataclass(frozen=True)
class Limits:
    """Of one task: seconds of work, and bytes of the device's memory."""

    seconds: float
    device_bytes: int


Probe = Callable[[ProbeRequest], dict[str, Any]]


def window_of(wishes: Wishes, small: bool) -> tuple[float, float]:
    """Seconds that eager may take."""
    return SMALL_S[wishes.device] if small else (wishes.least_s, wishes.most_s)


def aim_of(seed: int, window: tuple[float, float]) -> float:
    """The time that a task outside of its window is scaled to: well within it, another one for each seed."""
    low, high = math.log(window[0] * 1.5), math.log(window[1] / 3)
    return math.exp(random.Random(f"aim {seed}").uniform(low, high))


def next_rung(rung: int, seconds: float, aim: float) -> int:
    """The size at which a task would take about the time aimed at, if it grew with its size."""
    step = round(math.log2(aim / max(seconds, 1e-9)))
    step = step or (1 if aim > seconds else -1)
    return max(-MOST_RUNGS, min(MOST_RUNGS, rung + step))


def decided(
    seed: int, composer: Composer, probe: Probe, wishes: Wishes, machine: Machine, limits: Limits
) -> dict[str, Any]:
    """The journal's entry of a seed number."""
    rung = 0
    tried: set[int] = set()
    while True:
        task = composer.compose(seed, rung)
        if isinstance(task, NotComposed):
            return dropped(seed, "not composed", task.reason)
        window = window_of(wishes, task.small)
        facts = probe(request_of(task, wishes, window, machine, limits))
        tried.add(rung)
        if facts.get("in_window", True) or len(tried) > SCALINGS:
            break
        rung = next_rung(rung, facts["quick_s"], aim_of(seed, window))
        if rung in tried:
            break
    found = why_dropped(Claim(task.ops, task.dtype, task.exempt), facts)
    if found is not None:
        return dropped(seed, found.filter, found.reason, task)
    kept = {**asdict(task), "id": task.id}
    return {"seed": seed, "status": PASSED, "task": kept, "facts": facts}


def dropped(seed: int, filter: str, reason: str, task: Composed | None = None) -> dict[str, Any]:
    """The entry of a task that does not stay."""
    entry: dict[str, Any] = {"seed": seed, "status": DROPPED, "filter": filter, "reason": reason}
    return entry if task is None else {**entry, "ops": list(task.ops)}


def request_of(
    task: Composed, wishes: Wishes, window: tuple[float, float], machine: Machine, limits: Limits
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
        exempt=task.exempt,
        ceilings=dict(machine.ceilings_for(task.dtype)),
    )
