"""A pretrained model in the standard format, small enough for a test: it says one of a few messages by chance."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.chat import call, template
from toy_world import TASK, TEAMS, ToyTools, ToyWorld

from cuda_agent_backend.agent.protocol import Message, ToolCall, tool_message
from cuda_agent_backend.agent.tools.toolbox import tool_schemas

END, BEGIN = "<|end|>", "<|begin|>"
TEMPLATE = template("{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}", BEGIN)
STRENGTH = 1.5
"""How much likelier its messages are than other ids: about ten thousand times."""


def schedule(team: int) -> list[dict[str, Any]]:
    return [{"sketch": "row", "team": team, "vector": 4}]


def candidate(team: int) -> str:
    return f"{zlib.crc32(json.dumps(schedule(team), sort_keys=True).encode()):012x}"


SKETCHES = [call("sketch", schedule=schedule(team)) for team in TEAMS]
SUBMITS = [call("submit", candidate=candidate(team)) for team in TEAMS]
SAYS = [call("look"), *(f"{a}\n{b}" for a, b in zip(SKETCHES, SUBMITS, strict=True)), *SKETCHES]
"""What it says: each message is one id of its vocabulary."""


class Tools(ToyTools):
    """As the real tools, it answers to calls that make no sense."""

    def run(self, calls: Sequence[ToolCall]) -> list[Message]:
        found = []
        for one in calls:
            try:
                found.append(tool_message(one, self._one(one)))
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                found.append(tool_message(one, {"ok": False, "error": f"no candidate {error}"}))
        return found


@dataclass
class World(ToyWorld):
    """The toy world for a model that may say anything."""

    def tools(self, task: str, seed: int) -> Tools:
        return Tools(int(task))


def make(settings: Any) -> World:
    """For configurations: ``factory = "tiny_llm:make"``."""
    return World(side_by_side=settings.side_by_side)


def tokenizer(texts: Sequence[str] = ()) -> Any:
    """A tokenizer of bytes, with what is frequent in a few lines as one id."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=[END, BEGIN], initial_alphabet=alphabet, show_progress=False
    )
    lines = [*(json.dumps(tool) for tool in tool_schemas(False)), TASK, *SAYS, *texts] * 4
    inner.train_from_iterator(lines, trainer)
    made: Any = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=END, pad_token=END, additional_special_tokens=[BEGIN]
    )
    made.chat_template = TEMPLATE
    made.add_tokens(SAYS)
    return made


def build(folder: Path, hidden: int = 64, tied: bool = False) -> Path:
    """Write ``config.json``, ``model.safetensors`` and the tokenizer's files.

    A Qwen3 with random weights, but for embeddings and head: behind the template's last id one of its messages is
    likely, behind any other id the end. tied: the head is the embeddings, and it says nonsense.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    words = tokenizer()
    words.save_pretrained(folder)
    start = words("assistant\n")["input_ids"][-1]
    said = words.convert_tokens_to_ids(SAYS)
    config = Qwen3Config(
        vocab_size=len(words),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=tied,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.eos_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model: Any = Qwen3ForCausalLM(config)
        embedded = 0.1 * torch.randn(len(words), hidden)
        embedded[:, :2] = torch.tensor([1.0, 0.0])
        embedded[start, :2] = torch.tensor([0.0, 1.0])
        head = 0.02 * torch.randn(len(words), hidden)
        head[:, :2] = 0.0
        head[words.eos_token_id, 0] = STRENGTH
        head[said, 1] = STRENGTH
        if not tied:
            model.model.embed_tokens.weight.copy_(embedded)
            model.lm_head.weight.copy_(head)
    model.save_pretrained(folder)
    return folder
