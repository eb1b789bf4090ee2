"""The transformers and vllm policies: a model in this process, shared by all episodes that want it.

Each turn's ids and log-probabilities are recorded as they were sampled; see `chat` for how conversations go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from cuda_agent_backend.agent.policies.calls import read_message
from cuda_agent_backend.agent.policies.chat import Chat
from cuda_agent_backend.agent.policies.engine import Answers, Batcher, EngineFailed, Sampled
from cuda_agent_backend.agent.policies.spec import PolicySpec, Sampling
from cuda_agent_backend.agent.protocol import Message, Schema, Stopped, Tokens, Turn, Usage

LEAST_ROOM = 64
"""Ids without which a message is not begun."""

_lock = threading.Lock()
_shared: dict[tuple[str, str, Sampling], tuple[Any, Batcher]] = {}


def make(spec: PolicySpec) -> LocalPolicy:
    """Raises `ImportError` where the model cannot be loaded."""
    key = (spec.name, spec.model, spec.sampling)
    with _lock:
        if key not in _shared:
            try:
                _shared[key] = _load(spec)
            except Exception as error:
                first = str(error).strip().partition("\n")[0][:300]
                raise ImportError(f"the model {spec.model!r} cannot be loaded: {first}") from error
        tokenizer, batcher = _shared[key]
    return LocalPolicy(spec, tokenizer, batcher)


def forget_models() -> None:
    """Close all engines and forget their models."""
    with _lock:
        for _, batcher in _shared.values():
            batcher.close()
        _shared.clear()


def _load(spec: PolicySpec) -> tuple[Any, Batcher]:
    from transformers import AutoTokenizer

    from cuda_agent_backend.agent.policies import transformers_engine, vllm_engine

    tokenizer = AutoTokenizer.from_pretrained(spec.model)
    load: Callable[..., Any] = transformers_engine.load
    if spec.name == "vllm":
        load = partial(vllm_engine.load, memory_share=spec.limits.memory_share)
    return tokenizer, Batcher(load(spec.model, ends_of(tokenizer, spec.model), spec.sampling))


def ends_of(tokenizer: Any, model: str) -> list[int]:
    """The ids that end a model's messages: its tokenizer's, and those that its generation settings name."""
    from transformers import GenerationConfig

    ends = [tokenizer.eos_token_id]
    try:
        more = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        more = None
    ends += more if isinstance(more, list) else [more]
    return list(dict.fromkeys(id for id in ends if id is not None))


class LocalPolicy:
    """One episode's conversation with a model. Goes on from any conversation, which it then reads anew as a whole."""

    def __init__(self, spec: PolicySpec, tokenizer: Any, batcher: Answers) -> None:
        self._spec, self._tokenizer, self._batcher = spec, tokenizer, batcher
        self._chat = Chat(tokenizer, spec.limits.message_characters)
        self._ids: list[int] = []
        self._seen = 0
        self._said: Message = {}
        self._last = Sampled((), (), False)
        self._used = 0

    @property
    def name(self) -> str:
        """With the model's."""
        return self._spec.label

    def spent(self, usages: Sequence[Usage]) -> None:
        """What an episode that is taken up has used: its allowance is one for all processes."""
        self._used += sum(usage.prompt_tokens + usage.completion_tokens for usage in usages)

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        """The model's next message, with its tokens."""
        new = self._new(messages)
        follows = new is not None
        prompt = self._chat.whole(messages, tools) if new is None else new
        given = [*self._ids, *prompt] if follows else prompt
        if stopped := self._full(len(given)):
            return stopped
        found = self._batcher.generate(given)
        if isinstance(found, EngineFailed):
            return Stopped("infrastructure", found.reason)
        turn = self._turn(found, given, messages)
        usage = Usage(len(given), len(found.ids), 0.0)
        self.spent([usage])
        tokens = Tokens(tuple(prompt), found.ids, found.logprobs, follows)
        self._ids, self._last = [*given, *found.ids], found
        self._seen, self._said = len(messages) + 1, turn.to_message()
        return replace(turn, tokens=tokens, usage=usage)

    def _new(self, messages: Sequence[Message]) -> list[int] | None:
        """The ids of what is new since the model's last message; None where all is to be read anew."""
        if not self._seen or len(messages) < self._seen or messages[self._seen - 1] != self._said:
            return None
        end = self._last.ids[-1] if self._last.ended else None
        return self._chat.following(self._said, messages[self._seen :], end)

    def _full(self, length: int) -> Stopped | None:
        limits = self._spec.limits
        window = min(filter(None, (self._batcher.window, limits.context_tokens)))
        least = min(LEAST_ROOM, self._spec.sampling.max_new_tokens)
        if length + least > window:
            return Stopped("context", f"{length} tokens leave no room in a context of {window}")
        if limits.max_tokens and self._used >= limits.max_tokens:
            return Stopped(
                "cost", f"{self._used} tokens are used, {limits.max_tokens} were allowed"
            )
        return None

    def _turn(self, found: Sampled, prompt: Sequence[int], messages: Sequence[Message]) -> Turn:
        if not found.ended:
            return Turn(self._tokenizer.decode(list(found.ids)), truncated=True)
        first = 1 + sum(len(m.get("tool_calls", ())) for m in messages)
        content, calls = read_message(self._tokenizer, found.ids[:-1], prompt, first)
        return Turn(content, calls)
