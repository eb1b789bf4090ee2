"""Inputs for a task, drawn from a seed. Several distributions, each after another kind of mistake.

The same seed, torch version and device give the same values in every process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from sandbox.task.specs import TensorSpec, contiguous_stride

if TYPE_CHECKING:
    import torch

Bounds = tuple[int, int]
"""Least integer and one above the greatest."""
SAFE_BOUNDS: Bounds = (0, 2)
NOT_NEGATIVE: Bounds = (0, 1 << 62)
"""Of a floating-point input: what is drawn for it has its sign taken off, except under `BEYOND`."""
SCALED: Bounds = (-(1 << 62), 1 << 62)
"""Of a floating-point matrix through which a state goes again and again: it is scaled as networks initialise theirs, by
the root of a row's length. With weights of size one, rounding grows from step to step until nothing but it is left, in
eager as in a candidate, and any result is as right as any other. For that it is N(0, 1) at its size under every
distribution but zeros and `BEYOND`."""
STATE: Bounds = (-(1 << 61), 1 << 61)
"""Of the floating-point state that goes through them first: it is drawn as they are, but not scaled."""
BEYOND = ("edges", "masked")
"""Distributions that leave the domain of roots and logarithms on purpose."""

DISTRIBUTIONS = (
    "normal",
    "uniform",
    "large",
    "small",
    "constant",
    "edges",
    "zeros",
    "masked",
    "offset",
    "ramp",
    "sparse",
)
"""normal: N(0, 1). uniform: [0, 1), the safe domain of logarithms and square roots.
large: N(0, 1) times 1000 (50 in bfloat16; 7 in float16, where a sum of a thousand products of 50 and 50 overflows, and
56 beyond three standard deviations, so that there are exponentials that overflow float32). small: N(0, 1) / 1000.
constant: one dyadic number per tensor, so that sums are exact and cancel exactly. zeros: all zero.
edges: in half of the leading rows NaN, infinities, -0.0, denormals and huge numbers, thinly strewn
(not the largest ones, whose sums overflow or not depending on the order, and of one sign only: where
they cancel, even the float64 oracle keeps nothing but its own rounding; in half precision one of them, since
two of the few weights that there are may well be opposite).
offset: N(1000, 1) (around 50 and 7, likewise), which breaks a variance computed from squares. ramp: rises along
the last dimension with alternating signs, so that order and neighbours matter. sparse: zero but for few
large elements and the last one, which shows work that was left out. masked: N(0, 1) with minus
infinity up to or from a random place of each row, and in all of the first one: attention masks, the
start value of a maximum.

Groups of draws run on two poisons in turn. Those with NaN among their results (edges, masked) stand
at odd places, where the poison is no NaN that an unwritten result could pass for.
"""


def make_inputs(
    specs: Sequence[TensorSpec],
    seed: int,
    distribution: str,
    bounds: Sequence[Bounds | None] | None = None,
    device: str | torch.device = "cpu",
) -> list[torch.Tensor]:
    """Tensors with the dtype, shape and stride of each spec.

    `bounds` (one per spec; None for {0, 1} where it is of integers) keeps integers usable as indices, and
    floating-point numbers in the domain of roots, `SCALED` or a `STATE`. Booleans are random under every distribution.
    Raises KeyError for an unknown one.
    """
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    made = []
    for spec, bound in zip(specs, bounds or [None] * len(specs), strict=True):
        fill = _FILLS["normal" if _is_tame(bound, distribution) else distribution]
        values = _fill(spec, fill, bound or SAFE_BOUNDS, generator)
        if values.is_floating_point():
            _bind(values, bound, distribution)
        made.append(_strided(spec, values))
    if made and made[0].is_cuda:
        lay_together(made, [n for n, bound in enumerate(bounds or ()) if _is_scaled(bound)])
    return made


def _is_tame(bound: Bounds | None, distribution: str) -> bool:
    """Whether what goes through a recurrence stays as it is, whatever the distribution of the other inputs."""
    recurrent = bound is not None and tuple(bound) in (SCALED, STATE)
    return recurrent and distribution not in ("zeros", *BEYOND)


def _is_scaled(bound: Bounds | None) -> bool:
    """Bounds come as lists from other processes."""
    return bound is not None and tuple(bound) == SCALED


def lay_together(tensors: list[torch.Tensor], weights: Sequence[int]) -> None:
    """Put contiguous tensors of these numbers one after another in memory, matrices first, in place of the list's.

    So recurrent modules keep their weights on a GPU, and what is measured against must not gather them in each call.
    """
    import torch

    own = sorted(weights, key=lambda number: tensors[number].dim() < 2)
    if len(own) < 2 or not all(tensors[number].is_contiguous() for number in own):
        return
    line = torch.cat([tensors[number].reshape(-1) for number in own])
    parts = line.split([tensors[number].numel() for number in own])
    for number, part in zip(own, parts, strict=True):
        tensors[number] = part.view(tensors[number].shape)


def _bind(values: torch.Tensor, bound: Bounds | None, distribution: str) -> None:
    """Put floating-point numbers where they are to be, in place."""
    if bound is not None and tuple(bound) == NOT_NEGATIVE and distribution not in BEYOND:
        values.abs_()
    if _is_scaled(bound) and values.dim() > 1 and values.numel():
        values.div_(math.sqrt(values[0].numel()))


def _fill(spec: TensorSpec, fill: Fill, bounds: Bounds, generator: torch.Generator) -> torch.Tensor:
    """Values for the spec, contiguous. Of shape [extent] when its elements share memory."""
    import torch

    dtype = getattr(torch, spec.dtype)
    shape = (spec.extent,) if shares_memory(spec) else spec.shape
    if fill not in (_zeros, _constant) and math.prod(shape) > BLOCK:
        made = torch.empty(shape, dtype=dtype, device=generator.device)
        for part in _blocks(made):
            own = tuple(part.shape)
            one = TensorSpec(spec.dtype, own, contiguous_stride(own))
            part.copy_(_fill(one, fill, bounds, generator))
        return made
    if dtype == torch.bool:
        drawn = torch.randint(0, 2, shape, generator=generator, device=generator.device)
        return drawn.to(dtype)
    if not dtype.is_floating_point:
        return _integers(shape, bounds, fill, generator).to(dtype)
    exact = fill in (_zeros, _constant) and dtype.itemsize > 1
    wide = dtype if exact or dtype in (torch.float32, torch.float64) else torch.float32
    return fill(shape, wide, torch.finfo(dtype), generator).to(dtype)


def _blocks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Parts of a contiguous tensor of `BLOCK` elements at most, or of one row, along its first dimension but those of
    one element: what is drawn for one takes several times its memory, and need not for all of them at once."""
    lead = next((n for n, size in enumerate(tensor.shape) if size > 1), 0)
    rows = tensor.view(tensor.shape[lead:])
    step = max(1, min(len(rows) - 1, BLOCK // max(1, math.prod(rows.shape[1:]))))
    return iter(rows.split(step))


def _strided(spec: TensorSpec, values: torch.Tensor) -> torch.Tensor:
    import torch

    if shares_memory(spec):
        return values.as_strided(spec.shape, spec.stride)
    if values.stride() == spec.stride:
        return values
    made = torch.empty_strided(spec.shape, spec.stride, dtype=values.dtype, device=values.device)
    return made.copy_(values)


def shares_memory(spec: TensorSpec) -> bool:
    """Whether the layout does not nest, as in an expanded tensor."""
    reach = 0
    for stride, size in sorted(zip(spec.stride, spec.shape, strict=True)):
        if size != 1 and stride <= reach:
            return spec.numel > 0
        reach += stride * (size - 1)
    return False


Fill = Callable[
    ["tuple[int, ...]", "torch.dtype", "torch.finfo", "torch.Generator"], "torch.Tensor"
]


def _integers(
    shape: tuple[int, ...], bounds: Bounds, fill: Fill, generator: torch.Generator
) -> torch.Tensor:
    import torch

    low, high = bounds
    if fill in (_zeros, _constant):
        return torch.full(shape, low if fill is _zeros else high - 1, device=generator.device)
    if fill is _ramp:
        count = max(1, torch.Size(shape).numel())
        return (torch.arange(count, device=generator.device) % (high - low) + low)[
            : torch.Size(shape).numel()
        ].reshape(shape)
    return torch.randint(low, high, shape, generator=generator, device=generator.device)


def _normal(
    shape: tuple[int, ...], dtype: torch.dtype, limits: torch.finfo, generator: torch.Generator
) -> torch.Tensor:
    import torch

    return torch.randn(shape, dtype=dtype, generator=generator, device=generator.device)


def _uniform(
    shape: tuple[int, ...], dtype: torch.dtype, limits: torch.finfo, generator: torch.Generator
) -> torch.Tensor:
    import torch

    return torch.rand(shape, dtype=dtype, generator=generator, device=generator.device)


BLOCK = 1 << 26
"""Elements that are drawn in one go; a larger tensor is drawn in blocks of rows, each as if it was one."""

COARSE = 1e-4
"""The relative step between numbers above which they count as of half precision."""


LARGEST_EXPONENT = 88.0
"""Of what float32 has an exponential."""
TAIL = 8.0


def _magnitude(limits: torch.finfo) -> float:
    if limits.eps < COARSE:
        return 1000.0
    return 50.0 if limits.max > 1e6 else 7.0


def _large(
    shape: tuple[int, ...], dtype: torch.dtype, limits: torch.finfo, generator: torch.Generator
) -> torch.Tensor:
    values, magnitude = _normal(shape, dtype, limits, generator), _magnitude(limits)
    if magnitude < LARGEST_EXPONENT / 3:
        values[values.abs() > 3] *= TAIL
    return values.mul_(magnitude)


def _small(
    shape: tuple[int, ...], dtype: torch.dtype, limits: torch.finfo, generator: torch.Generator
) -> torch.Tensor:
    return _normal(shape, dtype, limits, generator).mul_(1e-3)


def _offset(
    shape: tuple[int, ...], dtype: torch.dtype, limits: torch.finfo, generator: torch.Generator
) -> torch.Tensor:
    return _normal(shape, dtype, limits, generator).add_(_magnitude(limits))


def _zeros(
    shape: tuple[int, ...], dtype: torch.dtype, limits: torch.finfo, generator: torch.Generator
) -> torch.Tensor:
    import torch

    return torch.zeros(shape, dtype=dtype, device=generator.device)


def _constant(
    shape: tuple[int, ...], dtype: torch.dtype, limits: torch.finfo, generator: torch.Generator
) -> torch.Tensor:
    import torch

    choices = (0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.0, 0.25)
    pick = torch.randint(0, len(choices), (), generator=generator, device=generator.device)
    return torch.full(shape, choices[int(pick)], dtype=dtype, device=generator.device)


def _edges(
    shape: tuple[int, ...], dtype: torch.dtype, limits: torch.finfo, generator: torch.Generator
) -> torch.Tensor:
    import torch

    values = _normal(shape, dtype, limits, generator)
    if values.numel() == 0:
        return values
    rows = values.view(shape[0], -1) if len(shape) > 1 else values.view(-1, 1)
    half = rows[: max(1, rows.shape[0] // 2)]
    inf = float("inf")
    huge = limits.max**0.45
    special = [float("nan"), inf, -inf, -0.0, huge, 0.0, limits.tiny / 4]
    count = max(1, min(half.numel() // 64, 4 * half.shape[0]))
    device = generator.device
    where = torch.randint(0, half.numel(), (count,), generator=generator, device=device)
    where = where.unique()  # written twice, an element would be either value on a GPU
    what = torch.randint(0, len(special), (len(where),), generator=generator, device=device)
    if limits.eps > COARSE:
        what[(what == special.index(huge)).nonzero()[1:]] += 1
    table = torch.tensor(special, dtype=dtype, device=device)
    half.view(-1)[where] = table[what]
    return values


def _ramp(
    shape: tuple[int, ...], dtype: torch.dtype, limits: torch.finfo, generator: torch.Generator
) -> torch.Tensor:
    import torch

    length = shape[-1] if shape else 1
    steps = torch.arange(length, dtype=dtype, device=generator.device)
    signs = 1 - 2 * (steps % 2)
    line = signs * (1 + steps / max(length, 1) * 7)
    noise = _normal(shape, dtype, limits, generator).mul_(0.01)
    return noise.add_(line) if shape else noise.add_(line[0])


def _sparse(
    shape: tuple[int, ...], dtype: torch.dtype, limits: torch.finfo, generator: torch.Generator
) -> torch.Tensor:
    import torch

    values = torch.zeros(shape, dtype=dtype, device=generator.device)
    flat = values.view(-1)
    if flat.numel() == 0:
        return values
    count = max(1, flat.numel() // 61)
    where = torch.randint(0, flat.numel(), (count,), generator=generator, device=generator.device)
    where = where.unique()  # written twice, an element would be either value on a GPU
    flat[where] = _normal((len(where),), dtype, limits, generator).mul_(8)
    flat[-1] = 7.5
    return values


def _masked(
    shape: tuple[int, ...], dtype: torch.dtype, limits: torch.finfo, generator: torch.Generator
) -> torch.Tensor:
    import torch

    values = _normal(shape, dtype, limits, generator)
    if values.numel() == 0 or len(shape) < 2:
        return values
    rows, device = values.view(-1, shape[-1]), generator.device
    kept = torch.randint(1, shape[-1] + 2, (rows.shape[0], 1), generator=generator, device=device)
    kept[:1] = 0
    place = torch.arange(shape[-1], device=device).expand(rows.shape).clone()
    place[1::2] = place[1::2].flip(1)
    return rows.masked_fill_(place >= kept, float("-inf")).view(shape)


_FILLS: dict[str, Fill] = {
    "normal": _normal,
    "uniform": _uniform,
    "large": _large,
    "small": _small,
    "constant": _constant,
    "zeros": _zeros,
    "edges": _edges,
    "offset": _offset,
    "ramp": _ramp,
    "sparse": _sparse,
    "masked": _masked,
}
