"""Models made from nothing: the small policy with its words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cuda_agent_backend.agent.policies.trained import weights
from cuda_agent_backend.agent.policies.trained.sampler import Sampler
from cuda_agent_backend.agent.policies.trained.speech import Speech
from trainer.policy.model import Size, actor_of, config_of, critic_of
from trainer.stages.learner import Unusable


class Small:
    """See `Kind`."""

    def __init__(self, size: Size) -> None:
        self._size, self.speech = size, Speech()

    def speaker(self, model: Any, temperature: float) -> Sampler:
        """See `Kind`."""
        return Sampler(model, self.speech, temperature)

    def models(self, seed: int, device: torch.device) -> tuple[Any, Any]:
        """See `Kind`."""
        ids = self.speech.words.ids
        config = config_of(self._size, len(ids), ids["<end>"], ids["<pad>"])
        actor = actor_of(config, seed).to(device)
        return actor, critic_of(actor).to(device)

    def copy(self, actor: Any) -> Any:
        """See `Kind`."""
        made = actor_of(actor.config, 0).to(actor.device)
        made.load_state_dict(actor.state_dict())
        return made

    def new_critic(self, actor: Any) -> Mapping[str, Tensor]:
        """See `Kind`."""
        found: Mapping[str, Tensor] = critic_of(actor).state_dict()
        return found

    def save(self, actor: Any, card: Mapping[str, Any], folder: Path) -> None:
        """See `Kind`."""
        weights.save(actor, self.speech, card, folder)

    def load(self, actor: Any, folder: Path) -> None:
        """See `Kind`."""
        found = weights.load(folder)
        if isinstance(found, weights.Unusable):
            raise Unusable(found.reason)
        if found.speech.words.words != self.speech.words.words:
            raise Unusable(f"the policy in {folder} has another tokenizer than this run")
        try:
            actor.load_state_dict(found.model.state_dict())
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            raise Unusable(
                f"the policy in {folder} is of another size than this run: {first}"
            ) from error
