"""A local model through transformers: one batch at a time, with the log-probabilities of what was drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cuda_agent_backend.agent.policies.engine import Sampled
from cuda_agent_backend.agent.policies.spec import Sampling

UNKNOWN_WINDOW = 32768
"""Ids that a model is given at most which does not say how many it takes."""


class TransformersEngine:
    """``model.generate`` with draws of our own, so that ids, log-probabilities and the seed are exactly what was used.

    The distribution is the model's with what its own generation settings add (such as a repetition penalty), at the
    wished temperature and top_p; at temperature 0 the likeliest id is taken, and log-probabilities are at 1.
    """

    def __init__(
        self, model: Any, ends: Sequence[int], sampling: Sampling, window: int = 0
    ) -> None:
        """window: ids of a conversation at most, where that is less than the model takes; 0: as many as it takes."""
        self.model, self.ends, self.sampling = model.eval(), tuple(ends), sampling
        self._most = window
        self._generator = torch.Generator(device=model.device)
        if sampling.seed is not None:
            self._generator.manual_seed(sampling.seed)

    @property
    def window(self) -> int:
        """See `Engine`."""
        config = self.model.config.get_text_config()
        own = int(getattr(config, "max_position_embeddings", None) or UNKNOWN_WINDOW)
        return min(own, self._most or own)

    @torch.no_grad()
    def generate(self, prompts: Sequence[Sequence[int]]) -> list[Sampled]:
        """See `Engine`. Prompts are padded on the left."""
        from transformers import GenerationConfig, LogitsProcessorList

        room = [min(self.sampling.max_new_tokens, self.window - len(p)) for p in prompts]
        if min(room) < 1:
            raise ValueError("a prompt fills the whole window")
        longest = max(map(len, prompts))
        ids = torch.full((len(prompts), longest), self.ends[0], dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(list(prompt))
            mask[row, longest - len(prompt) :] = 1
        own: dict[str, Any] = {"eos_token_id": list(self.ends), "pad_token_id": self.ends[0]}
        settings: Any = GenerationConfig.from_dict(
            {"do_sample": False, "num_beams": 1, "max_new_tokens": max(room), **own}
        )
        draws = _Draws(self._warpers(), self._chooser(), room, self.ends[0])
        self.model.generate(
            input_ids=ids.to(self.model.device),
            attention_mask=mask.to(self.model.device),
            logits_processor=LogitsProcessorList([draws]),
            generation_config=settings,
        )
        return [self._row(draws, row, most) for row, most in enumerate(room)]

    def _row(self, draws: _Draws, row: int, most: int) -> Sampled:
        ids = [int(step[row]) for step in draws.ids[:most]]
        ended = next((n + 1 for n, id in enumerate(ids) if id in self.ends), None)
        logprobs = [float(step[row]) for step in draws.logprobs[: ended or most]]
        return Sampled(tuple(ids[: ended or most]), tuple(logprobs), ended is not None)

    def _warpers(self) -> list[Any]:
        from transformers import TemperatureLogitsWarper, TopPLogitsWarper

        temperature, top_p = self._wished("temperature"), self._wished("top_p")
        warpers: list[Any] = []
        if temperature not in (0.0, 1.0):
            warpers.append(TemperatureLogitsWarper(temperature))
        if top_p < 1:
            warpers.append(TopPLogitsWarper(top_p))
        return warpers

    def _wished(self, name: str) -> float:
        value = getattr(self.sampling, name)
        if value is None:
            value = getattr(self.model.generation_config, name, None)
        return 1.0 if value is None else float(value)

    def _chooser(self) -> torch.Generator | None:
        return None if self._wished("temperature") == 0 else self._generator


class _Draws:
    """Draws an id for each row, leaves `generate` no other choice, and remembers ids and log-probabilities."""

    def __init__(
        self,
        warpers: Sequence[Any],
        generator: torch.Generator | None,
        room: Sequence[int],
        end: int,
    ) -> None:
        self.warpers, self.generator, self.room, self.end = warpers, generator, room, end
        self.ids: list[torch.Tensor] = []
        self.logprobs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """scores: (rows, vocabulary)."""
        given = scores.float()
        for warper in self.warpers:
            given = warper(input_ids, given)
        logprobs = torch.log_softmax(given, dim=-1)
        if self.generator is None:
            drawn = logprobs.argmax(dim=-1, keepdim=True)
        else:
            drawn = torch.multinomial(logprobs.exp(), 1, generator=self.generator)
        self.ids.append(drawn[:, 0].cpu())
        self.logprobs.append(logprobs.gather(1, drawn)[:, 0].cpu())
        full = torch.tensor([len(self.ids) >= most for most in self.room], device=drawn.device)
        drawn = torch.where(full[:, None], torch.full_like(drawn, self.end), drawn)
        return torch.full_like(scores, -torch.inf).scatter(1, drawn, 0.0)


def load(folder: str, ends: Sequence[int], sampling: Sampling) -> TransformersEngine:
    """A model by its name or folder, on the GPU if there is one; safetensors only. Raises what transformers does."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", use_safetensors=True)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    return TransformersEngine(model, ends, sampling)
