"""One of several processes that do a stage together, the others later than the first: writes what all had in common."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from toy_world import ToyWorld

from trainer.policy.model import ModelSettings
from trainer.ppo.ranks import Accelerated
from trainer.stages import checkpoint
from trainer.stages.config import Config, StageSettings
from trainer.stages.runner import Run, run_stage

STAGE, STEPS, EVERY = "warmup", 3, 2
"""So the last checkpoint is one that no step writes."""
TINY = ModelSettings(hidden=16, layers=1, heads=1, key_heads=1, head=16, inner=32, window=1024)
SHORT = StageSettings(
    steps=STEPS, episodes=8, attempts=2, judgements=(1,), every=EVERY, validate=(1, 3)
)
WORLD = ToyWorld(validation_tasks=("1024", "2048", "4096"))


class Noting:
    """Ranks that keep who asked for what: processes whose lists differ have answered each other's other questions."""

    def __init__(self) -> None:
        self._ranks, self.asked = Accelerated(), list[str]()
        self.rank, self.world, self.device = self._ranks.rank, self._ranks.world, self._ranks.device

    def sum(self, value: Tensor) -> Tensor:
        """See `Ranks`."""
        self.asked.append(f"{asker()}: a sum of {tuple(value.shape)}")
        return self._ranks.sum(value)

    def everyones(self, value: Any) -> list[Any]:
        """See `Ranks`."""
        self.asked.append(asker())
        return self._ranks.everyones(value)


def asker() -> str:
    """The function that asks."""
    return sys._getframe(2).f_code.co_name


def look_late(folder: Path) -> None:
    """Have this process look for checkpoints once the first one has written what it writes next, as a slow one does."""
    real, awaited = checkpoint.steps_in, iter((0, STEPS))

    def late(where: Path) -> list[int]:
        step = next(awaited)
        while step not in real(where):
            time.sleep(0.01)
        return real(where)

    checkpoint.steps_in = late


if __name__ == "__main__":
    torch.set_num_threads(1)
    out, ranks = Path(sys.argv[1]), Noting()
    if ranks.rank:
        look_late(out / STAGE)
    config = Config(model=TINY, stages=(STAGE,), warmup=SHORT)
    run = Run(config, out, ranks, lambda settings: WORLD, lambda text: None)
    said = run_stage(run, STAGE)
    found = {"asked": ranks.asked, "steps": said["steps"]}
    (out / f"rank-{ranks.rank}.json").write_text(json.dumps(found))
