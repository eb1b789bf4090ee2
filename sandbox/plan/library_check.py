"""What makes a library call of a plan valid: it reads and writes what it names, within its buffers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sandbox.plan.library_calls import Convolution, Gemm, LibraryCall, View
from sandbox.plan.steps import Buffer, require
from sandbox.task.specs import TensorSpec, contiguous_stride, overlaps

FLOATING = ("float64", "float32", "float16", "bfloat16")
MAX_SIZE = 2**31 - 1
MAX_WORK = 1 << 50
"""Multiplications of one call: operands whose elements share memory are small, and yet much work."""
MAX_NUMBER = 1 << 16
"""Of strides, paddings and dilations of a convolution."""


def check_call(step: LibraryCall, buffers: Mapping[str, Buffer], where: str) -> None:
    """Raise PlanError, which says what is wrong and what would be right, unless the call can be made."""
    for name, view in (*step.operands, ("out", step.out)):
        _check_view(view, buffers, f"{where}: {name}")
    _check_out(step, buffers, where)
    dtypes = {name: buffers[view.buffer].spec.dtype for name, view in step.operands}
    dtypes["out"] = buffers[step.out.buffer].spec.dtype
    said = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
    require(len(set(dtypes.values())) == 1, f"{where}: dtypes differ ({said}); all must be one")
    require(dtypes["out"] in FLOATING, f"{where}: {dtypes['out']}; known: {', '.join(FLOATING)}")
    if isinstance(step, Gemm):
        _check_gemm(step, where)
    else:
        _check_convolution(step, where)


def _check_view(view: View, buffers: Mapping[str, Buffer], where: str) -> None:
    buffer = buffers.get(view.buffer)
    require(buffer is not None, f"{where}: no buffer named {view.buffer!r}")
    assert buffer is not None
    require(buffer.kind != "prepacked", f"{where}: {view.buffer!r} is prepacked")
    same = len(view.shape) == len(view.stride)
    require(same, f"{where}: shape {view.shape} and stride {view.stride} differ in length")
    sizes = all(type(n) is int and 1 <= n <= MAX_SIZE for n in view.shape)
    require(sizes, f"{where}: shape {view.shape}; sizes are 1 to {MAX_SIZE}")
    steps = all(type(n) is int and n >= 0 for n in (*view.stride, view.offset))
    require(steps, f"{where}: stride {view.stride}, offset {view.offset}; none is negative")
    extent = buffer.spec.extent
    require(
        view.end <= extent,
        f"{where}: reaches element {view.end - 1} of {view.buffer!r}, which has {extent}",
    )


def _check_out(step: LibraryCall, buffers: Mapping[str, Buffer], where: str) -> None:
    out = step.out
    kind = buffers[out.buffer].kind
    writable = kind in ("output", "temporary")
    require(writable, f"{where}: out is the {kind} {out.buffer!r}; an output or a temporary")
    spec = TensorSpec(buffers[out.buffer].spec.dtype, out.shape, out.stride)
    require(not overlaps(spec), f"{where}: elements of out share memory (stride {out.stride})")
    for name, view in step.operands:
        apart = view.buffer != out.buffer or view.end <= out.offset or out.end <= view.offset
        require(
            apart,
            f"{where}: out and {name} lie in the same part of {out.buffer!r}; write to another buffer",
        )


def _check_gemm(step: Gemm, where: str) -> None:
    a, b, out = step.a.shape, step.b.shape, step.out.shape
    ranks = len(a) == len(b) == len(out) and len(a) in (2, 3)
    fits = ranks and a[:-2] == b[:-2] == out[:-2]
    fits = fits and (*a[-2:-1], *b[-1:]) == out[-2:] and a[-1] == b[-2]
    require(
        fits,
        f"{where}: a {a}, b {b}, out {out}; [m, k], [k, n], [m, n], or all with [batch] before",
    )
    if step.c is not None:
        c = step.c.shape
        pairs = zip(reversed(c), reversed(out), strict=False)
        expands = len(c) <= len(out) and all(own in (1, whole) for own, whole in pairs)
        require(expands, f"{where}: c {c} does not expand to out's {out}")
    _check_work(math.prod(out) * a[-1], where)


def _check_work(count: int, where: str) -> None:
    require(count <= MAX_WORK, f"{where}: {count} multiplications; at most {MAX_WORK}")


def _check_convolution(step: Convolution, where: str) -> None:
    x, weight, out = step.x.shape, step.weight.shape, step.out.shape
    dimensions = len(x) - 2
    ranks = dimensions in (1, 2, 3) and len(x) == len(weight) == len(out)
    require(ranks, f"{where}: x {x}, weight {weight}, out {out}; of 3 to 5 dimensions each")
    _check_numbers(step, dimensions, where)
    groups = step.groups
    rows, columns = weight[:2] if not step.transposed else (weight[1] * groups, weight[0])
    given = x[1] == (columns if step.transposed else columns * groups)
    divides = x[1] % groups == 0 and rows % groups == 0
    require(
        given and divides, f"{where}: weight {weight} with {groups} groups for {x[1]} channels of x"
    )
    wanted = (x[0], rows, *(_length(step, d) for d in range(dimensions)))
    require(out == wanted, f"{where}: out {out}; the convolution gives {wanted}")
    if step.bias is not None:
        require(step.bias.shape == (rows,), f"{where}: bias {step.bias.shape}; ({rows},)")
    orders = [_stride(out, order) for order in _orders(dimensions)]
    dense = any(_same(out, step.out.stride, order) for order in orders)
    require(
        dense,
        f"{where}: out has stride {step.out.stride}; without gaps, {orders[0]} or {orders[1]}",
    )
    terms = math.prod(weight[2:]) * (x[1] // groups)
    _check_work((math.prod(x[2:]) if step.transposed else 1) * math.prod(out) * terms, where)


def _check_numbers(step: Convolution, dimensions: int, where: str) -> None:
    for name, least in (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0)):
        numbers = getattr(step, name)
        fits = len(numbers) == dimensions
        fits = fits and all(type(n) is int and least <= n <= MAX_NUMBER for n in numbers)
        require(fits, f"{where}: {name} {numbers}; {dimensions} numbers, {least} to {MAX_NUMBER}")
    more = zip(step.output_padding, step.stride, step.dilation, strict=True)
    small = all(n < max(a, b) for n, a, b in more)
    allowed = small if step.transposed else not any(step.output_padding)
    require(
        allowed,
        f"{where}: output_padding {step.output_padding}; below stride or dilation, where transposed",
    )
    groups = step.groups
    require(type(groups) is int and 1 <= groups <= MAX_SIZE, f"{where}: groups {groups!r}")


def _length(step: Convolution, d: int) -> int:
    """The result's size along a dimension."""
    size, reach = step.x.shape[d + 2], step.dilation[d] * (step.weight.shape[d + 2] - 1)
    if step.transposed:
        grown = (size - 1) * step.stride[d] - 2 * step.padding[d]
        return grown + reach + step.output_padding[d] + 1
    return (size + 2 * step.padding[d] - reach - 1) // step.stride[d] + 1


def _orders(dimensions: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dimensions from the outermost one on: channels first, channels last."""
    inner = tuple(range(2, dimensions + 2))
    return (0, 1, *inner), (0, *inner, 1)


def _stride(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    steps = contiguous_stride(tuple(shape[d] for d in order))
    return tuple(steps[order.index(d)] for d in range(len(shape)))


def _same(shape: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(n == 1 or a == b for n, a, b in zip(shape, one, other, strict=True))
