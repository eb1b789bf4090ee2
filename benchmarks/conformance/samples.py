"""The inputs of a case: a sample of the database with other sizes, another layout, other values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.conformance.cases import Case, stable
from benchmarks.conformance.database import elementwise, operators

MOST = 1 << 19
"""Elements that a tensor may have after it was made larger."""
LARGER = {1: 1, 2: 3, 3: 17, 4: 20, 5: 37, 6: 41, 8: 72, 10: 65, 20: 131}
"""What sizes become. Odd ones, and such as are not filled by whole vectors or blocks."""
DENORMAL = {torch.float16: 6e-8, torch.bfloat16: 1e-39, torch.float32: 1e-40, torch.float64: 1e-310}

DIVISORS = {
    **dict.fromkeys(
        ("div.floor_rounding", "div.trunc_rounding", "floor_divide", "fmod", "remainder"), 1
    ),
    "__rmod__": 0,
}
"""Operators that divide whole numbers, and the place of the divisor among two tensors."""


@dataclass(frozen=True)
class Inputs:
    """A call: a function of tensors alone, the tensors, and what was done to them in the end."""

    call: Callable[..., list[Tensor]]
    tensors: tuple[Tensor, ...]
    size: str
    layout: str
    values: str

    @property
    def finite(self) -> bool:
        """Whether no input is infinite or NaN."""
        return all(bool(x.isfinite().all()) for x in self.tensors if x.is_floating_point())


def samples_of(case: Case, device: str) -> list[Any]:
    """Those of the operator that differ in shapes or arguments, the same in every run."""
    torch.manual_seed(stable(case.cell.name) % (1 << 31))
    entry, dtype = operators()[case.cell.operator], getattr(torch, case.cell.dtype)
    found: dict[str, Any] = {}
    for sample in entry.sample_inputs(device, dtype, requires_grad=False):
        found.setdefault(sample.summary(), sample)
    return list(found.values())


def variants(case: Case, device: str) -> Iterator[Inputs]:
    """The case's inputs, and simpler ones in case eager does not take those; the last is the sample itself."""
    found = samples_of(case, device)
    if not found:
        return
    wanted = case.round
    if wanted.size == "large":  # what has no elements or dimensions has no other size or layout
        full = [sample for sample in found if _elements(sample)]
        found = [sample for sample in full if _dimensions(sample) >= 2] or full or found
    sample = found[(case.number * max(1, len(found) // 8) + case.number // 8) % len(found)]
    entry = operators()[case.cell.operator]
    tried = set()
    for size in dict.fromkeys((wanted.size, *(["wide"] * (wanted.size == "large")), "given")):
        for layout in dict.fromkeys((wanted.layout, "contiguous")):
            for values in dict.fromkeys((wanted.values, "drawn")):
                made = _variant(entry, sample, case, size, layout, values)
                if made is not None and (key := (made.size, made.layout, made.values)) not in tried:
                    tried.add(key)
                    yield made


def _tensors_of(sample: Any) -> list[Tensor]:
    tensors: list[Tensor] = []
    _collect((sample.input, sample.args, sample.kwargs), tensors)
    return tensors


def _dimensions(sample: Any) -> int:
    return max((x.dim() for x in _tensors_of(sample)), default=0)


def _elements(sample: Any) -> int:
    """Of the smallest tensor."""
    return min((x.numel() for x in _tensors_of(sample)), default=0)


def _variant(
    entry: Any, sample: Any, case: Case, size: str, layout: str, values: str
) -> Inputs | None:
    tensors: list[Tensor] = []
    shape = _collect((sample.input, sample.args, sample.kwargs), tensors)
    if not all(x.layout is torch.strided for x in tensors):
        return None
    generator = torch.Generator().manual_seed(stable(case.name) % (1 << 31))
    free = elementwise(case.cell.operator)
    made = tensors
    if size != "given":
        made = resized(made, size, generator)
        if [x.shape for x in made] == [x.shape for x in tensors]:
            size = "given"
    if values == "edge":
        made = [edged(x, free, generator) for x in made]
    made = [laid_out(x, layout) for x in divisible(case.cell.operator, made)]

    def call(*given: Tensor) -> list[Tensor]:
        first, args, kwargs = _put(shape, given)
        result = entry.op(first, *args, **kwargs)
        return _tensors(result)

    return Inputs(call, tuple(made), size, layout, values)


@dataclass(frozen=True)
class _At:
    """The place of a tensor among the arguments."""

    number: int


def _collect(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors.append(value.detach())
        return _At(len(tensors) - 1)
    if isinstance(value, dict):
        return {key: _collect(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_collect(item, tensors) for item in value)
    return value


def _put(shape: Any, tensors: Sequence[Tensor]) -> Any:
    if isinstance(shape, _At):
        return tensors[shape.number]
    if isinstance(shape, dict):
        return {key: _put(item, tensors) for key, item in shape.items()}
    if type(shape) is list:
        return [_put(item, tensors) for item in shape]
    if type(shape) is tuple:
        return tuple(_put(item, tensors) for item in shape)
    return shape


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, dict):
        return [x for item in result.values() for x in _tensors(item)]
    if isinstance(result, list | tuple):
        return [x for item in result for x in _tensors(item)]
    return []


def resized(tensors: Iterable[Tensor], size: str, generator: torch.Generator) -> list[Tensor]:
    """Tensors whose sizes all went the same way, so that what was equal stays so; elements are drawn from the old ones,
    so that indices stay indices and probabilities stay such."""

    tensors = list(tensors)
    deep = any(x.dim() >= 5 for x in tensors)  # convolutions over volumes take eager long

    def other(n: int, dim: int) -> int:
        if size == "wide" and n <= 3:  # windows and groups stay
            return n
        if size in ("large", "wide") and deep:
            return 2 * n + 1 if n > 1 else n
        if size in ("large", "wide"):
            return LARGER.get(n, n if n > 64 else 4 * n + 1)
        return 1 if size == "one" else 0 if dim == 0 else n

    return [_redrawn(x, [other(n, d) for d, n in enumerate(x.shape)], generator) for x in tensors]


def _redrawn(x: Tensor, shape: list[int], generator: torch.Generator) -> Tensor:
    if math.prod(shape) > MOST or x.numel() == 0 or tuple(shape) == tuple(x.shape):
        return x
    places = torch.randint(x.numel(), (math.prod(shape),), generator=generator).to(x.device)
    return x.reshape(-1)[places].reshape(shape)


def edged(x: Tensor, free: bool, generator: torch.Generator) -> Tensor:
    """Some elements at the edge of what the dtype holds. free: whole numbers too, which else may be indices."""
    if x.dtype in DENORMAL:
        limits = torch.finfo(x.dtype)
        values = [
            math.inf,
            -math.inf,
            math.nan,
            -0.0,
            0.0,
            DENORMAL[x.dtype],
            limits.max,
            -limits.max,
        ]
        values += [limits.tiny, -DENORMAL[x.dtype], 1.0, -1.0]
    elif (
        free and not x.dtype.is_floating_point and x.dtype is not torch.bool and not x.is_complex()
    ):
        whole = torch.iinfo(x.dtype)
        values = [whole.max, whole.min, 0, 1, whole.max - 1, whole.min + 1]
    else:
        return x
    flat = x.reshape(-1).clone()
    count = min(len(flat), max(1, len(flat) // 7))
    places = torch.randperm(len(flat), generator=generator)[:count].to(x.device)
    chosen = torch.tensor(values, dtype=x.dtype, device=x.device)
    flat[places] = chosen[torch.arange(count, device=x.device) % len(values)]
    return flat.reshape(x.shape)


def divisible(operator: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The operands of a division of whole numbers without what eager has no answer for on a processor, where it raises
    over zero, and its process dies of the smallest number over -1. On a GPU both have one, which a kernel gives too.
    """
    made = list(tensors)
    place = DIVISORS.get(operator)
    if place is None or len(made) != 2 or any(_is_no_integer(x) or not x.is_cpu for x in made):
        return made
    divisor, dividend = made[place], made[1 - place]
    made[place] = torch.where(divisor == 0, 1, divisor)
    least = torch.iinfo(dividend.dtype).min
    made[1 - place] = torch.where(dividend == least, least + 1, dividend) if least else dividend
    return made


def _is_no_integer(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex() or x.dtype == torch.bool


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same values in another layout, as they are where the tensor has too few dimensions for it."""
    if layout == "transposed" and x.dim() >= 2:
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "offset":
        base = x.new_empty(x.numel() + 3)
        base[3:].copy_(x.reshape(-1))
        return base[3:].view(x.shape)
    if layout == "sliced" and x.dim() >= 1:
        base = x.new_empty((*x.shape[:-1], 2 * x.shape[-1] + 1))
        made = base[..., 1::2]
        return made.copy_(x)
    if layout == "expanded" and x.dim() >= 2 and x.shape[0] > 1:
        return x[:1].contiguous().expand(x.shape)
    if layout == "channels-last" and x.dim() in (4, 5):
        memory = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        return x.contiguous(memory_format=memory)
    return x.contiguous()


def copied(x: Tensor) -> Tensor:
    """The same tensor over memory of its own: strides, offset and overlaps as they are."""
    storage = x.untyped_storage().clone()
    made = torch.empty(0, dtype=x.dtype, device=x.device)
    return made.set_(storage, x.storage_offset(), x.shape, x.stride())  # type: ignore[call-overload]
