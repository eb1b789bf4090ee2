"""Tasks of the rule-based composer, at a size at which they take about as long as they should."""

from __future__ import annotations

import math
import random

from trainer.synthesis.compose.expected import Expected, expected
from trainer.synthesis.compose.rules import RuleComposer
from trainer.synthesis.compose.task import Composed, NotComposed, Wishes, window_of

RULE = 1
"""The number of the rules by which sizes follow from seed numbers on cuda; another number makes other tasks."""
TRIES = 5
MOST_RUNGS = 12
ROOM = 2.5
"""A task is left as it was drawn where it is reckoned to lie within its window by this factor on both sides."""


class SizedComposer:
    """The size follows from the seed number alone: a task is the same on a busy machine as on an idle one."""

    name = "rules"
    trusted = True
    scales = False

    def __init__(self, wishes: Wishes) -> None:
        self._wishes, self._rules = wishes, RuleComposer(wishes)

    def compose(self, seed: int, rung: int) -> Composed | NotComposed:
        """See `Composer.compose`. rung: where to begin."""
        best: tuple[float, float, Composed] | None = None
        most = MOST_RUNGS
        tried: set[int] = set()
        for _ in range(TRIES):
            task = self._rules.compose(seed, rung)
            if isinstance(task, NotComposed):
                break
            tried.add(rung)
            found = expected(task.code, self._wishes.device, task.dtype, task.training)
            if found is None:
                return task
            window = window_of(self._wishes, task.small)
            beyond = self._beyond(found, task)
            if beyond > 1.0:
                most = rung - 1
                rung -= math.ceil(math.log2(beyond))
            else:
                if window[0] * ROOM <= found.seconds <= window[1] / ROOM:
                    return task
                aim = aim_of(seed, window, self._wishes.short)
                apart = abs(math.log(found.seconds / aim))
                if best is None or apart < best[0]:
                    best = apart, found.seconds / window[0], task
                rung = min(most, next_rung(rung, found.seconds, aim))
            if rung in tried:
                break
        if best is None:
            return task if isinstance(task, NotComposed) else NotComposed("no size fits in memory")
        if self._wishes.need_bytes is not None and best[1] < 1.0:
            return NotComposed("it takes too little time at every size that fits in memory")
        return best[2]

    def _beyond(self, found: Expected, task: Composed) -> float:
        """How many times what a task may have it would have of memory; at most 1 where it fits."""
        wishes = self._wishes
        if wishes.need_bytes is None:
            return 1.0
        need = found.need(task.dtype, task.training)
        return max(found.held / wishes.memory_bytes, need / wishes.need_bytes)


def aim_of(seed: int, window: tuple[float, float], short: float = 1.0) -> float:
    """The time that a task is scaled to, in seconds: well within its window, another one for each seed. short: see
    `Wishes`."""
    low, high = math.log(window[0] * ROOM), math.log(window[1] / ROOM)
    return math.exp(low + (high - low) * random.Random(f"aim {seed}").random() ** short)


def next_rung(rung: int, seconds: float, aim: float) -> int:
    """The size at which a task would take about the time aimed at, if it grew with its size."""
    step = round(math.log2(aim / max(seconds, 1e-9)))
    step = step or (1 if aim > seconds else -1)
    return max(-MOST_RUNGS, min(MOST_RUNGS, rung + step))
