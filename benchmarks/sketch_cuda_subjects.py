"""The subjects of `sketch_cuda`: region families, products and convolutions, and small probes of awkward shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import Case
from benchmarks.products import products


@dataclasses.dataclass(frozen=True)
class Subject:
    """A function and its inputs, made on a device. ``multiplications``: what its products take, 0 where it has none."""

    name: str
    function: Callable[..., Any]
    make: Callable[[str], tuple[Tensor, ...]]
    multiplications: int = 0


def subject_of(case: Case) -> Subject:
    def make(device: str) -> tuple[Tensor, ...]:
        return tuple(torch.randn(shape, device=device) for shape in case.shapes)

    return Subject(case.name, case.family.function, make)


def product_subjects() -> tuple[Subject, ...]:
    return tuple(Subject(p.name, p.function, p.make, p.multiplications) for p in products())


def probes() -> tuple[Subject, ...]:
    """Small regions of awkward shapes, dtypes and layouts: for correctness only."""
    randn = torch.randn

    def of(
        *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32
    ) -> Callable[[str], tuple[Tensor, ...]]:
        return lambda device: tuple(randn(s, device=device).to(dtype) for s in shapes)

    def layer_norm_backward(x: Tensor, w: Tensor, b: Tensor, g: Tensor) -> Any:
        mean, rstd = (
            x.mean(-1, keepdim=True),
            torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5),
        )
        return torch.ops.aten.native_layer_norm_backward(
            g, x, w.shape, mean, rstd, w, b, [True, True, True]
        )

    def group_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.group_norm(x, 8, w, b)

    def integers(device: str) -> tuple[Tensor, ...]:
        return (torch.randint(-9, 9, (130, 264), device=device),)

    def holes(device: str) -> tuple[Tensor, ...]:
        x = randn(66, 1030, device=device)
        x[3, 77] = float("nan")
        x[5, 9], x[6, 1000], x[7] = float("inf"), float("-inf"), float("-inf")
        return (x,)

    half, brain = torch.float16, torch.bfloat16
    return (
        Subject("softmax odd", lambda x: x.softmax(-1), of((37, 1001))),
        Subject("softmax holes", lambda x: x.softmax(-1), holes),
        Subject("softmax bf16", lambda x: x.softmax(-1), of((64, 1536), dtype=brain)),
        Subject("softmax middle", lambda x: x.softmax(1), of((6, 300, 132))),
        Subject("softmax short", lambda x: x.softmax(-1), of((5000, 17))),
        Subject("layer norm fp16", lambda x, w, b: torch.nn.functional.layer_norm(x, w.shape, w, b),
                of((130, 3000), (3000,), (3000,), dtype=half)),
        Subject("layer norm long", lambda x, w, b: torch.nn.functional.layer_norm(x, w.shape, w, b),
                of((3, 600000), (600000,), (600000,))),
        Subject("layer norm backward", layer_norm_backward, of((640, 768), (768,), (768,), (640, 768))),
        Subject("group norm", group_norm, of((9, 32, 14, 14), (32,), (32,))),
        Subject("group norm odd", group_norm, of((3, 24, 15, 15), (24,), (24,))),
        Subject("batch statistics", lambda x: (x.mean((0, 2, 3)), x.var((0, 2, 3))), of((16, 48, 20, 20))),
        Subject("sum all", lambda x: (x.square().sum(), x.abs().max()), of((1000, 3001))),
        Subject("sum integers", lambda x: (x.sum(-1), x.prod(0), x.min(), (x > 8).any(-1)), integers),
        Subject("max holes", lambda x: (x.amax(-1), x.argmax(-1), x.argmin(-1)), holes),
        Subject("argmax columns", lambda x: x.argmax(0), of((3000, 132))),
        Subject("argmax all", lambda x: x.argmax(), of((1000, 257))),
        Subject("argmax integers", lambda x: x.argmax(-1), integers),
        Subject("cumsum odd", lambda x: x.cumsum(-1), of((33, 5003))),
        Subject("cumsum long", lambda x: x.cumsum(-1), of((3, 200000))),
        Subject("cumsum middle", lambda x: x.cumsum(1), of((5, 700, 96))),
        Subject("cumsum reversed", lambda x: x.flip(-1).cumsum(-1).flip(-1), of((64, 2048))),
        Subject("cumsum integers", lambda x: x.cumsum(-1), integers),
        Subject("cumprod", lambda x: (1 + 0.01 * x).cumprod(-1), of((64, 1000))),
        Subject("cumsum masked", lambda x: (x * (x > 0)).cumsum(0), of((900, 68))),
        Subject("mean of transposed", lambda x: x.t().mean(-1), of((512, 300))),
        Subject("cat and pad", lambda x, y: torch.nn.functional.pad(torch.cat([x, y], -1), (1, 3)).sin(), of((50, 16), (50, 9))),  # noqa: E501
        Subject("transposed add", lambda x, y: (x.t() + y).exp(), of((128, 96), (96, 128))),
        Subject("gelu bf16", lambda x, b: torch.nn.functional.gelu(x + b), of((100, 136), (136,), dtype=brain)),
        Subject("many functions", lambda x: torch.erf(x) + torch.tanh(x) * torch.sigmoid(x) + torch.log1p(x.abs()) + x.pow(3) + torch.expm1(x), of((100, 1001))),  # noqa: E501
        Subject("softmax then column sum", lambda x: (lambda s: (s, s.sum(0)))(torch.nn.functional.gelu(x.softmax(-1))), of((640, 520))),  # noqa: E501
        Subject("double", lambda x: (x.double().softmax(-1), x.double().sum(0)), of((77, 300))),
    )  # fmt: skip
