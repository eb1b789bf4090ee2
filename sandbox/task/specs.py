"""What a tensor looks like from outside: dtype, shape and stride, without values."""

from __future__ import annotations

import math
from dataclasses import dataclass

ITEM_SIZES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""Bytes per element of every dtype that a kernel may read or write."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's metadata. Strides count elements, as in torch; an empty shape is a scalar."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return ITEM_SIZES[self.dtype]

    @property
    def extent(self) -> int:
        """Number of elements from the first to the last one in memory, inclusive (0 if empty)."""
        if self.numel == 0:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of a shape, counted in elements (a size of 0 counts as 1, as in torch)."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def overlaps(spec: TensorSpec) -> bool:
    """Whether two elements of the layout may share memory (exact for layouts that nest, else said to overlap)."""
    reach = 0
    for stride, size in sorted(zip(spec.stride, spec.shape, strict=True)):
        if size == 1:
            continue
        if stride <= reach:
            return spec.numel > 0
        reach += stride * (size - 1)
    return False
