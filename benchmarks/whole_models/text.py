"""Language models and speech, from configurations of `transformers`: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.whole_models.subject import Called, Made, Subject, of_values, of_words

NO_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def _words(many: int, batch: int, tokens: int) -> Tensor:
    return torch.randint(many, (batch, tokens))


def _language(model: nn.Module, words: int, batch: int, tokens: int, **fixed: Any) -> Made:
    """A model from words to logits of words."""
    called = Called(model, ("input_ids",), "logits", **fixed)
    target = _words(words, batch, tokens)
    return Made(called, (_words(words, batch, tokens),), target, of_words)


def bert_base(toy: bool) -> Made:
    """BERT base with its head for masked words."""
    from transformers import BertConfig, BertForMaskedLM

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    small |= {"intermediate_size": 64, "vocab_size": 99, "max_position_embeddings": 16}
    config = BertConfig(**(small if toy else {}), **dict.fromkeys(NO_DROPOUT, 0.0))
    batch, tokens = (2, 8) if toy else (32, 384)
    return _language(BertForMaskedLM(config), config.vocab_size, batch, tokens)


def modernbert_base(toy: bool) -> Made:
    """ModernBERT base with its head for masked words; most layers see a window only."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    small = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    small |= {"intermediate_size": 48, "vocab_size": 99, "local_attention": 8}
    ids = dict.fromkeys(
        ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1
    )
    config = ModernBertConfig(**({**small, **ids} if toy else {}))
    batch, tokens = (2, 16) if toy else (16, 1024)
    return _language(ModernBertForMaskedLM(config), config.vocab_size, batch, tokens)


def gpt2_medium(toy: bool) -> Made:
    """GPT-2 medium over its whole context."""
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 99, "n_positions": 16}
    sizes = small if toy else {"n_embd": 1024, "n_layer": 24, "n_head": 16}
    config = GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    batch, tokens = (2, 8) if toy else (4, 1024)
    return _language(GPT2LMHeadModel(config), config.vocab_size, batch, tokens, use_cache=False)


def _llama_config(toy: bool) -> Any:
    """Llama 3's of eight billion parameters, cut to four layers."""
    from transformers import LlamaConfig

    small = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    small |= {"num_key_value_heads": 2, "vocab_size": 99, "num_hidden_layers": 2}
    real = {"hidden_size": 4096, "intermediate_size": 14_336, "num_attention_heads": 32}
    real |= {"num_key_value_heads": 8, "vocab_size": 128_256, "num_hidden_layers": 4}
    theta = {"rope_type": "default", "rope_theta": 500_000.0}
    return LlamaConfig(**(small if toy else real), rope_parameters=theta)


def llama_prefill(toy: bool) -> Made:
    """Four layers of Llama 8B over a prompt."""
    from transformers import LlamaForCausalLM

    config = _llama_config(toy)
    tokens = 8 if toy else 2048
    return _language(LlamaForCausalLM(config), config.vocab_size, 1, tokens, use_cache=False)


class Decoding(nn.Module):
    """A causal model that decodes one token after a static cache that is filled with drawn numbers.

    Each call writes the same place of the cache, so that all calls do the same.
    """

    def __init__(self, model: nn.Module, batch: int, length: int, filled: int) -> None:
        super().__init__()
        from transformers import StaticCache

        config: Any = model.config
        self.model, self.filled = model, filled
        self.cache = StaticCache(config, max_cache_len=length)
        width = config.hidden_size // config.num_attention_heads
        shape = (batch, config.num_key_value_heads, length, width)
        for layer in self.cache.layers:
            layer.lazy_initialization(torch.randn(shape), torch.randn(shape))
            layer.keys.normal_()
            layer.values.normal_()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Decoding:
        """The cache is no module, and goes where the model goes."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for layer in self.cache.layers:
            for name in ("keys", "values", "cumulative_length"):
                moved = fn(getattr(layer, name))
                torch._dynamo.mark_static_address(moved)
                setattr(layer, name, moved)
        return self

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (batch, 1), int64; returns logits (batch, 1, words)."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.filled)
        out: Tensor = self.model(tokens, past_key_values=self.cache, use_cache=True).logits
        return out


def llama_decode(toy: bool) -> Made:
    """Four layers of Llama 8B, one token of each of eight sequences after 4,000 others."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(_llama_config(toy))
    batch, length, filled = (2, 16, 11) if toy else (8, 4096, 4000)
    tokens = _words(model.config.vocab_size, batch, 1)
    return Made(Decoding(model, batch, length, filled), (tokens,), tokens, of_words, samples=False)


def mixture(toy: bool) -> Made:
    """OLMoE, 64 experts of which eight see a token, cut to two layers."""
    from transformers import OlmoeConfig, OlmoeForCausalLM

    small = {"hidden_size": 32, "intermediate_size": 24, "num_attention_heads": 2}
    small |= {"num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2}
    small |= {"vocab_size": 99, "pad_token_id": 1, "eos_token_id": 1}
    sizes = small if toy else {"intermediate_size": 1024}
    config = OlmoeConfig(**sizes, num_hidden_layers=2)
    batch, tokens = (2, 8) if toy else (4, 1024)
    return _language(OlmoeForCausalLM(config), config.vocab_size, batch, tokens, use_cache=False)


def t5_base(toy: bool) -> Made:
    """T5 base, encoder and decoder."""
    from transformers import T5Config, T5ForConditionalGeneration

    small = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 2}
    small |= {"vocab_size": 99}
    real = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
    config = T5Config(**(small if toy else real), dropout_rate=0.0, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    called = Called(model, ("input_ids", "decoder_input_ids"), "logits", use_cache=False)
    batch, read, written = (2, 8, 5) if toy else (16, 512, 128)
    inputs = (_words(config.vocab_size, batch, read), _words(config.vocab_size, batch, written))
    return Made(called, inputs, _words(config.vocab_size, batch, written), of_words)


def mamba2(toy: bool) -> Made:
    """A third of Mamba-2 370M, its scan in chunks written out in torch."""
    from transformers import Mamba2Config, Mamba2ForCausalLM

    small = {"hidden_size": 16, "num_heads": 4, "head_dim": 8, "state_size": 8, "vocab_size": 99}
    small |= {"n_groups": 1, "chunk_size": 4, "num_hidden_layers": 2}
    real = {"hidden_size": 1024, "num_heads": 32, "head_dim": 64, "state_size": 128}
    real |= {"n_groups": 1, "chunk_size": 64, "num_hidden_layers": 16, "vocab_size": 50_288}
    real |= {"tie_word_embeddings": True}
    config = Mamba2Config(**(small if toy else real))
    tokens = 8 if toy else 1024
    return _language(Mamba2ForCausalLM(config), config.vocab_size, 1, tokens, use_cache=False)


def whisper_encoder(toy: bool) -> Made:
    """The encoder of Whisper large on half a minute of sound."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    small = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2}
    small |= {"encoder_ffn_dim": 48, "num_mel_bins": 8, "max_source_positions": 12}
    real = {"d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20}
    real |= {"encoder_ffn_dim": 5120, "num_mel_bins": 128}
    config = WhisperConfig(**(small if toy else real))
    batch, places = 2, config.max_source_positions
    sound = torch.randn(batch, config.num_mel_bins, 2 * places)
    called = Called(WhisperEncoder(config), ("input_features",), "last_hidden_state")
    return Made(called, (sound,), torch.randn(batch, places, config.d_model), of_values)


SUBJECTS = (
    Subject("bert_base", "BERT base, 32 x 384 tokens", bert_base),
    Subject("modernbert_base", "ModernBERT base, 16 x 1,024 tokens", modernbert_base),
    Subject("gpt2_medium", "GPT-2 medium, 4 x 1,024 tokens", gpt2_medium),
    Subject("llama_prefill", "Llama 8B, four layers, 2,048 tokens", llama_prefill),
    Subject("llama_decode", "the same, 8 x 1 token after 4,000", llama_decode, ("inference",)),
    Subject("mixture", "OLMoE, two layers of 64 experts, 4 x 1,024 tokens", mixture),
    Subject("t5_base", "T5 base, 16 x 512 to 16 x 128 tokens", t5_base),
    Subject("mamba2", "Mamba-2, 16 layers of 1,024, 1,024 tokens", mamba2),
    Subject("whisper_encoder", "Whisper large's encoder, 2 x 30 s", whisper_encoder),
)
