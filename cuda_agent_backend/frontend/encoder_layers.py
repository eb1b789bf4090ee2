"""Layers of torch's transformer encoder in a graph: decomposed, so that they are compiled.

In inference `nn.TransformerEncoderLayer` calls one operator for all of itself, which Inductor leaves to the library:
its products, softmax, norms and sums run one after another, nothing is fused, and no part of it is a region. Here it
is what the module does otherwise.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

ENCODER_LAYER = torch._transformer_encoder_layer_fwd
SCHEMA = torch.ops.aten._transformer_encoder_layer_fwd.default._schema
QUERIES_AND_KEYS, KEYS, ALL = 0, 1, 2
"""What a mask's dimensions are, by its type: [queries, keys], [batch, keys] or [batch, heads, queries, keys]."""


def is_plain(given: dict[str, Any]) -> bool:
    """Whether a layer, nodes by the names of the operator's arguments, is of no nested tensor and has a known mask."""
    value = given["src"].meta.get("example_value")
    known = given["mask"] is None or given["mask_type"] in (QUERIES_AND_KEYS, KEYS, ALL)
    return isinstance(value, torch.Tensor) and not value.is_nested and value.dim() == 3 and known


def write_out(
    *,
    src: Any,
    embed_dim: int,
    num_heads: int,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    mask: Any,
    mask_type: int | None,
    **weights: Any,
) -> Any:
    """The layer as its operators. src and the result: [batch, tokens, embed_dim]. Tensors are proxies."""

    def norm(x: Any, number: int) -> Any:
        scale, bias = weights[f"norm_weight_{number}"], weights[f"norm_bias_{number}"]
        return F.layer_norm(x, (embed_dim,), scale, bias, eps)

    def attend(x: Any) -> Any:
        every = F.linear(x, weights["qkv_weight"], weights["qkv_bias"])
        q, k, v = (_heads(every, part, embed_dim, num_heads) for part in range(3))
        scale = 1 / math.sqrt(embed_dim // num_heads)
        joined = _attention(q, k, v, _hidden(mask, mask_type), scale).transpose(1, 2).flatten(2)
        return F.linear(joined, weights["proj_weight"], weights["proj_bias"])

    def feed(x: Any) -> Any:
        inner = F.linear(x, weights["ffn_weight_1"], weights["ffn_bias_1"])
        inner = F.gelu(inner) if use_gelu else F.relu(inner)
        return F.linear(inner, weights["ffn_weight_2"], weights["ffn_bias_2"])

    if norm_first:
        x = src + attend(norm(src, 1))
        return x + feed(norm(x, 2))
    x = norm(src + attend(src), 1)
    return norm(x + feed(x), 2)


def _heads(every: Any, part: int, size: int, heads: int) -> Any:
    """Queries, keys or values [batch, heads, tokens, size of a head] out of what one product made."""
    own = every.narrow(-1, part * size, size)
    return own.unflatten(-1, (heads, size // heads)).transpose(1, 2)


def _attention(query: Any, key: Any, value: Any, hidden: Any, scale: float) -> Any:
    """As the operator has it: queries are scaled, for half precision may not hold the scores before, and one that sees
    no key has NaN."""
    if hidden is None:
        return F.scaled_dot_product_attention(query, key, value)
    scores = torch.matmul(query * scale, key.transpose(-2, -1))
    return torch.matmul(torch.softmax(scores.masked_fill(hidden, -math.inf), -1), value)


def _hidden(mask: Any, mask_type: int | None) -> Any:
    """Where no key is seen, as scores [batch, heads, queries, keys] lie: wherever a mask is not zero."""
    if mask is None:
        return None
    hidden = mask.to(torch.bool)
    return hidden.unsqueeze(1).unsqueeze(1) if mask_type == KEYS else hidden
