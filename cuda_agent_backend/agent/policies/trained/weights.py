"""The small policy's weights in a folder: a transformers configuration, safetensors, the tokenizer, and what ties them.

config.json  model.safetensors  tokenizer.json  policy.json
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent_backend.agent.policies.trained.place import HOW, why_missing
from cuda_agent_backend.agent.policies.trained.speech import Speech

FORMAT = 1
CARD, TOKENIZER = "policy.json", "tokenizer.json"
TEMPERATURE = 0.0
"""At which a policy speaks whose card names no temperature: that of its evaluation, which takes the likeliest word."""


@dataclass(frozen=True)
class Loaded:
    """A model that speaks, and what its card says of it."""

    model: Any
    speech: Speech
    card: Mapping[str, Any]

    @property
    def temperature(self) -> float:
        """At which it speaks where nobody asks for another one."""
        return float(self.card.get("temperature", TEMPERATURE))


@dataclass(frozen=True)
class Unusable:
    """Why a folder's weights cannot be used, and what to do."""

    reason: str


def load(folder: Path) -> Loaded | Unusable:
    """The model of a folder, on the processor, in float32."""
    if why := why_missing(str(folder)):
        return Unusable(why)
    try:
        card = json.loads((folder / CARD).read_text())
        text = (folder / TOKENIZER).read_bytes()
        vocabulary = json.loads(text)["model"]["vocab"]
    except (OSError, ValueError, KeyError) as error:
        return Unusable(f"{folder} is not whole: {type(error).__name__}: {error}; {HOW}")
    if card.get("format") != FORMAT:
        return Unusable(f"{folder / CARD} is of format {card.get('format')!r}, not {FORMAT}")
    if card.get("tokenizer_sha256") != hashlib.sha256(text).hexdigest():
        return Unusable(
            f"{folder / TOKENIZER} is not the tokenizer that these weights were trained with; copy the folder anew"
        )
    if not _is_temperature(card.get("temperature", TEMPERATURE)):
        return Unusable(
            f"{folder / CARD}: temperature {card['temperature']!r} is no number from 0 on; write {TEMPERATURE}"
        )
    return _model(folder, sorted(vocabulary, key=vocabulary.__getitem__), card)


def _is_temperature(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _model(folder: Path, vocabulary: list[str], card: Mapping[str, Any]) -> Loaded | Unusable:
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, attn_implementation="sdpa"
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        first = str(error).strip().partition("\n")[0][:300]
        return Unusable(f"the weights in {folder} cannot be read: {first}; copy the folder anew")
    if model.config.vocab_size != len(vocabulary):
        return Unusable(
            f"{folder}: the model has {model.config.vocab_size} words and its tokenizer {len(vocabulary)}"
        )
    return Loaded(model, Speech(vocabulary), card)


def save(model: Any, speech: Speech, card: Mapping[str, Any], folder: Path) -> None:
    """Write a folder that `load` reads. Raises OSError where the disk is full. card: with ``temperature``, where it
    shall speak at another one than `TEMPERATURE`."""
    from cuda_agent_backend.agent.policies.trained.vocabulary import tokenizer_of

    folder.mkdir(parents=True, exist_ok=True)
    text = tokenizer_of(speech.words.words).to_str(pretty=False)
    (folder / TOKENIZER).write_text(text)
    model.save_pretrained(folder)
    digest = hashlib.sha256(text.encode()).hexdigest()
    made = {"temperature": TEMPERATURE, **card, "format": FORMAT, "tokenizer_sha256": digest}
    (folder / CARD).write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
