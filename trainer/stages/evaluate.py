"""The stage ``eval``: the policy on tasks that it was not trained on, at each budget, beside today's search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from trainer.rollout.episodes import Plan, Play, Played, played, roll_out
from trainer.rollout.table_world import TableWorld
from trainer.stages.contest import contest
from trainer.stages.steps import Stage, means


def evaluate(stage: Stage) -> dict[str, Any]:
    """Figures by policy and budget: mean reward, share of tasks with a promoted kernel, geometric mean of the speed-up
    of promoted kernels with 1 for tasks without, judgements asked for. On tables also the arena's figures,
    beside rivals that learnt from the same ones, unless ``seeds`` is 0."""
    settings, learner = stage.settings, stage.learner
    sampler = learner.kind.speaker(learner.actor, settings.temperature)
    play = Play(settings.turns)
    found: dict[str, Any] = {}
    for budget in settings.judgements:
        plans = _plans(stage, budget)
        ours = roll_out(plans, stage.world, sampler, play)
        theirs = [
            played(SearchPolicy(judgements=budget), plan, stage.world, play) for plan in plans
        ]
        found[str(budget)] = {"trained": summary(stage, ours), "search": summary(stage, theirs)}
    arena = settings.seeds and stage.ranks.rank == 0
    if isinstance(world := stage.world, TableWorld) and arena:
        train, test = world.tables(world.tasks), world.tables(world.test_tasks)
        found["arena"] = contest(sampler, train, test, settings.rivals, settings.seeds)
    return found


def _plans(stage: Stage, budget: int) -> list[Plan]:
    from trainer.ppo.ranks import share

    seed = f"{stage.config.seed}/eval/{budget}"
    plans = [Plan(task, f"{seed}/{n}", budget) for n, task in enumerate(stage.world.test_tasks)]
    return share(plans, stage.ranks)


def summary(stage: Stage, episodes: Sequence[Played]) -> Mapping[str, float]:
    """Of one policy at one budget, over all processes' episodes."""
    told = []
    for one in episodes:
        won = one.episode.notes.get("won", 0.0)
        speed = one.speed if won and one.speed > 1 else 1.0
        known = {} if one.episode.reward is None else {"reward": one.episode.reward}
        spent = one.episode.notes.get("judgements", 0.0)
        told.append({**known, "won": won, "log_speed": math.log(speed), "judgements": spent})
    found = means(stage.ranks, told)
    found["geomean"] = math.exp(found.pop("log_speed", 0.0))
    return {**found, "tasks": float(len(episodes))}
