"""Eight small models of eight kinds, for first calls: what a user of each might compile on a laptop."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Example = tuple[nn.Module, tuple[Tensor, ...]]
"""A model in evaluation mode with fixed random weights, and the inputs of its only call."""


class Block(nn.Module):
    """Layer norm, a linear layer and GELU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        """x: (rows, width); returns (rows, inner)."""
        return functional.gelu(self.linear(self.norm(x)))


class Attention(nn.Module):
    """A transformer's layer, norms first. causal: no token sees what comes after it."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, tokens, width); returns the same shape."""
        batch, tokens, width = x.shape
        parts = self.mix(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return out


class Vision(nn.Module):
    """A small vision transformer."""

    def __init__(self, width: int = 192, depth: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(0.02 * torch.randn(1, 196, width))
        self.layers = nn.Sequential(*(Attention(width, 3, causal=False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, images: Tensor) -> Tensor:
        """images: (batch, 3, 224, 224); returns (batch, 100)."""
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        out: Tensor = self.head(self.norm(self.layers(tokens)).mean(1))
        return out


class Residual(nn.Module):
    """Two convolutions with batch norms beside a short cut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, channels, height, width); returns the same shape."""
        y = functional.relu(self.norm1(self.first(x)))
        return functional.relu(x + self.norm2(self.second(y)))


class Language(nn.Module):
    """A small causal language model over 2,000 words."""

    def __init__(self, width: int = 256, depth: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(2000, width)
        self.layers = nn.Sequential(*(Attention(width, 4, causal=True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 2000)

    def forward(self, words: Tensor) -> Tensor:
        """words: (batch, tokens), int64; returns log-probabilities (batch, tokens, 2000)."""
        hidden = self.norm(self.layers(self.words(words)))
        return functional.log_softmax(self.head(hidden), -1)


class Tagger(nn.Module):
    """A GRU over words, and a label for each."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 20)

    def forward(self, words: Tensor) -> Tensor:
        """words: (batch, tokens), int64; returns probabilities (batch, tokens, 20)."""
        hidden, _ = self.gru(self.words(words))
        return functional.softmax(self.head(self.norm(hidden)), -1)


class Mixture(nn.Module):
    """Experts that all run, weighted by a softmax."""

    def __init__(self, width: int = 256, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Parameter(0.05 * torch.randn(experts, width, 2 * width))
        self.down = nn.Parameter(0.05 * torch.randn(experts, 2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """x: (rows, width); returns the same shape."""
        weights = functional.softmax(self.gate(x), -1)
        hidden = functional.silu(torch.einsum("nw,ewh->enh", self.norm(x), self.up))
        return x + torch.einsum("enh,ehw,ne->nw", hidden, self.down, weights)


def _perceptron() -> nn.Module:
    sizes = (784, 1024, 1024, 512)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(512, 10), nn.LogSoftmax(-1))


def _residual() -> nn.Module:
    begin = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*begin, Residual(64), Residual(64), *end)


def _autoencoder() -> nn.Module:
    down = [nn.Conv2d(1, 32, 3, 2, 1), nn.GELU(), nn.Conv2d(32, 64, 3, 2, 1), nn.GELU()]
    up = [nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.GELU(), nn.ConvTranspose2d(32, 1, 4, 2, 1)]
    return nn.Sequential(*down, *up, nn.Sigmoid())


MAKERS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "block": lambda: (Block(512, 2048), (torch.randn(2048, 512),)),
    "perceptron": lambda: (_perceptron(), (torch.randn(1024, 784),)),
    "vision": lambda: (Vision(), (torch.randn(4, 3, 224, 224),)),
    "residual": lambda: (_residual(), (torch.randn(8, 3, 64, 64),)),
    "language": lambda: (Language(), (torch.randint(2000, (4, 128)),)),
    "tagger": lambda: (Tagger(), (torch.randint(1000, (16, 64)),)),
    "autoencoder": lambda: (_autoencoder(), (torch.randn(32, 1, 64, 64),)),
    "mixture": lambda: (Mixture(), (torch.randn(2048, 256),)),
}
"""Models by name."""


def make(name: str) -> Example:
    """A model, the same each time."""
    torch.manual_seed(0)
    model, inputs = MAKERS[name]()
    return model.eval(), inputs
