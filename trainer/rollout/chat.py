"""A pretrained model in episodes: it reads and speaks the agent's protocol through its own chat template.

What it sampled is kept as it was drawn. Messages behind its own are rendered with the template's marks and encoded by
themselves (see `agent.policies.chat`), so the ids of a sample are those that the engine saw, and only sampled ones are
actions. Prompts are read anew each turn; nothing is kept between turns.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cuda_agent_backend.agent.policies.chat import Chat
from cuda_agent_backend.agent.policies.engine import EngineFailed, Sampled
from cuda_agent_backend.agent.policies.local import LocalPolicy
from cuda_agent_backend.agent.policies.spec import Limits, PolicySpec, Sampling
from cuda_agent_backend.agent.policies.trained.policy import TrainedPolicy
from cuda_agent_backend.agent.policies.trained.sampler import Request, Sampler
from cuda_agent_backend.agent.policies.transformers_engine import TransformersEngine
from cuda_agent_backend.agent.protocol import Message, Policy, Schema
from trainer.ppo.episode import Sample

NAME = "trained"
Ask = Callable[[Request], Sampled | EngineFailed]


@dataclass(frozen=True)
class ChatVoice:
    """How a pretrained model speaks. ends: ids that end its messages. window: ids of a conversation at most. message:
    ids of one message of its at most."""

    tokenizer: Any
    ends: tuple[int, ...]
    window: int
    message: int

    def demonstration(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Sample | None:
        """A whole conversation of another policy as one sequence, its messages as the template writes them; None where
        the template renders a conversation otherwise once there is more of it, or where it fits no window."""
        chat = Chat(self.tokenizer, Limits().message_characters)
        ids, spoken = list[int](), list[bool]()
        said: Message | None = None
        start = 0
        for place, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            if said is None:
                heard: list[int] | None = chat.whole(messages[:place], tools)
            else:
                heard = chat.following(said, messages[start:place], self.tokenizer.eos_token_id)
            made = chat.saying(message)
            if heard is None or made is None:
                return None
            ids += [*heard, *made]
            spoken += [False] * len(heard) + [True] * len(made)
            said, start = message, place + 1
        return Sample(tuple(ids), tuple(spoken)) if 0 < len(ids) <= self.window else None


class ChatSampler:
    """A pretrained model that speaks. temperature: 0 takes the likeliest id, with log-probabilities at 1."""

    speech = None
    """No grammar: any id may come next."""

    def __init__(self, model: Any, voice: ChatVoice, temperature: float = 1.0) -> None:
        self.model, self.voice, self.temperature = model, voice, temperature

    @property
    def window(self) -> int:
        """Ids of a conversation at most."""
        most = int(self.model.config.get_text_config().max_position_embeddings)
        return min(self.voice.window, most)

    def session(self) -> ChatSampler:
        """For conversations that begin."""
        return self

    def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        """The next message of each, in one batch. Draws hang on the seeds of all of them."""
        seed = zlib.crc32("\n".join(request.seed for request in requests).encode())
        wanted = Sampling(self.temperature, 1.0, self.voice.message, seed)
        engine = TransformersEngine(self.model, self.voice.ends, wanted, self.window)
        return engine.generate([request.ids for request in requests])

    def policy(self, ask: Ask, key: int, seed: str) -> Policy:
        """One episode's conversation."""
        limits = Limits(context_tokens=self.window)
        sampling = Sampling(max_new_tokens=self.voice.message)
        spec = PolicySpec(NAME, sampling=sampling, limits=limits)
        return LocalPolicy(spec, self.voice.tokenizer, _Asking(ask, key, seed, self.window))


class _Asking:
    """The engine as one episode's policy sees it: each message has a seed of its own."""

    def __init__(self, ask: Ask, key: int, seed: str, window: int) -> None:
        self._ask, self._key, self._seed, self.window = ask, key, seed, window
        self._turns = 0

    def generate(self, prompt: Sequence[int]) -> Sampled | EngineFailed:
        """See `agent.policies.engine.Answers`."""
        self._turns += 1
        return self._ask(Request(self._key, list(prompt), f"{self._seed}/{self._turns}"))


Speaker = Sampler | ChatSampler
"""A model that plays episodes: one made from nothing with its words, or a pretrained one."""


def policy_of(speaker: Speaker, ask: Ask, key: int, seed: str) -> Policy:
    """One episode's policy. ask: what samples its next message. key, seed: see `Request`."""
    if isinstance(speaker, ChatSampler):
        return speaker.policy(ask, key, seed)
    return TrainedPolicy(NAME, speaker.speech, ask, speaker.window, key, seed)
