"""Sampling of many conversations side by side: what was read stays in the cache of keys and values, turn after turn.

Each conversation draws from random numbers of its own, so what it says hangs on no other. Prompts are read in pieces,
so that memory grows with the cache alone. A prompt with which several conversations begin is read once.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cuda_agent_backend.agent.policies.engine import Sampled
from cuda_agent_backend.agent.policies.trained.grammar import Grammar
from cuda_agent_backend.agent.policies.trained.speech import Speech

MOST_IDS = 160
"""Of one message: more than the longest that the grammar lets through."""
PIECE = 512
"""Ids of a prompt that are read at once."""


@dataclass(frozen=True)
class Request:
    """A conversation that wants its next message. key: which one it is. ids: all of it so far. seed: of the draws."""

    key: int
    ids: Sequence[int]
    seed: str


class Sampler:
    """A model that speaks. temperature: 0 takes the likeliest id, with log-probabilities at 1."""

    def __init__(
        self, model: Any, speech: Speech, temperature: float = 1.0, piece: int = PIECE
    ) -> None:
        self.model, self.speech = model, speech
        self.temperature, self.piece = temperature, piece
        self.cache_name = cache_name(model)

    @property
    def window(self) -> int:
        """Ids of a conversation at most."""
        return int(self.model.config.max_position_embeddings)

    def session(self) -> Session:
        """For conversations that begin."""
        return Session(self)

    def draw(self, logits: Tensor, grammar: Grammar, chance: random.Random) -> tuple[int, float]:
        """An id and its log-probability among those allowed. logits: (vocabulary,), on the processor."""
        allowed = grammar.allowed()
        given = logits[torch.tensor(allowed)].double()
        scale = self.temperature or 1.0
        logprobs = torch.log_softmax(given / scale, dim=0).tolist()
        if math.isnan(sum(logprobs)):
            raise ValueError("the model's probabilities are not numbers; its weights are broken")
        if not self.temperature:
            place = max(range(len(allowed)), key=logprobs.__getitem__)
            return allowed[place], logprobs[place]
        left = chance.random()
        place = 0
        for place, logprob in enumerate(logprobs):  # noqa: B007 (the last one where rounding leaves something)
            left -= math.exp(logprob)
            if left <= 0:
                break
        return allowed[place], logprobs[place]


class Session:
    """The conversations of one group. Those that are not asked for any more are forgotten."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._keys: list[int] = []
        self._read: dict[int, list[int]] = {}
        self._cache: Any = None
        self._valid = torch.zeros(0, 0, dtype=torch.bool)

    @torch.no_grad()
    def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        """The next message of each."""
        sampler = self._sampler
        sampler.model.eval()
        self._choose(requests)
        new = [list(r.ids[len(self._read[r.key]) :]) for r in requests]
        logits = self._feed(new) if self._valid.shape[1] else self._begin(new)
        grammars = [sampler.speech.grammar().feed(r.ids) for r in requests]
        chances = [random.Random(r.seed) for r in requests]
        ids: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        room = [min(MOST_IDS, sampler.window - len(r.ids)) for r in requests]
        while True:
            for n in self._open(ids, room):
                id, logprob = sampler.draw(logits[n], grammars[n], chances[n])
                grammars[n].feed([id])
                ids[n].append(id)
                logprobs[n].append(logprob)
            going = self._open(ids, room)
            if not going:
                break
            logits = self._feed([ids[n][-1:] if n in going else [] for n in range(len(ids))])
        end = sampler.speech.words.end
        return [
            Sampled(tuple(i), tuple(p), bool(i) and i[-1] == end)
            for i, p in zip(ids, logprobs, strict=True)
        ]

    def _open(self, ids: Sequence[Sequence[int]], room: Sequence[int]) -> list[int]:
        """Messages that go on."""
        end = self._sampler.speech.words.end
        return [
            n for n, said in enumerate(ids) if len(said) < room[n] and (not said or said[-1] != end)
        ]

    def _choose(self, requests: Sequence[Request]) -> None:
        """Have the cache hold what was read of these conversations, in their order; or nothing."""
        keys = [r.key for r in requests]
        known = all(
            r.key in self._read and list(r.ids[: len(self._read[r.key])]) == self._read[r.key]
            for r in requests
        )
        if not known or self._cache is None:
            from cuda_agent_backend.agent.policies.trained.cache import new_cache

            self._cache = new_cache(self._sampler.model.config)
            self._read = {key: [] for key in keys}
            self._valid = torch.zeros(len(keys), 0, dtype=torch.bool)
        elif keys != self._keys:
            places = [self._keys.index(key) for key in keys]
            self._cache.batch_select_indices(torch.tensor(places, device=self._device))
            self._valid = self._valid[places]
            self._read = {key: self._read[key] for key in keys}
        self._keys = keys

    @property
    def _device(self) -> torch.device:
        device: torch.device = self._sampler.model.device
        return device

    def _begin(self, new: Sequence[Sequence[int]]) -> Tensor:
        """As `_feed`, of conversations of which nothing was read: those that begin alike are read as one."""
        alike: dict[tuple[int, ...], int] = {}
        places = [alike.setdefault(tuple(some), len(alike)) for some in new]
        self._valid = self._valid[: len(alike)]
        logits = self._fed(list(alike))
        if len(alike) < len(new):
            self._cache.batch_select_indices(torch.tensor(places, device=self._device))
        self._valid = self._valid[places]
        self._note(new)
        return logits[places]

    def _feed(self, new: Sequence[Sequence[int]]) -> Tensor:
        """Read ids, and give the logits after the last of each: (conversations, vocabulary)."""
        logits = self._fed(new)
        self._note(new)
        return logits

    def _note(self, new: Sequence[Sequence[int]]) -> None:
        for key, some in zip(self._keys, new, strict=True):
            self._read[key] += some

    def _fed(self, new: Sequence[Sequence[int]]) -> Tensor:
        width = max(1, *map(len, new))
        ids = torch.zeros(len(new), width, dtype=torch.long)
        valid = torch.zeros(len(new), width, dtype=torch.bool)
        for n, some in enumerate(new):
            if some:
                ids[n, width - len(some) :] = torch.tensor(list(some))
                valid[n, width - len(some) :] = True
        before = self._valid.sum(dim=1, keepdim=True)
        positions = (before + valid.cumsum(dim=1) - 1).clamp(min=0)
        hidden = ids
        for start in range(0, width, self._sampler.piece):
            part = slice(start, start + self._sampler.piece)
            hidden = self._read_piece(ids[:, part], valid[:, part], positions[:, part])
        logits: Tensor = self._sampler.model.lm_head(hidden[:, -1])
        return logits.float().cpu()  # once for all: each conversation draws for itself

    def _read_piece(self, ids: Tensor, valid: Tensor, positions: Tensor) -> Tensor:
        self._valid = torch.cat([self._valid, valid], dim=1)
        mask = piece_mask(self._valid, ids.shape[1]).to(self._device)
        more: Mapping[str, Any] = {self._sampler.cache_name: self._cache}
        out = self._sampler.model.model(
            input_ids=ids.to(self._device),
            attention_mask=mask,
            position_ids=positions.to(self._device),
            use_cache=True,
            **more,
        )
        self._cache = out[self._sampler.cache_name]
        hidden: Tensor = out.last_hidden_state
        return hidden


def cache_name(model: Any) -> str:
    """By which name a model's body takes its cache, and gives it."""
    names = inspect.signature(model.model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"


def piece_mask(valid: Tensor, width: int) -> Tensor:
    """What each of the last ``width`` places may look at: valid ones up to itself, and itself. (rows, 1, width, places)

    Itself always, since a place that may look at nothing has no defined value, and one that is not a number would spoil
    those that it is masked from. valid: (rows, places).
    """
    places = valid.shape[1]
    own = torch.arange(places - width, places)[:, None]
    other = torch.arange(places)[None, :]
    seen = (other <= own)[None] & valid[:, None, :]
    return (seen | (other == own)[None])[:, None]
