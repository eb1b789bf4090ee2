"""The best actor of a stage so far, by its score in validation: kept while checkpoints come and go.

    best/step-000040/actor/, critic.safetensors   as the checkpoint of that step had them
    best/step-000040/state.json                   names the step and the score

A record is a checkpoint with a higher score than all before it, and above 0; the last record is the best. Of equal ones
the earlier stays: what more steps did not make better has only seen the tables more often. Of actors that all get
nothing right none is the best, or a stage would hand on what it began with. A record that was surpassed stays as well
while a roll-back may land before the one that surpassed it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainer.stages import checkpoint

BEST = "best"


@dataclass(frozen=True)
class Score:
    """Of a checkpoint in validation. value: the higher the better. played: names what was played for it; only scores
    of the same are compared."""

    value: float
    played: str

    def to_state(self) -> dict[str, Any]:
        """As a checkpoint's state has it."""
        return {"validation": {"score": self.value, "played": self.played}}

    @staticmethod
    def of_state(state: Mapping[str, Any]) -> Score | None:
        """None where the state is of a checkpoint that was not validated."""
        found = state.get("validation")
        return None if found is None else Score(found["score"], found["played"])


@dataclass(frozen=True)
class Best:
    """The actor's folder, after which step it was, and its score."""

    actor: Path
    step: int
    score: float


def best_of(folder: Path) -> Best | None:
    """Of a stage's folder; None where nothing was validated, or no actor got anything right."""
    records = folder / BEST
    steps = checkpoint.steps_in(records)
    if not steps:
        return None
    path = checkpoint.path_of(records, steps[-1])
    score = score_in(path)
    return None if score is None else Best(path / "actor", steps[-1], score.value)


def score_in(path: Path) -> Score | None:
    """The score of a checkpoint or record; None where it has none."""
    return Score.of_state(json.loads((path / checkpoint.STATE).read_text()))


def settle(folder: Path, played: str) -> None:
    """Have the records of a stage's folder be those of its checkpoints. Done after each new checkpoint, and as a stage
    goes on: a kill in between leaves a checkpoint whose record is missing, or half a record.

    played: names what scores are of; records of anything else go. "": nothing is validated, and none stays. Raises
    OSError where the disk is full; the records before are whole then.
    """
    records = folder / BEST
    if not played:
        shutil.rmtree(records, ignore_errors=True)
        return
    kept = checkpoint.steps_in(folder)
    drop_after(folder, kept[-1] if kept else -1)
    whole = [checkpoint.path_of(records, step) for step in checkpoint.steps_in(records)]
    for path in list(records.glob("step-*")):
        if path not in whole or not _is_of(path, played):
            checkpoint.remove(path)
    best = best_of(folder)
    for step in kept:
        score = score_in(checkpoint.path_of(folder, step))
        if score is None or score.played != played or score.value <= 0:
            continue
        if best is None or (step > best.step and score.value > best.score):
            checkpoint.keep_models(checkpoint.path_of(folder, step), records)
            best = best_of(folder)
    _drop_surpassed(records, kept[0] if kept else 0)


def drop_after(folder: Path, step: int) -> None:
    """Remove the records of later steps, as a roll-back to this one does with checkpoints."""
    records = folder / BEST
    for later in checkpoint.steps_in(records):
        if later > step:
            checkpoint.remove(checkpoint.path_of(records, later))


def _is_of(path: Path, played: str) -> bool:
    score = score_in(path)
    return score is not None and score.played == played


def _drop_surpassed(records: Path, oldest: int) -> None:
    """Remove what no roll-back brings back. oldest: the first step of the checkpoints that there are."""
    steps = checkpoint.steps_in(records)
    for step, surpassed in pairwise(steps):
        if surpassed <= oldest:
            checkpoint.remove(checkpoint.path_of(records, step))
