"""Validation: what a stage's actor comes to on task families that no stage is trained on.

A policy may learn its tables by heart. Its reward in training rises all the same, and its reward here does not.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from trainer.ppo.ranks import share
from trainer.rollout.episodes import Plan, Play, Played, roll_out
from trainer.rollout.world import WorldFailed, validation_tasks_of
from trainer.stages.best import Score
from trainer.stages.evaluate import counts
from trainer.stages.steps import Stage

WINS = 3.0
"""The largest reward of an outcome."""


@dataclass(frozen=True)
class _Told:
    """What one process found: each episode's worth, or why there is none."""

    worths: Sequence[float]
    failure: str = ""


@dataclass(frozen=True)
class Validation:
    """Of one stage."""

    stage: Stage

    @cached_property
    def plans(self) -> Sequence[Plan]:
        """Each validation task at each budget, in all processes together; none where the stage does not validate, or
        its world has no such tasks. Seeds are the same at each checkpoint, so that scores differ by the actor alone."""
        seed = f"{self.stage.config.seed}/{self.stage.name}/validation"
        return [
            Plan(task, f"{seed}/{budget}/{number}", budget)
            for number, task in enumerate(validation_tasks_of(self.stage.world))
            for budget in self.stage.settings.validate
        ]

    @property
    def play(self) -> Play:
        """As the stage's own episodes are."""
        return Play(self.stage.settings.turns, single=self.stage.name == "warmup")

    @cached_property
    def name(self) -> str:
        """Names what is played, by 16 hex digits: scores of the same name can be compared. "" where nothing is."""
        if not self.plans:
            return ""
        given = [[(p.task, p.seed, p.judgements) for p in self.plans], self.play.turns]
        return hashlib.sha256(json.dumps(given).encode()).hexdigest()[:16]

    def score(self) -> Score | None:
        """Of the actor as it is now, which takes the likeliest word, as where it is served: the mean of `worth` over
        tasks and budgets. What was lost to infrastructure says nothing of the actor, and is left out. None where all
        was, or nothing was played.

        Every process must ask for it, and has the same answer. Raises `WorldFailed` in all others where one fails.
        """
        if not self.plans:
            return None
        stage, failure = self.stage, None
        worths: list[float] = []
        try:
            speaker = stage.learner.kind.speaker(stage.learner.actor, 0.0)
            found = roll_out(share(self.plans, stage.ranks), stage.world, speaker, self.play)
            worths = [worth(one) for one in found if counts(one.episode)]
        except Exception as error:  # the others wait for an answer
            failure = error
        why = "" if failure is None else f"{type(failure).__name__}: {failure}"
        told: list[_Told] = stage.ranks.everyones(_Told(worths, why))
        if failure is not None:
            raise failure
        for rank, one in enumerate(told):
            if one.failure:
                raise WorldFailed(f"process {rank} cannot play validation tasks: {one.failure}")
        every = [value for one in told for value in one.worths]
        return Score(statistics.fmean(every), self.name) if every else None


def worth(one: Played) -> float:
    """What an episode is worth, in [0, 1]: its speed-up as a share of the best one that is known of the task; 0 where
    nothing correct was submitted.

    This is the part of the reward ``graded`` that tells good policies apart. Without the outcome's steps a task that
    lies near one of them does not outweigh the others. Where nobody knows the best, as before the judge, it is a third
    of the outcome's reward: 1 for correct, 2 for faster than eager, 3 for faster than Inductor too.
    """
    reward = one.episode.reward or 0.0
    if reward <= 0:
        return 0.0
    return min(1.0, one.speed / one.best_known) if one.best_known > 0 else min(1.0, reward / WINS)
