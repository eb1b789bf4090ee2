"""What a policy's episodes at one budget come to, with intervals by a bootstrap over families of tasks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from trainer.arena.figures import Measured, geometric, over_families
from trainer.stages.episode_book import Line


def scores(lines: Sequence[Line], failed: int) -> dict[str, Any]:
    """tasks: that were played; failed: that were lost to infrastructure, and are in no other figure. won: share with a
    promoted kernel; geomean: of the speed-up, 1 where nothing was promoted; both with the bounds of their interval.
    reward, judgements, seconds: means."""
    found: dict[str, Any] = {"tasks": len(lines), "failed": failed}
    if not lines:
        return found

    def each(of: Callable[[Line], float]) -> list[Measured]:
        return [(line.family, line.task, of(line)) for line in lines]

    rewards = [line.reward for line in lines if line.reward is not None]
    return {
        **found,
        "families": len({line.family for line in lines}),
        "won": over_families(each(lambda line: float(line.won)), statistics.fmean),
        "geomean": geometric(each(lambda line: line.speedup)),
        **({"reward": statistics.fmean(rewards)} if rewards else {}),
        "judgements": statistics.fmean(line.judgements for line in lines),
        "seconds": statistics.fmean(line.seconds for line in lines),
    }
