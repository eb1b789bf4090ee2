"""Conversations of other policies in the small policy's words: what a model made from nothing reads first."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from cuda_agent_backend.agent.policies.engine import Sampled
from cuda_agent_backend.agent.policies.trained.policy import TrainedPolicy
from cuda_agent_backend.agent.policies.trained.sampler import Request
from cuda_agent_backend.agent.policies.trained.speech import Speech
from cuda_agent_backend.agent.protocol import Policy
from trainer.ppo.episode import Sample
from trainer.rollout.episodes import Plan, Play, played, with_choices
from trainer.rollout.world import World

WINDOW = 1 << 20


def chance_policy(speech: Speech, seed: str) -> Policy:
    """Says anything that is a valid call, each choice with the same probability, but never gives up."""

    def generate(request: Request) -> Sampled:
        chance, said = random.Random(request.seed), list[int]()
        grammar = speech.grammar().feed(request.ids)
        while grammar.speaking:
            said.append(chance.choice([i for i in grammar.allowed() if i != speech.words.give_up]))
            grammar.feed(said[-1:])
        return Sampled(tuple(said), (0.0,) * len(said), True)

    return TrainedPolicy("chance", speech, generate, WINDOW, seed=seed)


def demonstrations(
    plans: Sequence[Plan],
    world: World,
    speech: Speech,
    play: Play,
    make: Callable[[Plan], Policy],
) -> list[Sample]:
    """What a policy said, of the episodes that can be said in the small policy's words."""
    found = []
    for plan in plans:
        said = speech.encoded(played(make(plan), plan, world, play, speech).messages)
        if said is not None and any(said.spoken):
            sample = with_choices(speech, said.ids, said.spoken, ())
            found.append(sample)
    return found
