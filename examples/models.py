"""Eight realistic networks, built from configurations alone: nothing is downloaded.

Every function returns ``(model, inputs)``: a float32 CPU module in evaluation mode, with fixed random weights, and the
tuple of tensors to call it with. ``model.train()`` works for all of them. Dropout is zero throughout, so that a
compiled model can be compared with eager value by value in training as well. The leading dimension of every input is
the batch, the one to mark as dynamic. Move both to a GPU with ``.to("cuda")``.

Sizes are those of small published variants (BERT-mini to ViT-small), chosen so that one forward pass takes some 10 to
100 ms on two CPU cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cuda_agent_backend.cli.demo_models import (
    SEED,
    Example,
    groupnorm_resnet_stage,
    mamba_block,
    randn,
)


class _Hidden(nn.Module):
    """Calls a transformer layer and returns its hidden states only, whatever else the version at hand returns."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor) -> Tensor:
        out: Any = self.layer(hidden)
        return out[0] if isinstance(out, tuple) else out


def bert_layer() -> Example:
    """One BERT encoder layer: hidden 256, 4 heads, batch 8, 128 tokens; attention written out as matmul and softmax."""
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    torch.manual_seed(SEED)
    config = BertConfig(
        hidden_size=256,
        num_attention_heads=4,
        intermediate_size=1024,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    return _Hidden(BertLayer(config)).eval(), (randn(8, 128, 256),)


def gpt2_block() -> Example:
    """One GPT-2 block: width 384, 6 heads, batch 4, 256 tokens, tanh GELU."""
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    torch.manual_seed(SEED)
    config = GPT2Config(
        n_embd=384,
        n_head=6,
        n_positions=256,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="sdpa",
    )
    return _Hidden(GPT2Block(config, layer_idx=0)).eval(), (randn(4, 256, 384),)


class _LlamaBlock(nn.Module):
    """A Llama decoder layer together with the rotary embedding that its model would hand it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

        self.rotary = LlamaRotaryEmbedding(config)
        self.layer = LlamaDecoderLayer(config, layer_idx=0)

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden``: (batch, tokens, width) float32; returns the same shape."""
        positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        out: Any = self.layer(hidden, position_embeddings=self.rotary(hidden, positions))
        return out[0] if isinstance(out, tuple) else out


def llama_block() -> Example:
    """One Llama block: width 384, 6 heads over 2 key-value heads, SwiGLU of 1024, batch 4, 256 tokens."""
    from transformers import LlamaConfig

    torch.manual_seed(SEED)
    config = LlamaConfig(
        hidden_size=384,
        intermediate_size=1024,
        num_attention_heads=6,
        num_key_value_heads=2,
        num_hidden_layers=1,
        max_position_embeddings=256,
        attn_implementation="sdpa",
    )
    return _LlamaBlock(config).eval(), (randn(4, 256, 384),)


class _VisionTokens(nn.Module):
    """Returns the last hidden states of a vision transformer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        out: Tensor = self.model(pixels).last_hidden_state
        return out


def vit() -> Example:
    """A ViT of four layers: width 192, 3 heads (ViT-tiny's), 224 x 224 pixels in patches of 16, batch 4."""
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(SEED)
    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=3,
        intermediate_size=768,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    model = ViTModel(config, add_pooling_layer=False)
    return _VisionTokens(model).eval(), (randn(4, 3, 224, 224),)


def convnext_stage() -> Example:
    """The first ConvNeXt-tiny stage after its stem: three layers of 96 channels at 56 x 56, batch 2."""
    from transformers import ConvNextConfig
    from transformers.models.convnext.modeling_convnext import ConvNextStage

    torch.manual_seed(SEED)
    config = ConvNextConfig(drop_path_rate=0.0)
    stage = ConvNextStage(config, in_channels=96, out_channels=96, stride=1, depth=3)
    return _Hidden(stage).eval(), (randn(2, 96, 56, 56),)


class _InvertedResidual(nn.Module):
    """MobileNet block: pointwise expansion, depthwise 3 x 3, pointwise projection, batch norm and hard swish."""

    def __init__(self, channels: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        self.expand = nn.Conv2d(channels, wide, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(wide)
        self.depthwise = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.norm2 = nn.BatchNorm2d(wide)
        self.project = nn.Conv2d(wide, channels, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(channels)
        self.act = nn.Hardswish()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm1(self.expand(x)))
        y = self.act(self.norm2(self.depthwise(y)))
        out: Tensor = x + self.norm3(self.project(y))
        return out


def mobilenet_stage() -> Example:
    """A depthwise MobileNet stage: three inverted residuals of 40 channels, expansion 6, at 56 x 56, batch 2."""
    torch.manual_seed(SEED)
    stage = nn.Sequential(*(_InvertedResidual(40, 6) for _ in range(3)))
    return stage.eval(), (randn(2, 40, 56, 56),)


MODELS: dict[str, Callable[[], Example]] = {
    f.__name__: f
    for f in (
        bert_layer,
        gpt2_block,
        llama_block,
        vit,
        convnext_stage,
        groupnorm_resnet_stage,
        mobilenet_stage,
        mamba_block,
    )
}
