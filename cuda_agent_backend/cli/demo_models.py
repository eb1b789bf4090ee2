"""The models of ``cuda-agent demo``: realistic networks that need torch alone, so that an installation can run it.

Every function returns ``(model, inputs)``: a float32 CPU module in evaluation mode, with fixed random weights, and the
tuple of tensors to call it with. Nothing is downloaded.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Tensor, ...]]

SEED = 20


def randn(*shape: int) -> Tensor:
    """Standard normal float32 values, the same in every process."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(SEED))


class _EncoderLayer(nn.Module):
    """A post-norm transformer encoder layer with its attention written out, as BERT has it."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width, eps=1e-12)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden``: (batch, tokens, width) float32; returns the same shape."""
        batch, tokens, width = hidden.shape
        q, k, v = self.qkv(hidden).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, width)
        hidden = self.norm1(hidden + self.out(mixed))
        out: Tensor = self.norm2(hidden + self.down(nn.functional.gelu(self.up(hidden))))
        return out


def encoder_layer() -> Example:
    """One encoder layer: width 256, 4 heads, batch 8, 128 tokens."""
    torch.manual_seed(SEED)
    return _EncoderLayer(256, heads=4, inner=1024).eval(), (randn(8, 128, 256),)


class _GroupNormBottleneck(nn.Module):
    """ResNet bottleneck with group norm of 32 groups, as detection and few-sample training use it."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.GroupNorm(32, width)
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(32, width)
        self.expand = nn.Conv2d(width, channels, 1, bias=False)
        self.norm3 = nn.GroupNorm(32, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.reduce(x)))
        y = torch.relu(self.norm2(self.conv(y)))
        return torch.relu(x + self.norm3(self.expand(y)))


def groupnorm_resnet_stage() -> Example:
    """The first stage of a group-norm ResNet-50: three bottlenecks of 256 channels at 56 x 56, batch 2."""
    torch.manual_seed(SEED)
    stage = nn.Sequential(*(_GroupNormBottleneck(256, 64) for _ in range(3)))
    return stage.eval(), (randn(2, 256, 56, 56),)


def _decay(log_a: Tensor) -> Tensor:
    """``exp(log_a[j+1] + ... + log_a[i])`` for ``i >= j``, else 0: (..., t) to (..., t, t)."""
    total = log_a.cumsum(-1)
    span = total.unsqueeze(-1) - total.unsqueeze(-2)
    length = log_a.shape[-1]
    lower = torch.ones(length, length, dtype=torch.bool, device=log_a.device).tril()
    return span.masked_fill(~lower, float("-inf")).exp()


class SelectiveScan(nn.Module):
    """Mamba-style mixer: ``h[t] = a[t] h[t-1] + dt[t] B[t] x[t]``, ``y[t] = C[t] h[t] + D x[t]``, with
    input-dependent a, B, C.

    The scan runs in chunks: inside a chunk as a lower-triangular product, between chunks over the
    chunk states, so no loop over time steps is left in the graph. Tokens must be a multiple of ``chunk``.
    """

    def __init__(self, width: int, heads: int, state: int, chunk: int) -> None:
        super().__init__()
        self.heads, self.state, self.chunk = heads, state, chunk
        self.inner = 2 * width
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.in_proj = nn.Linear(width, 2 * self.inner + 2 * state + heads, bias=False)
        mixed = self.inner + 2 * state
        self.conv = nn.Conv1d(mixed, mixed, 4, padding=3, groups=mixed)
        self.log_a = nn.Parameter(torch.linspace(0.0, 2.5, heads))
        self.dt_bias = nn.Parameter(torch.full((heads,), -4.0))
        self.skip = nn.Parameter(torch.ones(heads))
        self.out_norm = nn.RMSNorm(self.inner, eps=1e-5)
        self.out_proj = nn.Linear(self.inner, width, bias=False)

    def scan(self, x: Tensor, log_a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """The recurrence; returns x's shape.

        ``x``: (n, t, heads, p), ``log_a``: (n, t, heads), ``b`` and ``c``: (n, t, state).
        """
        n, t, heads, p = x.shape
        chunks = t // self.chunk
        x = x.reshape(n, chunks, self.chunk, heads, p)
        b = b.reshape(n, chunks, self.chunk, self.state)
        c = c.reshape(n, chunks, self.chunk, self.state)
        log_a = log_a.reshape(n, chunks, self.chunk, heads).permute(0, 3, 1, 2)
        total = log_a.cumsum(-1)
        scores = (c @ b.transpose(-1, -2)).unsqueeze(1) * _decay(log_a)
        inside = scores @ x.permute(0, 3, 1, 2, 4)
        to_end = (total[..., -1:] - total).exp()
        # Two operands at most: to order three, einsum reads the sizes, and Dynamo of torch 2.11 then holds them fixed.
        weighted = x * to_end.permute(0, 2, 3, 1).unsqueeze(-1)
        states = torch.einsum("nzls,nzlhp->nhzps", b, weighted)
        # The state that enters chunk z is the sum over earlier chunks, each decayed by all that lies between.
        between = _decay(nn.functional.pad(total[..., -1], (1, 0)))[..., :-1, 1:]
        entering = torch.einsum("nhzy,nhyps->nhzps", between, states)
        outside = torch.einsum("nzls,nhzps->nhzlp", c, entering) * total.exp().unsqueeze(-1)
        return (inside + outside).permute(0, 2, 3, 1, 4).reshape(n, t, heads, p)

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden``: (batch, tokens, width) float32; returns the same shape."""
        n, t, _ = hidden.shape
        sizes = [self.inner, self.inner + 2 * self.state, self.heads]
        gate, mixed, dt = self.in_proj(self.norm(hidden)).split(sizes, dim=-1)
        mixed = nn.functional.silu(self.conv(mixed.transpose(1, 2))[..., :t].transpose(1, 2))
        x, b, c = mixed.split([self.inner, self.state, self.state], dim=-1)
        x = x.reshape(n, t, self.heads, -1)
        dt = nn.functional.softplus(dt + self.dt_bias)
        y = self.scan(x * dt.unsqueeze(-1), -self.log_a.exp() * dt, b, c) + x * self.skip.unsqueeze(
            -1
        )
        y = self.out_norm(y.reshape(n, t, self.inner) * nn.functional.silu(gate))
        out: Tensor = hidden + self.out_proj(y)
        return out


def mamba_block() -> Example:
    """One Mamba-style block: width 192, 6 heads, state 16, chunks of 64, batch 4, 256 tokens."""
    torch.manual_seed(SEED)
    return SelectiveScan(192, heads=6, state=16, chunk=64).eval(), (randn(4, 256, 192),)
