"""Matrix products and convolutions for `sketch_cuda`: shapes that meet every way of copying operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Product:
    """A function of float32 inputs of these shapes. multiplications: what the result takes. last: channels last."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    multiplications: int
    last: bool = False

    def make(self, device: str) -> tuple[Tensor, ...]:
        """Standard normal inputs."""
        made = (torch.randn(shape, device=device) for shape in self.shapes)
        layout = torch.channels_last
        return tuple(x.to(memory_format=layout) if self.last and x.dim() == 4 else x for x in made)


def product(name: str, m: int, n: int, k: int, form: str = "nt", batch: int = 1) -> Product:
    """``form``: whether the operands are stored as the product reads them ("n") or transposed ("t")."""
    front = (batch,) if batch > 1 else ()
    left = (k, m) if form[0] == "t" else (m, k)
    right = (n, k) if form[1] == "t" else (k, n)

    def function(a: Tensor, b: Tensor) -> Tensor:
        a = a.transpose(-1, -2) if form[0] == "t" else a
        return a @ (b.transpose(-1, -2) if form[1] == "t" else b)

    return Product(name, function, ((*front, *left), (*front, *right)), batch * m * n * k)


def convolution(
    name: str,
    x: tuple[int, ...],
    outputs: int,
    size: int,
    *,
    transposed: bool = False,
    tail: Callable[[Tensor], Tensor] = lambda y: y,
    last: bool = False,
    groups: int = 1,
    **how: int,
) -> Product:
    """With a bias and then ``tail``; all edges of the kernel of the same ``size``."""
    dims = len(x) - 2
    channels = (x[1], outputs // groups) if transposed else (outputs, x[1] // groups)
    weight = (*channels, *[size] * dims)
    kind = f"conv{'_transpose' if transposed else ''}{dims}d"
    run = getattr(F, kind)

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return tail(run(x, w, b, groups=groups, **how))

    with torch.device("meta"):
        result = run(torch.empty(x), torch.empty(weight), groups=groups, **how)
    places = math.prod(x) if transposed else result.numel()
    return Product(name, function, (x, weight, (outputs,)), places * math.prod(weight[1:]), last)


def products() -> tuple[Product, ...]:
    """All of them."""
    return (
        product("gemm 4096", 4096, 4096, 4096, "nn"),
        product("gemm 4096 nt", 4096, 4096, 4096, "nt"),
        product("gemm 4096 tn", 4096, 4096, 4096, "tn"),
        product("gemm 1000", 1000, 1000, 1000, "nn"),
        product("gemm odd", 2049, 1537, 3073, "nn"),
        product("gemm skinny", 32, 8192, 8192),
        product("gemm huge k", 256, 256, 262144, "nn"),
        product("gemm small k", 16384, 4096, 64, "nn"),
        product("gemm batched", 512, 512, 512, "nn", batch=64),
        Product("linear gelu", lambda x, w, b: F.gelu(F.linear(x, w, b)), ((8192, 1024), (4096, 1024), (4096,)),
                8192 * 1024 * 4096),
        convolution("conv 64 128", (16, 64, 128, 128), 128, 3, padding=1, tail=F.relu),
        convolution("conv 64 128 last", (16, 64, 128, 128), 128, 3, padding=1, tail=F.relu, last=True),
        convolution("conv 256 14", (64, 256, 14, 14), 256, 3, padding=1),
        convolution("conv 3 64 7", (32, 3, 224, 224), 64, 7, padding=3, stride=2),
        convolution("conv pointwise", (32, 128, 56, 56), 256, 1),
        convolution("conv 1d", (32, 128, 16384), 128, 5, padding=4, dilation=2),
        convolution("conv 3d", (4, 32, 32, 64, 64), 64, 3, padding=1),
        convolution("conv groups", (16, 128, 64, 64), 128, 3, padding=1, groups=8),
        convolution("conv depthwise", (32, 128, 112, 112), 128, 3, padding=1, groups=128),
        convolution("transposed 2d", (16, 64, 64, 64), 64, 4, transposed=True, stride=2, padding=1),
        convolution("transposed 2d 1", (16, 64, 64, 64), 64, 3, transposed=True, padding=1),
        convolution("transposed 3d", (4, 32, 16, 32, 32), 32, 3, transposed=True, stride=2, padding=1,
                    output_padding=1),
        convolution("transposed 3d 5", (4, 32, 16, 32, 32), 32, 5, transposed=True, padding=2),
    )  # fmt: skip
