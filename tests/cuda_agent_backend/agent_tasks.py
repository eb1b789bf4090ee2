"""Small tasks of many kinds, for tests of what an agent is given."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from sketch_kit import Sample, sample
from torch import Tensor


def _randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + len(shape)))


def _ints(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(high))


X, Y, V = _randn(6, 40), _randn(6, 40, seed=1), _randn(40)
IMAGE, COLUMN = _randn(2, 4, 9, 11), _randn(6, 1)

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "gelu": (F.gelu, (X,)),
    "bias and silu": (lambda x, b: F.silu(x + b), (X, V)),
    "clamp to infinity": (lambda x: x.clamp(-1.5, float("inf")), (X,)),
    "fill with minus infinity": (lambda x: x.masked_fill(x > 0, -float("inf")), (X,)),
    "nan where negative": (lambda x: torch.where(x > 0, x, float("nan")), (X,)),
    "half and back": (lambda x: (x.half() * 2).float(), (X,)),
    "bfloat16 sum": (lambda x: x.bfloat16().sum(1), (X,)),
    "softmax": (lambda x: x.softmax(-1), (X,)),
    "log softmax": (lambda x: x.log_softmax(0), (X,)),
    "layer norm": (lambda x, w: F.layer_norm(x, (40,), w), (X, V)),
    "group norm": (lambda x: F.group_norm(x, 2), (IMAGE,)),
    "variance and mean": (lambda x: torch.var_mean(x, 1), (X,)),
    "mean and argmax": (lambda x: (x.mean(1), x.argmax(1)), (X,)),
    "norm of columns": (lambda x: x / x.norm(dim=0, keepdim=True), (X,)),
    "cumulative sum": (lambda x: x.cumsum(1), (X,)),
    "logsumexp": (lambda x: x.logsumexp(1), (X,)),
    "transposed": (lambda x, y: x.t() + y.t(), (X, Y)),
    "of strided": (lambda x: x * 2, (_randn(8, 80)[:, ::2],)),
    "of expanded": (lambda x, y: x + y, (X, COLUMN.expand(6, 40))),
    "of a scalar": (lambda x, y: x * y, (X, torch.tensor(2.5))),
    "concatenation": (lambda x, y: torch.cat([x, y * 2], 1), (X, Y)),
    "split": (lambda x: x.chunk(2, 1)[0] * x.chunk(2, 1)[1], (X,)),
    "padding": (lambda x: F.pad(x, (1, 2), value=3.0), (X,)),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)),
    "average pool": (lambda x: F.avg_pool2d(x, 2), (IMAGE,)),
    "adaptive pool": (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), (IMAGE,)),
    "channels last": (lambda x: x.relu() + 1, (IMAGE.to(memory_format=torch.channels_last),)),
    "interpolation": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), (IMAGE,)),
    "embedding": (lambda i, w: F.embedding(i, w), (_ints(20, 3, 5), _randn(20, 8))),
    "gather": (lambda x, i: x.gather(1, i), (X, _ints(40, 6, 3))),
    "cross entropy": (lambda x, i: F.cross_entropy(x, i), (X, _ints(40, 6))),
    "where of a mask": (lambda m, x, y: torch.where(m, x, y), (X > 0, X, Y)),
    "integers": (lambda i: (i * 3) // 2 % 7, (_ints(50, 4, 6),)),
    "square root": (lambda x: x.sqrt().log1p(), (X.abs(),)),
    "product": (lambda x, y: F.relu(x @ y), (X, _randn(40, 16))),
    "batched product": (torch.bmm, (_randn(3, 5, 7), _randn(3, 7, 4))),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), (IMAGE, _randn(5, 4, 3, 3))),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=4), (IMAGE, _randn(4, 1, 3, 3))),
    "arange": (lambda x: x + torch.arange(40), (X,)),
    "zeros of a kind": (lambda x: torch.zeros_like(x, dtype=torch.float64) + x, (X,)),
    "random shape": (lambda x: x.reshape(3, 2, 5, 8).permute(3, 1, 0, 2).contiguous(), (X,)),
}

FOR_CUDA: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "wide row": (lambda x: x.softmax(-1), (_randn(64, 20000),)),
    "tall": (lambda x: x / x.sum(0, keepdim=True), (_randn(3000, 64),)),
    "crossing": (lambda x, y: x.t().contiguous() + y, (_randn(512, 512), _randn(512, 512))),
    "attention": (F.scaled_dot_product_attention, tuple(_randn(1, 2, 64, 32, seed=i) for i in range(3))),
    "sort": (lambda x: x.sort(1), (X,)),
    "topk": (lambda x: x.topk(4, 1), (_randn(6, 400),)),
    "scatter": (lambda b, x, i: b.scatter_add(1, i, x), (_randn(6, 50), X, _ints(50, 6, 40))),
    "many small": (torch.bmm, (_randn(600, 8, 8), _randn(600, 8, 8))),
    "odd columns": (lambda x, y: x @ y, (_randn(512, 511), _randn(511, 512))),
    "few columns": (lambda x, w: F.conv2d(x, w), (_randn(2, 8, 32, 32), _randn(3, 8, 3, 3))),
    "few terms": (lambda x, y: x @ y, (_randn(4096, 8), _randn(8, 2048))),
    "half": (lambda x, y: x @ y, (_randn(256, 256).half(), _randn(256, 256).half())),
}  # fmt: skip

ON_THE_CPU = {
    "fill with minus infinity", "nan where negative", "logsumexp", "cross entropy", "arange", "zeros of a kind",
}  # fmt: skip
"""Tasks that make a tensor on the device they are traced on, which is never a GPU here."""


@cache
def samples(target: str) -> dict[str, Sample]:
    """All of them, by name."""
    both = {**FUNCTIONS, **(FOR_CUDA if target == "cuda" else {})}
    names = both.keys() - (ON_THE_CPU if target == "cuda" else set())
    return {name: sample(both[name][0], *both[name][1], target=target) for name in sorted(names)}
