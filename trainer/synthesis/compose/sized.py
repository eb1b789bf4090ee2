"""Tasks of the rule-based composer, at a size at which they take about as long as they should."""

from __future__ import annotations

import math
import random

from trainer.synthesis.compose.expected import expected_s
from trainer.synthesis.compose.rules import RuleComposer
from trainer.synthesis.compose.task import Composed, NotComposed, Wishes, window_of

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
        best: tuple[float, Composed] | None = None
        tried: set[int] = set()
        for _ in range(TRIES):
            task = self._rules.compose(seed, rung)
            if isinstance(task, NotComposed):
                break
            tried.add(rung)
            device = self._wishes.device
            found = expected_s(task.code, device, task.dtype, task.training)
            if found is None:
                return task
            window = window_of(self._wishes, task.small)
            if window[0] * ROOM <= found <= window[1] / ROOM:
                return task
            aim = aim_of(seed, window)
            apart = abs(math.log(found / aim))
            if best is None or apart < best[0]:
                best = apart, task
            rung = next_rung(rung, found, aim)
            if rung in tried:
                break
        return best[1] if best is not None else task


def aim_of(seed: int, window: tuple[float, float]) -> float:
    """The time that a task is scaled to, in seconds: well within its window, another one for each seed."""
    low, high = math.log(window[0] * ROOM), math.log(window[1] / ROOM)
    return math.exp(random.Random(f"aim {seed}").uniform(low, high))


def next_rung(rung: int, seconds: float, aim: float) -> int:
    """The size at which a task would take about the time aimed at, if it grew with its size."""
    step = round(math.log2(aim / max(seconds, 1e-9)))
    step = step or (1 if aim > seconds else -1)
    return max(-MOST_RUNGS, min(MOST_RUNGS, rung + step))
