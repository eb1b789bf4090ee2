"""Which model is trained: one made from nothing, an untied Qwen3 of 1 to 30 million parameters, or a pretrained one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from trainer.policy.lora import Lora


@dataclass(frozen=True)
class Size:
    """Of a model. head: of an attention head; 64 or 128 for vLLM. window: ids of a conversation at most."""

    hidden: int = 128
    layers: int = 4
    heads: int = 2
    key_heads: int = 1
    head: int = 64
    inner: int = 384
    window: int = 4096


@dataclass(frozen=True)
class ModelSettings(Size):
    """A model made from nothing, of a size; or a pretrained one, of which only `window` and what follows is asked.

    checkpoint: a folder in the format of transformers. message: ids of one message of its at most. dtype: of its
    weights; those that are trained are float32. lora: its adapters; without them all of its weights are trained.
    """

    checkpoint: str = ""
    message: int = 1024
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    lora: Lora | None = None


def config_of(size: Size, vocabulary: int, end: int, pad: int) -> Any:
    """A transformers configuration. Embeddings are untied, as engines that reload weights mistake tied ones."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_heads,
        head_dim=size.head,
        max_position_embeddings=size.window,
        tie_word_embeddings=False,
        attention_dropout=0.0,
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=None,
        dtype="float32",
    )


def actor_of(config: Any, seed: int) -> Any:
    """A model with weights drawn from a seed; draws of others are not disturbed."""
    from transformers import Qwen3ForCausalLM

    make: Any = Qwen3ForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make._from_config(config, attn_implementation="sdpa")
    return model.eval()


def critic_of(actor: Any) -> Any:
    """A critic with the actor's body and a score of zero everywhere, so that it begins by promising nothing."""
    from copy import deepcopy

    from transformers import AutoModelForTokenClassification

    make: Any = AutoModelForTokenClassification
    config = deepcopy(actor.config)
    config.num_labels = 1
    config.classifier_dropout = 0.0
    with torch.random.fork_rng(devices=[]):
        model = make.from_config(config, attn_implementation="sdpa")
    model.model.load_state_dict(actor.model.state_dict())
    torch.nn.init.zeros_(model.score.weight)
    torch.nn.init.zeros_(model.score.bias)
    return model.eval()


def parameters_of(model: Any) -> int:
    """How many numbers a model has."""
    return sum(p.numel() for p in model.parameters())
