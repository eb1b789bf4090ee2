"""Models of a pretrained checkpoint: all of its weights are trained, or adapters on it.

With adapters a checkpoint of ours holds these, the critic's and its score, and no weight of the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainer.policy.lora import (
    ACTOR,
    BEHAVIOUR,
    CRITIC,
    Adapted,
    NoAdapter,
    Score,
    Shared,
    with_score,
)
from trainer.policy.model import ModelSettings, critic_of
from trainer.policy.standard import Broken, Pretrained, load, tensor_files
from trainer.rollout.chat import ChatSampler, ChatVoice
from trainer.stages.learner import Unusable

FORMAT = 1
CARD, ADAPTER = "training.json", "adapter_model.safetensors"


class FromCheckpoint:
    """See `Kind`."""

    def __init__(self, settings: ModelSettings, device: torch.device) -> None:
        """Raises `Unusable` where the checkpoint cannot be trained from."""
        found = load(Path(settings.checkpoint), settings.dtype, device)
        if isinstance(found, Broken):
            raise Unusable(found.reason)
        self._found: Pretrained = found
        self._settings = settings
        self.speech = ChatVoice(found.tokenizer, found.ends, settings.window, settings.message)

    def speaker(self, model: Any, temperature: float) -> ChatSampler:
        """See `Kind`."""
        return ChatSampler(model, self.speech, temperature)

    def models(self, seed: int, device: torch.device) -> tuple[Any, Any]:
        """See `Kind`."""
        actor, lora = self._found.model, self._settings.lora
        if lora is None:
            return actor, critic_of(actor).to(device)
        try:
            shared = Shared(actor, lora, seed)
        except NoAdapter as error:
            raise Unusable(f"the model in {self._settings.checkpoint}: {error}") from error
        score = Score(actor.config.get_text_config().hidden_size, device)
        return Adapted(shared, ACTOR), Adapted(shared, CRITIC, score)

    def copy(self, actor: Any) -> Any:
        """See `Kind`."""
        if not isinstance(actor, Adapted):
            return deepcopy(actor)
        made = Adapted(actor.shared, BEHAVIOUR)
        made.load_state_dict(actor.state_dict())
        return made

    def new_critic(self, actor: Any) -> Mapping[str, Tensor]:
        """See `Kind`."""
        if isinstance(actor, Adapted):
            return with_score(actor.state_dict(), Score(actor.config.get_text_config().hidden_size))
        found: Mapping[str, Tensor] = critic_of(actor).state_dict()
        return found

    def save(self, actor: Any, card: Mapping[str, Any], folder: Path) -> None:
        """See `Kind`. In the format of peft, or of transformers; with the tokenizer in either."""
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(actor, Adapted):
            config = deepcopy(actor.shared.whole.peft_config[ACTOR])
            config.base_model_name_or_path = str(Path(self._settings.checkpoint).resolve())
            config.inference_mode = True
            config.save_pretrained(str(folder))
            tensors = {n: t.detach().cpu().contiguous() for n, t in actor.state_dict().items()}
            save_file(tensors, folder / ADAPTER, metadata={"format": "pt"})
        else:
            actor.save_pretrained(folder)
        self._found.tokenizer.save_pretrained(folder)
        made = {**card, **self._ties(), "format": FORMAT}
        (folder / CARD).write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")

    def _ties(self) -> dict[str, str]:
        """What trained weights are worth nothing without."""
        tokenizer = {"tokenizer_sha256": self._found.tokenizer_sha256}
        if self._settings.lora is None:
            return tokenizer
        return {**tokenizer, "weights_sha256": self._found.weights_sha256}

    def load(self, actor: Any, folder: Path) -> None:
        """See `Kind`."""
        try:
            card = json.loads((folder / CARD).read_text())
        except (OSError, ValueError) as error:
            raise Unusable(f"{folder} is not whole: {type(error).__name__}: {error}") from error
        base = self._settings.checkpoint
        for name, value in self._ties().items():
            if card.get(name) != value:
                what = name.removesuffix("_sha256")
                raise Unusable(
                    f"{folder} was trained with another {what} than {base} has now; give [model] checkpoint the folder "
                    "that the run was begun with"
                )
        try:
            tensors: dict[str, Tensor] = {}
            for path in tensor_files(folder):
                tensors |= load_file(path)
            if not isinstance(actor, Adapted) and actor.config.tie_word_embeddings:
                tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
            actor.load_state_dict(tensors)
        except (OSError, KeyError, RuntimeError, SafetensorError) as error:
            first = str(error).partition("\n")[0]
            raise Unusable(f"the weights in {folder} cannot be read: {first}") from error
