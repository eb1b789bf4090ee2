"""What learns, and what must be known of it: how its models are made, kept, read and heard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from cuda_agent_backend.agent.policies.trained.speech import Speech
from trainer.rollout.chat import ChatVoice, Speaker


class Unusable(Exception):
    """A checkpoint cannot be read: which, why, and what to do."""


class Kind(Protocol):
    """A kind of model: one made from nothing (`small`), or one of a pretrained checkpoint (`pretrained`)."""

    @property
    def speech(self) -> Speech | ChatVoice:
        """How it speaks."""
        ...

    def speaker(self, model: Any, temperature: float) -> Speaker:
        """A model that plays episodes."""
        ...

    def models(self, seed: int, device: torch.device) -> tuple[Any, Any]:
        """Actor and critic as they begin, on a device. Raises `Unusable`."""
        ...

    def copy(self, actor: Any) -> Any:
        """A model that says what the actor says now, and goes on saying it while the actor learns."""
        ...

    def new_critic(self, actor: Any) -> Mapping[str, Tensor]:
        """The tensors of a critic that begins as the actor and says zero."""
        ...

    def save(self, actor: Any, card: Mapping[str, Any], folder: Path) -> None:
        """Write the actor, such that `load` and a policy read it. Raises OSError where the disk is full."""
        ...

    def load(self, actor: Any, folder: Path) -> None:
        """Have the actor be as a folder has it. Raises `Unusable`."""
        ...


@dataclass
class Learner:
    """What learns: models, their optimizers, and which kind of model they are."""

    actor: Any
    critic: Any
    kind: Kind
    actor_optimizer: torch.optim.Optimizer
    critic_optimizer: torch.optim.Optimizer
