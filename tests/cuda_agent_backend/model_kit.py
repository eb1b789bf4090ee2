"""A language model small enough to build in a test: it has all parts of a real one, and says nonsense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MARKS = ["<|end|>", "<|im|>"]
TEMPLATE = """{%- if tools %}<|im|>system
Tools:{% for tool in tools %}
{{ tool | tojson }}{% endfor %}<|end|>
{% endif %}{%- for m in messages %}<|im|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>
{% endfor %}{% if add_generation_prompt %}<|im|>assistant
{% endif %}"""
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
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder
