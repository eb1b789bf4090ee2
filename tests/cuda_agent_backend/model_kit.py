"""A language model small enough to build in a test: it has all parts of a real one, and says nonsense."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit.chat import template

MARKS = ["<|end|>", "<|im|>"]
TEMPLATE = template("Tools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}")
READING: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im|>assistant\n",
    "fields": {
        "content": {"close": "<|end|>"},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
    },
}
"""How `transformers` reads this model's messages."""


def build(folder: Path, template: str | None = TEMPLATE, window: int = 4096) -> Path:
    """Write a model with random weights, its tokenizer and its settings."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=MARKS, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(['{"name": "sketch", "arguments": {"schedule": []}}'] * 9, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=MARKS[0], pad_token=MARKS[0], additional_special_tokens=MARKS[1:]
    )  # fmt: skip
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=window,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    return folder


def build_speaking(folder: Path, messages: Sequence[str]) -> Path:
    """A model that says one of ``messages``, each as likely, whatever it is asked.

    Each message is one id of its vocabulary. Attention and the layers behind it add nothing, so that the next id hangs
    on the last one alone: after the template's last id one of the messages, and then the end.
    """
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    build(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    start = tokenizer("assistant\n")["input_ids"][-1]
    tokenizer.add_tokens(list(messages))
    tokenizer.response_template = READING
    tokenizer.save_pretrained(folder)
    said = tokenizer.convert_tokens_to_ids(list(messages))
    config = Qwen2Config.from_pretrained(folder)
    config.vocab_size, config.hidden_size, config.head_dim = len(tokenizer), 512, 64
    config.num_attention_heads = config.num_key_value_heads = (
        8  # servers take heads for equal parts of hidden_size
    )
    config.num_hidden_layers, config.max_position_embeddings = 1, 1 << 16
    config.layer_types = config.layer_types[:1]
    assert len(tokenizer) <= config.hidden_size
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(config.vocab_size, config.hidden_size))
        likely = torch.zeros(config.vocab_size, config.hidden_size)
        likely[tokenizer.eos_token_id, :] = 50.0
        likely[:, start] = 0.0
        likely[said, start] = 50.0
        model.lm_head.weight.copy_(likely)
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    return folder
