"""Conversations of other policies in the words of the one that is trained: what it reads first."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from cuda_agent_backend.agent.policies.engine import Sampled
from cuda_agent_backend.agent.policies.trained.policy import TrainedPolicy
from cuda_agent_backend.agent.policies.trained.sampler import Request
from cuda_agent_backend.agent.policies.trained.speech import Speech
from cuda_agent_backend.agent.protocol import Message, Policy, Schema, Stopped, Turn
from trainer.ppo.episode import Sample
from trainer.rollout.chat import ChatVoice
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
    speech: Speech | ChatVoice,
    play: Play,
    make: Callable[[Plan], Policy],
) -> list[Sample]:
    """What a policy said, of the episodes that can be said in the words of the one that is trained."""
    found = []
    for plan in plans:
        heard = _Heard(make(plan))
        messages = played(heard, plan, world, play).messages
        sample = (
            speech.demonstration(messages, heard.tools)
            if isinstance(speech, ChatVoice)
            else _in_words(speech, messages)
        )
        if sample is not None and any(sample.spoken):
            found.append(sample)
    return found


def _in_words(speech: Speech, messages: Sequence[Message]) -> Sample | None:
    said = speech.encoded(messages)
    return None if said is None else with_choices(speech, said.ids, said.spoken, ())


class _Heard:
    """A policy, and the tools that it was told of."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self.name = policy, policy.name
        self.tools: Sequence[Schema] = ()

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        """See `Policy`."""
        self.tools = tools
        return self._policy.act(messages, tools)
