"""One body of frozen weights that actor, critic and behaviour share: each has adapters of its own (LoRA, through peft).

An 8B model in bfloat16 is 16 GB, its adapters some hundred megabytes. So a critic that is a second adapter and a linear
score costs next to nothing beside one that is a second body, and its loss moves no weight of the actor's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ACTOR, CRITIC, BEHAVIOUR = "default", "critic", "behaviour"
"""Adapters by name. The actor's is the one that peft takes for granted."""


@dataclass(frozen=True)
class Lora:
    """Of adapters. rank: of their two factors. alpha: what they add is scaled by alpha / rank. dropout: of their input
    in updates; above 0 it moves PPO's importance ratio away from 1 before anything was learnt. targets: the linear
    layers that get one, by the end of their names."""

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: tuple[str, ...] = PROJECTIONS


class NoAdapter(Exception):
    """Adapters cannot be made: why, and what to do."""


class Shared:
    """A model with an adapter for each role. Weights of the model stay as they are; adapters are float32."""

    def __init__(self, model: Any, lora: Lora, seed: int) -> None:
        """Raises `NoAdapter` where no layer has a name that ends with one of the targets."""
        self._peft: Any = import_module("peft")
        self._lora, self._seed = lora, seed
        config = self._config()
        with torch.random.fork_rng(devices=_devices(model)):
            torch.manual_seed(seed)
            try:
                self.whole = self._peft.get_peft_model(model, config, adapter_name=ACTOR)
            except ValueError as error:
                raise NoAdapter(
                    f"no layer can have an adapter: {str(error).partition(chr(10))[0][:300]}; name layers of the model "
                    "in [model.lora] targets"
                ) from error
        self.model = model
        self._layers = [m for m in model.modules() if hasattr(m, "lora_A")]
        self._active = ""
        self.use(ACTOR)

    def _config(self) -> Any:
        lora = self._lora
        return self._peft.LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=list(lora.targets),
            bias="none",
            task_type="CAUSAL_LM",
        )

    def add(self, name: str) -> None:
        """A further adapter, if there is none of that name yet; it changes nothing before it is trained."""
        if name in self.whole.peft_config:
            return
        with torch.random.fork_rng(devices=_devices(self.model)):
            torch.manual_seed(self._seed)
            self.whole.add_adapter(name, self._config())
        self._active = ""
        self.use(ACTOR)

    def use(self, name: str) -> None:
        """Have what the model computes next go through an adapter."""
        if name != self._active:
            for layer in self._layers:
                layer.set_adapter(name)
            self._active = name

    def weights(self, name: str) -> list[torch.nn.Parameter]:
        """An adapter's parameters."""
        return [p for n, p in self.model.named_parameters() if f".{name}." in n and "lora_" in n]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """An adapter in peft's names."""
        found: dict[str, Tensor] = self._peft.get_peft_model_state_dict(
            self.whole, adapter_name=name, save_embedding_layers=False
        )
        return found

    def set(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Have an adapter be what `tensors` gave. Raises RuntimeError where it is of another shape or lacks some."""
        own = self.tensors(name)
        odd = sorted(own.keys() ^ tensors.keys())
        odd += [n for n in own.keys() & tensors.keys() if own[n].shape != tensors[n].shape]
        if odd:
            raise RuntimeError(f"{len(odd)} tensors are of another adapter, such as {odd[0]}")
        self._peft.set_peft_model_state_dict(self.whole, dict(tensors), adapter_name=name)


class Adapted:
    """The shared body under one adapter, as the trainer knows models: ``model`` gives states, ``lm_head`` logits.

    Parameters are those of the adapter, and for a critic those of its score.
    """

    def __init__(self, shared: Shared, name: str, score: torch.nn.Linear | None = None) -> None:
        shared.add(name)
        self.shared, self.name = shared, name
        if score is not None:
            self.score = score
        self._score = score

    @property
    def config(self) -> Any:
        """The model's."""
        return self.shared.model.config

    @property
    def generation_config(self) -> Any:
        """The model's."""
        return self.shared.model.generation_config

    @property
    def device(self) -> torch.device:
        """Where it is."""
        device: torch.device = self.shared.model.device
        return device

    @property
    def lm_head(self) -> Any:
        """The layer that gives logits."""
        self.shared.use(self.name)
        return self.shared.model.lm_head

    def model(self, **given: Any) -> Any:
        """What the body says under this adapter."""
        self.shared.use(self.name)
        return self.shared.model.model(**given)

    def generate(self, **given: Any) -> Any:
        """See transformers."""
        self.shared.use(self.name)
        return self.shared.model.generate(**given)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Those that are trained."""
        yield from self.shared.weights(self.name)
        if self._score is not None:
            yield from self._score.parameters()

    def train(self) -> Adapted:
        """Dropout as the settings say, and layers recomputed on the way back."""
        self.shared.model.train()
        return self

    def eval(self) -> Adapted:
        """No dropout."""
        self.shared.model.eval()
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients."""
        for parameter in self.parameters():
            parameter.grad = None

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any) -> None:
        """See `ppo.batch.with_less_memory`."""
        enable: Any = getattr(self.shared.model, "activation_checkpointing_enable", None)
        if enable is not None:
            enable(activation_checkpointing_kwargs=gradient_checkpointing_kwargs)
        else:
            self.shared.model.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs=gradient_checkpointing_kwargs
            )

    def state_dict(self) -> dict[str, Tensor]:
        """The adapter, and the score."""
        return with_score(self.shared.tensors(self.name), self._score)

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Be what `state_dict` gave. Raises RuntimeError where shapes or names differ."""
        score = {n.removeprefix("score."): t for n, t in tensors.items() if n.startswith("score.")}
        self.shared.set(self.name, {n: t for n, t in tensors.items() if not n.startswith("score.")})
        if self._score is not None:
            self._score.load_state_dict(score)


class Score(torch.nn.Linear):
    """What a state is worth, in float32: (..., hidden) -> (..., 1). It begins as 0 everywhere."""

    def __init__(self, hidden: int, device: torch.device | str = "cpu") -> None:
        super().__init__(hidden, 1, device=device, dtype=torch.float32)
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, states: Tensor) -> Tensor:
        """States of any dtype."""
        return super().forward(states.float())


def with_score(adapter: Mapping[str, Tensor], score: torch.nn.Linear | None) -> dict[str, Tensor]:
    """The tensors of an adapter and of a score, where there is one, by names that tell them apart."""
    own = {} if score is None else score.state_dict()
    return {**adapter, **{f"score.{name}": tensor for name, tensor in own.items()}}


def _devices(model: Any) -> list[int]:
    """Whose random numbers a draw of the model's weights may use."""
    device = model.device
    return [device.index or 0] if device.type == "cuda" else []
