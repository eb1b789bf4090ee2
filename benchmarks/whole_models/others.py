"""A denoising network, a recommender with tables, a graph network: written for this benchmark in torch alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.whole_models.subject import Made, Subject, of_classes, of_clicks, of_values


class Residual(nn.Module):
    """Two convolutions behind group norms, shifted by what a time says."""

    def __init__(self, inner: int, outer: int, steps: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(groups, inner), nn.GroupNorm(groups, outer)
        self.first = nn.Conv2d(inner, outer, 3, padding=1)
        self.second = nn.Conv2d(outer, outer, 3, padding=1)
        self.shift = nn.Linear(steps, outer)
        self.past = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """x: (batch, inner, height, width), time: (batch, steps); returns (batch, outer, height, width)."""
        y = self.first(functional.silu(self.norm1(x)))
        y = y + self.shift(functional.silu(time))[:, :, None, None]
        out: Tensor = self.past(x) + self.second(functional.silu(self.norm2(y)))
        return out


class Crossed(nn.Module):
    """Attention of pixels to pixels and to a text, and a gated perceptron."""

    def __init__(self, channels: int, text: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads = heads
        self.enter = nn.GroupNorm(groups, channels)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.own = nn.Linear(channels, 3 * channels, bias=False)
        self.asks = nn.Linear(channels, channels, bias=False)
        self.tells = nn.Linear(text, 2 * channels, bias=False)
        self.out = nn.ModuleList(nn.Linear(channels, channels) for _ in range(3))
        self.up, self.down = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

    def _mix(self, *parts: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        """image: (batch, channels, height, width), text: (batch, tokens, width); returns the image's shape."""
        x = self.enter(image).flatten(2).transpose(1, 2)
        x = x + self.out[0](self._mix(*self.own(self.norms[0](x)).chunk(3, dim=2)))
        asked, told = self.asks(self.norms[1](x)), self.tells(text).chunk(2, dim=2)
        x = x + self.out[1](self._mix(asked, *told))
        value, gate = self.up(self.norms[2](x)).chunk(2, dim=2)
        x = x + self.down(value * functional.gelu(gate))
        return image + self.out[2](x).transpose(1, 2).unflatten(2, image.shape[2:])


class Denoiser(nn.Module):
    """A U-Net of three levels for latent images, told of a time and a text."""

    def __init__(self, wide: int, text: int, heads: int, groups: int) -> None:
        super().__init__()
        steps, sizes = 4 * wide, (wide, 2 * wide, 4 * wide)
        self.wide = wide
        self.time = nn.Sequential(nn.Linear(wide, steps), nn.SiLU(), nn.Linear(steps, steps))
        self.enter = nn.Conv2d(4, wide, 3, padding=1)
        inner, skips = wide, [wide]
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        for size in sizes:
            level = nn.ModuleList()
            for _ in range(2):
                level.append(Residual(inner, size, steps, groups))
                level.append(Crossed(size, text, heads, groups))
                inner = size
                skips.append(size)
            self.down.append(level)
            last = size == sizes[-1]
            self.shrink.append(nn.Identity() if last else nn.Conv2d(size, size, 3, 2, 1))
        self.middle = nn.ModuleList(Residual(inner, inner, steps, groups) for _ in range(2))
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for size in reversed(sizes):
            level = nn.ModuleList()
            for _ in range(2):
                level.append(Residual(inner + skips.pop(), size, steps, groups))
                level.append(Crossed(size, text, heads, groups))
                inner = size
            self.up.append(level)
            first = size == sizes[0]
            self.grow.append(nn.Identity() if first else nn.Conv2d(size, size, 3, padding=1))
        self.leave = nn.Sequential(
            nn.GroupNorm(groups, wide), nn.SiLU(), nn.Conv2d(wide, 4, 3, padding=1)
        )

    def forward(self, image: Tensor, moment: Tensor, text: Tensor) -> Tensor:
        """image: (batch, 4, height, width), moment: (batch), text: (batch, tokens, width); returns like image."""
        powers = torch.arange(self.wide // 2, device=image.device) / (self.wide // 2)
        angles = moment[:, None] * torch.exp(-math.log(10_000.0) * powers)
        waves = torch.cat([angles.cos(), angles.sin()], dim=1)
        time, x = self.time(waves.to(image.dtype)), self.enter(image)
        kept = []
        for level, shrink in zip(self.down, self.shrink, strict=True):
            for mix, look in zip(level[::2], level[1::2], strict=True):
                x = look(mix(x, time), text)
                kept.append(x)
            x = shrink(x)
        for mix in self.middle:
            x = mix(x, time)
        for level, grow in zip(self.up, self.grow, strict=True):
            for mix, look in zip(level[::2], level[1::2], strict=True):
                x = look(mix(torch.cat([x, kept.pop()], dim=1), time), text)
            if not isinstance(grow, nn.Identity):
                x = grow(functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        out: Tensor = self.leave(x)
        return out


def denoiser(toy: bool) -> Made:
    """The U-Net on latent images of 64 x 64."""
    wide, text, heads, groups = (8, 12, 2, 4) if toy else (320, 768, 8, 32)
    batch, side, tokens = (2, 8, 3) if toy else (4, 64, 77)
    image = torch.randn(batch, 4, side, side)
    inputs = (image, 1000.0 * torch.rand(batch), torch.randn(batch, tokens, text))
    model = Denoiser(wide, text, heads, groups)
    return Made(model, inputs, torch.randn_like(image), of_values)


class Recommender(nn.Module):
    """Tables for what is sparse, a perceptron for what is dense, all products of pairs, a perceptron to one number."""

    def __init__(self, tables: int, entries: int, width: int, dense: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(entries, width, mode="sum") for _ in range(tables)
        )
        self.bottom = nn.Sequential(
            nn.Linear(dense, hidden), nn.ReLU(), nn.Linear(hidden, width), nn.ReLU()
        )
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden // 2),
            nn.ReLU(),
            nn.Linear(hidden // 2, 1),
        )
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """dense: (batch, dense), sparse: (batch, tables, bag), int64; returns logits (batch)."""
        first = self.bottom(dense)
        looked_up = [table(sparse[:, n]) for n, table in enumerate(self.tables)]
        every = torch.stack([first, *looked_up], dim=1)
        products = (every @ every.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        out: Tensor = self.top(torch.cat([first, products], dim=1)).squeeze(1)
        return out


def recommender(toy: bool) -> Made:
    """Twenty-six tables of 200,000 rows of 128, bags of four."""
    tables, entries, width, hidden = (3, 50, 8, 16) if toy else (26, 200_000, 128, 1024)
    batch, dense, bag = (4, 5, 2) if toy else (16_384, 13, 4)
    inputs = (torch.randn(batch, dense), torch.randint(entries, (batch, tables, bag)))
    model = Recommender(tables, entries, width, dense, hidden)
    return Made(model, inputs, torch.rand(batch), of_clicks)


class Messages(nn.Module):
    """A layer of attention over the edges of a graph."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mix, self.own = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.sends = nn.Parameter(torch.randn(heads, width // heads) / math.sqrt(width))
        self.gets = nn.Parameter(torch.randn(heads, width // heads) / math.sqrt(width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, source: Tensor, sink: Tensor) -> Tensor:
        """x: (nodes, width), source and sink: (edges), int64; returns the shape of x."""
        told = self.mix(x).unflatten(1, (self.heads, -1))
        sent, got = (told * self.sends).sum(-1), (told * self.gets).sum(-1)
        weight = functional.leaky_relu(sent[source] + got[sink], 0.2).clamp(max=8.0).exp()
        total = torch.zeros_like(sent).index_add(0, sink, weight)
        moved = told[source] * (weight / total[sink])[..., None]
        summed = torch.zeros_like(told).index_add(0, sink, moved)
        return self.norm(x + functional.elu(summed.flatten(1) + self.own(x)))


class Graph(nn.Module):
    """Three layers of attention over edges, from features of nodes to classes."""

    def __init__(self, features: int, width: int, heads: int, classes: int) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.layers = nn.ModuleList(Messages(width, heads) for _ in range(3))
        self.leave = nn.Linear(width, classes)

    def forward(self, x: Tensor, source: Tensor, sink: Tensor) -> Tensor:
        """x: (nodes, features), source and sink: (edges), int64; returns logits (nodes, classes)."""
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x, source, sink)
        out: Tensor = self.leave(x)
        return out


def graph(toy: bool) -> Made:
    """170,000 nodes and 1.2 million edges, about those of a citation graph; each node has an edge to itself."""
    nodes, edges, features = (11, 30, 6) if toy else (170_000, 1_200_000, 128)
    width, heads, classes = (8, 2, 5) if toy else (256, 4, 40)
    every = torch.arange(nodes)
    source = torch.cat([torch.randint(nodes, (edges,)), every])
    sink = torch.cat([torch.randint(nodes, (edges,)), every])
    inputs = (torch.randn(nodes, features), source, sink)
    target = torch.randint(classes, (nodes,))
    return Made(Graph(features, width, heads, classes), inputs, target, of_classes, samples=False)


SUBJECTS = (
    Subject("denoiser", "a U-Net with text, 4 latents of 64 x 64", denoiser),
    Subject("recommender", "26 tables of 200,000 rows, 16,384 samples", recommender),
    Subject("graph", "attention over 1.4 million edges, 170,000 nodes", graph),
)
