"""The region families that are measured, and their shapes.

A family is a small module; its inputs have a fixed inner shape, and the first dimension is chosen so that the first
input has about the wanted number of bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MB = 1 << 20
SIZES: dict[str, dict[str, int]] = {
    "cpu": {"2MB": 2 * MB, "8MB": 8 * MB, "24MB": 24 * MB},
    "cuda": {"64MB": 64 * MB, "512MB": 512 * MB, "2GB": 2048 * MB},
}


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


@dataclass(frozen=True)
class Family:
    """``inner``: the first input's shape without its first dimension. ``more``: shapes of further inputs."""

    name: str
    function: Callable[..., Tensor]
    inner: dict[str, tuple[int, ...]]
    more: Callable[[tuple[int, ...]], Sequence[tuple[int, ...]]] = lambda shape: ()


@dataclass(frozen=True)
class Case:
    """One family at one size on one target."""

    family: Family
    target: str
    size: str

    @property
    def name(self) -> str:
        """Such as "softmax-8MB"."""
        return f"{self.family.name}-{self.size}"

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the float32 inputs."""
        inner = self.family.inner[self.target]
        elements = SIZES[self.target][self.size] // 4
        first = (max(1, elements // math.prod(inner)), *inner)
        return (first, *self.family.more(first))

    def make(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """The module, and standard normal float32 inputs on the target."""
        source = torch.Generator(self.target).manual_seed(0)
        inputs = tuple(
            torch.randn(shape, device=self.target, generator=source) for shape in self.shapes
        )
        return Function(self.family.function).eval(), inputs


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """32 groups."""
    return F.group_norm(x, 32, weight, bias)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Over the last dimension."""
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Over the last dimension, written out as language models do."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def masked_softmax(x: Tensor) -> Tensor:
    """Causal attention weights of scores (..., queries, keys)."""
    keep = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril()
    return torch.softmax(x.masked_fill(~keep, float("-inf")), -1)


def _channels(shape: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
    return (shape[1:2], shape[1:2])


def _last(shape: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
    return (shape[-1:],)


def _last_two(shape: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
    return (shape[-1:], shape[-1:])


def _same(shape: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
    return (shape,)


def _rows(cpu: int, cuda: int) -> dict[str, tuple[int, ...]]:
    return {"cpu": (cpu,), "cuda": (cuda,)}


REGIONS = (
    Family("group_norm", group_norm, {"cpu": (64, 64, 64), "cuda": (256, 128, 128)}, _channels),
    Family("layer_norm", layer_norm, _rows(1024, 8192), _last_two),
    Family("rms_norm", rms_norm, _rows(2048, 8192), _last),
    Family("softmax", lambda x: torch.softmax(x, -1), _rows(1024, 16384)),
    Family("log_softmax", lambda x: torch.log_softmax(x, -1), _rows(1024, 32768)),
    Family("logsumexp", lambda x: torch.logsumexp(x, -1), _rows(1024, 16384)),
    Family("mean_middle", lambda x: x.mean(1), {"cpu": (256, 256), "cuda": (1024, 1024)}),
    Family("argmax", lambda x: x.argmax(-1), _rows(1024, 16384)),
    Family("cumsum", lambda x: x.cumsum(-1), _rows(1024, 16384)),
    Family("silu_bias", lambda x, b: F.silu(x) + b, _rows(1024, 8192), _last),
    Family("masked_softmax", masked_softmax, {"cpu": (256, 256), "cuda": (2048, 2048)}),
    Family("sum_squares_columns", lambda x: x.square().sum(0), _rows(1024, 8192)),
)

POINTWISE = (
    Family("relu", torch.relu, _rows(1024, 8192)),
    Family("gelu", F.gelu, _rows(1024, 8192)),
    Family("softplus", F.softplus, _rows(1024, 8192)),
    Family("swiglu", lambda x, y: F.silu(x) * y, _rows(1024, 8192), _same),
)


def cases(target: str) -> tuple[Case, ...]:
    """The twelve families at three sizes each; on cuda the pointwise families as well."""
    families = REGIONS + (POINTWISE if target == "cuda" else ())
    return tuple(Case(f, target, size) for f in families for size in SIZES[target])
