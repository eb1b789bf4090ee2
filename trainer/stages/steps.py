"""One step of each stage: what is played, what is learnt from it, and the figures of both.

Every random number of a step comes from the run's seed, the stage and the step's number, so a step that is done again
after a kill is the same one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.policies.trained.speech import Speech
from cuda_agent_backend.agent.protocol import Policy
from trainer.policy.model import parameters_of
from trainer.ppo.batch import with_less_memory
from trainer.ppo.episode import Sample
from trainer.ppo.losses import Clip
from trainer.ppo.prepare import Estimates, Prepared, prepare
from trainer.ppo.ranks import Ranks, share
from trainer.ppo.update import Learning, Rules, update_actor, update_critic, update_likelihood
from trainer.rivals.registry import RIVALS as ARENA
from trainer.rollout.demonstrations import chance_policy, demonstrations
from trainer.rollout.episodes import Plan, Play, Played, roll_out
from trainer.rollout.filters import filtered
from trainer.rollout.rival_policy import Tutors
from trainer.rollout.table_world import TableWorld
from trainer.rollout.world import World, WorldFailed
from trainer.stages.config import Config, StageSettings
from trainer.stages.learner import Learner

Figures = dict[str, float]
SMALL = 30_000_000 * 16_384
"""Parameters times ids."""


@dataclass
class Stage:
    """What a step works with. behaviour: the model that episodes are rolled out with, where it is not the actor.
    tutors: rivals of the arena that were fitted for pretraining, by name."""

    name: str
    config: Config
    world: World
    learner: Learner
    ranks: Ranks
    behaviour: Any = None
    tutors: dict[str, Tutors] = field(default_factory=dict)

    @property
    def settings(self) -> StageSettings:
        """Of this stage."""
        return self.config.stage(self.name)

    def chance(self, step: int) -> random.Random:
        """The random numbers of a step."""
        return random.Random(f"{self.config.seed}/{self.name}/{step}")

    def plans(self, step: int) -> list[Plan]:
        """The episodes of a step, those of this process: tasks drawn anew, each tried as often as the settings say."""
        settings, chance = self.settings, self.chance(step)
        found = []
        for task in range(settings.episodes // settings.attempts):
            name, budget = chance.choice(self.world.tasks), chance.choice(settings.judgements)
            for attempt in range(settings.attempts):
                seed = f"{self.config.seed}/{self.name}/{step}/{task}/{attempt}"
                found.append(Plan(name, seed, budget))
        return share(found, self.ranks)

    def rules(self, **changes: Any) -> Rules:
        """Of an update."""
        s = self.settings
        made = {
            "epochs": s.epochs, "minibatches": s.minibatches, "ids": s.ids, "gradient_norm": s.gradient_norm,
            "entropy": s.entropy, "temperature": s.temperature, "clip": s.clip,
        }  # fmt: skip
        return Rules(**{**made, **changes})

    def roll_out(self, step: int, single: bool = False) -> list[Played]:
        """The episodes of a step, played."""
        model = self.learner.actor if self.behaviour is None else self.behaviour
        sampler = self.learner.kind.speaker(model, self.settings.temperature)
        play = Play(self.settings.turns, single, self.settings.reward)
        return roll_out(self.plans(step), self.world, sampler, play)

    def prepare(self, played: Sequence[Played]) -> Prepared:
        """What an update of either model learns from: both say of the episodes what they think now, the actor at the
        temperature that its sampler gave log-probabilities at."""
        episodes, learner, settings = [one.episode for one in played], self.learner, self.settings
        how = Estimates(bootstrap=settings.bootstrap, ids=2 * settings.ids)
        temperature = settings.temperature or 1.0
        return prepare(episodes, learner.actor, learner.critic, how, self.ranks, temperature)

    def learn_to_say(self, samples: Sequence[Sample], step: int) -> Figures:
        """Raise the likelihood that the actor says what it or others said; figures of the update."""
        return update_likelihood(self.actor(self.rules(), self.chance(step)), samples)

    def actor(self, rules: Rules, chance: random.Random) -> Learning:
        """The actor, to be updated."""
        learner = self.learner
        return Learning(learner.actor, learner.actor_optimizer, rules, self.ranks, chance)

    def critic(self, rules: Rules, chance: random.Random) -> Learning:
        """The critic, to be updated."""
        learner = self.learner
        return Learning(learner.critic, learner.critic_optimizer, rules, self.ranks, chance)


def pretrain_step(stage: Stage, step: int) -> Figures:
    """Likelihood of what rivals said. Only their calls are learnt; what tools answered is read."""
    settings, speech = stage.settings, stage.learner.kind.speech
    plans = stage.plans(step)
    samples = []
    for number, rival in enumerate(settings.rivals):
        part, make = plans[number :: len(settings.rivals)], rival_of(rival, stage)
        samples += demonstrations(part, stage.world, speech, Play(settings.turns), make)
    found = stage.learn_to_say(samples, step)
    read = sum(len(every) for every in stage.ranks.everyones([0] * len(samples)))
    return {**prefixed(found), "samples": float(read)}


def rival_of(name: str, stage: Stage) -> Callable[[Plan], Policy]:
    """Makes a rival for an episode. Raises `WorldFailed` for one of the arena where tasks have no tables."""
    speech, world = stage.learner.kind.speech, stage.world
    if name == "chance" and isinstance(speech, Speech):
        return lambda plan: chance_policy(speech, plan.seed)
    if name == "search":
        return lambda plan: SearchPolicy(judgements=plan.judgements)
    if not isinstance(world, TableWorld):
        raise WorldFailed(
            f"{name} learns from tables, and this world has none; give search or chance"
        )
    if name not in stage.tutors:
        known = world.tables(world.tasks)
        stage.tutors[name] = Tutors(ARENA[name], known, stage.config.seed)
    return stage.tutors[name].policy


def rft_step(stage: Stage, step: int) -> Figures:
    """Rejection fine-tuning: the likelihood of what the model that the stage began with said in episodes that every
    rule lets through."""
    played = stage.roll_out(step)
    kept, dropped = filtered(played)
    samples = [s for one in kept for s in one.episode.samples]
    found = stage.learn_to_say(samples, step)
    counts = means(stage.ranks, [{"kept": 1.0} if one in kept else {"kept": 0.0} for one in played])
    every = max(1, len(played))
    why = {f"dropped/{name}": count / every for name, count in dropped.items()}
    return {**episode_figures(stage.ranks, played), **prefixed(found), **counts, **why}


def value_step(stage: Stage, step: int) -> Figures:
    """Value pretraining: the critic learns what the actor's episodes come to; the actor stays."""
    played = stage.roll_out(step)
    ready = stage.prepare(played)
    rules = stage.rules(clip=Clip(value=0.0))
    found = update_critic(stage.critic(rules, stage.chance(step)), ready.steps)
    return {**episode_figures(stage.ranks, played), **ready.figures, **prefixed(found, "critic_")}


def ppo_step(stage: Stage, step: int) -> Figures:
    """PPO: of one answer a task in the stage "warmup", over many turns otherwise."""
    played = stage.roll_out(step, single=stage.name == "warmup")
    ready = stage.prepare(played)
    rules, chance = stage.rules(), stage.chance(step)
    critic = update_critic(stage.critic(rules, chance), ready.steps)
    actor = update_actor(stage.actor(rules, chance), ready.steps)
    figures = {**episode_figures(stage.ranks, played), **ready.figures}
    return {**figures, **prefixed(actor), **prefixed(critic, "critic_")}


STEPS: dict[str, Callable[[Stage, int], Figures]] = {
    "pretrain": pretrain_step,
    "warmup": ppo_step,
    "rft": rft_step,
    "value": value_step,
    "agentic": ppo_step,
    "live": ppo_step,
}


def ready_to_learn(learner: Learner, ids: int) -> None:
    """Have both models recompute their layers on the way back, unless they are so small, and a batch of so many ids as
    well, that all of it fits; then recomputing costs an eighth of a step for nothing."""
    if parameters_of(learner.actor) * ids <= SMALL:
        return
    with_less_memory(learner.actor)
    with_less_memory(learner.critic)


def episode_figures(ranks: Ranks, played: Sequence[Played]) -> Figures:
    """Means over the episodes of all processes. failed: share of those lost to the environment; spent: of those that
    ended with their budget, which they were told of; cut_off: of those for which the context was too short."""
    told = []
    for one in played:
        episode = one.episode
        lost = episode.end == "infrastructure"
        known = {} if episode.reward is None else {"reward": episode.reward}
        fate = {"failed": float(lost), "spent": float(episode.end == "turns")}
        told.append({**episode.notes, **known, **fate, "turns": float(episode.turns)})
    return means(ranks, told)


def means(ranks: Ranks, told: Sequence[Figures]) -> Figures:
    """Of each figure over those that have it, in all processes."""
    sums: dict[str, list[float]] = {}
    for one in (one for every in ranks.everyones(list(told)) for one in every):
        for name, value in one.items():
            total = sums.setdefault(name, [0.0, 0.0])
            total[0] += value
            total[1] += 1
    return {name: total / count for name, (total, count) in sorted(sums.items())}


def prefixed(figures: Figures, prefix: str = "") -> Figures:
    """Figures of an update by their names in the report."""
    return {f"{prefix}{name}": value for name, value in figures.items()}
