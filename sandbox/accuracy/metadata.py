"""Dtypes, shapes and strides of results."""

from __future__ import annotations

from collections.abc import Sequence

from sandbox.task.specs import TensorSpec


def check_metadata(
    found: Sequence[tuple[str, Sequence[int], Sequence[int]]], specs: Sequence[TensorSpec]
) -> str:
    """What is wrong with dtypes, shapes or strides (dtype, shape, stride per output); else empty."""
    if len(found) != len(specs):
        return f"{len(found)} outputs instead of {len(specs)}"
    for number, ((dtype, shape, stride), spec) in enumerate(zip(found, specs, strict=True)):
        if dtype != spec.dtype or tuple(shape) != spec.shape:
            wanted = f"{spec.dtype}{list(spec.shape)}"
            return f"output {number} is {dtype}{list(shape)} instead of {wanted}"
        steps = zip(spec.shape, stride, spec.stride, strict=True)
        if spec.numel and any(size > 1 and a != b for size, a, b in steps):
            return f"output {number} has strides {list(stride)} instead of {list(spec.stride)}"
    return ""
