"""Reductions over windows that Inductor hands to a library: pooling by large windows, adaptive pooling, depthwise
convolutions.

On a GPU small windows are written out tap by tap, so that a thread that makes neighbouring results reads what they
share once; larger ones are loops.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor import config as inductor_config
from torch._inductor import lowering
from torch._inductor.ir import Pointwise, Reduction
from torch._inductor.virtualized import ops
from torch.fx import Node
from torch.utils._sympy.functions import FloorDiv

from cuda_agent_backend.graph.convolution_grad import each
from cuda_agent_backend.operators.poolings import (
    ADAPTIVE_POOLINGS,
    is_adaptive_pooling,
    values_only,
)
from cuda_agent_backend.operators.products import is_depthwise

aten = torch.ops.aten
MOST_TAPS = 96
"""Taps of a window up to which it is written out."""

AVERAGES = {aten.avg_pool2d.default: 2, aten.avg_pool3d.default: 3}
MAXIMA = {aten.max_pool2d_with_indices.default: 2, aten.max_pool3d_with_indices.default: 3}
ADAPTIVE = {
    target: ("max" if "max" in str(target) else "sum", 2 if "2d" in str(target) else 3)
    for target in ADAPTIVE_POOLINGS
}
SMALL = (*AVERAGES, *MAXIMA, torch.ops.prims._low_memory_max_pool_with_offsets.default)
LARGEST_OF_INDUCTOR = 25
"""Taps beyond which Inductor leaves a window to a library."""


def small_windows(target: Any, device: str) -> AbstractContextManager[Any]:
    """Within it Inductor writes out windows of a pooling of up to MOST_TAPS taps."""
    if device != "cuda" or target not in (*SMALL, aten.convolution.default):
        return nullcontext()
    patched: AbstractContextManager[Any] = inductor_config.patch(
        unroll_reductions_threshold=MOST_TAPS + 1
    )
    return patched


def lowered(node: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The results of a pooling that Inductor has no loops for; None for anything else."""
    target: Any = node.target
    if is_depthwise(node):
        return _depthwise(*args, **kwargs)
    if target in AVERAGES:
        return _average(target, *args, **kwargs)
    if target in MAXIMA and values_only(node):
        return _maximum(target, *args, **kwargs)
    if target in ADAPTIVE and is_adaptive_pooling(node):
        kind, dims = ADAPTIVE[target]
        return _adaptive(args[0], tuple(map(int, args[1])), kind, dims)
    return None


def _average(
    target: Any,
    x: Any,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    sliding = _Sliding.of(AVERAGES[target], kernel, stride, padding, (1,))
    if math.prod(sliding.kernel) <= LARGEST_OF_INDUCTOR or sliding.kernel == sliding.stride:
        return None
    total, ceiled = sliding.reduce(x, ceil_mode, "sum", 0.0, _compute_dtype(x))
    dims, dtype = sliding.dims, x.get_dtype()
    if divisor_override or not (ceiled or (any(sliding.padding) and not count_include_pad)):
        return _cast(lowering.div_prim(total, divisor_override or math.prod(sliding.kernel)), dtype)
    size = [int(n) for n in x.get_size()[-dims:]]

    def count(index: Sequence[Any]) -> Any:
        factors = []
        for at, k, s, p, n in zip(
            index[-dims:], sliding.kernel, sliding.stride, sliding.padding, size, strict=True
        ):
            start = at * s - p
            end = sympy.Min(start + k, n + p)
            if not count_include_pad:
                start, end = sympy.Max(start, 0), sympy.Min(end, n)
            factors.append(ops.index_expr(end - start, torch.int32))
        return functools.reduce(ops.mul, factors)

    return _cast(lowering.div_prim(total, _pointwise(x, count, total.get_size())), dtype)


def _maximum(
    target: Any,
    x: Any,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    sliding = _Sliding.of(MAXIMA[target], kernel, stride, padding, dilation)
    dtype = x.get_dtype()
    if math.prod(sliding.kernel) <= LARGEST_OF_INDUCTOR or not dtype.is_floating_point:
        return None
    found, _ = sliding.reduce(x, ceil_mode, "max", -math.inf, dtype)
    return found, None


def _depthwise(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *_: Any,
) -> Any:
    """One filter for each channel. What lies beside the input is no term, as in torch's own kernel: a zero there would
    make NaN of an infinite weight."""
    outputs, _one, *kernel = map(int, weight.get_size())
    dims = len(kernel)
    batch, channels, *size = map(int, x.get_size())
    steps, edges, spread = (each(v, dims) for v in (stride, padding, dilation))
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(size, edges, spread, kernel, steps, strict=True)
    ]
    x.realize()
    read, factor = x.make_loader(), weight.make_loader()

    def inner(index: Sequence[Any], tap: Sequence[Any]) -> Any:
        n, channel, *at = index
        places = [
            i * s + t * d - p for i, t, s, d, p in zip(at, tap, steps, spread, edges, strict=True)
        ]
        own = FloorDiv(channel, outputs // channels)

        def term() -> Any:
            return ops.mul(read([n, own, *places]), factor([channel, 0, *tap]))

        inside = [
            check
            for place, limit, p in zip(places, size, edges, strict=True)
            if p
            for check in (_below(-1, place), _below(place, limit))
        ]
        return ops.masked(functools.reduce(ops.and_, inside), term, 0.0) if inside else term()

    result = _reduction(x, "sum", inner, [batch, outputs, *sizes], kernel, x.get_dtype())
    if bias is None:
        return result
    return lowering.lowerings[aten.add.Tensor](
        result, lowering.lowerings[aten.view.default](bias, [outputs, *[1] * dims])
    )


@dataclass(frozen=True)
class _Sliding:
    """Windows of one size at even steps."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def dims(self) -> int:
        return len(self.kernel)

    @staticmethod
    def of(dims: int, kernel: Any, stride: Any, padding: Any, dilation: Any) -> _Sliding:
        given = (kernel, stride or kernel, padding or (0,), dilation or (1,))
        return _Sliding(*(tuple(each(value, dims)) for value in given))

    def reduce(
        self, x: Any, ceil_mode: bool, kind: str, beside: float, dtype: torch.dtype
    ) -> tuple[Any, bool]:
        """The reduction, and whether windows reach beyond the padding; beside the input there is ``beside``."""
        dims = self.dims
        x.realize_hint()
        batch, size = x.get_size()[:-dims], x.get_size()[-dims:]
        sizes = [
            lowering.pooling_size(
                size[d], d, self.kernel, self.stride, self.padding, ceil_mode,
                dilation=list(self.dilation),
            )
            for d in range(dims)
        ]  # fmt: skip
        ceiled = any(c for _, c in sizes)
        whole = not ceiled and not any(self.padding)
        load = (
            x.make_loader() if whole else lowering.constant_boundary_condition(x, beside, dim=dims)
        )

        def inner(index: Sequence[Any], tap: Sequence[Any]) -> Any:
            steps = zip(index[-dims:], tap, self.stride, self.dilation, self.padding, strict=True)
            return load([*index[:-dims], *(i * s + t * d - p for i, t, s, d, p in steps)])

        ranges = [*batch, *(n for n, _ in sizes)]
        return _reduction(x, kind, inner, ranges, self.kernel, dtype), ceiled


def _adaptive(x: Any, wanted: tuple[int, ...], kind: str, dims: int) -> Any:
    """Windows from the floor of i n / m to the ceiling of (i + 1) n / m, which differ in size."""
    x.realize_hint()
    batch = list(x.get_size()[:-dims])
    size = [int(n) for n in x.get_size()[-dims:]]
    most = [
        max(_end(i, n, m) - i * n // m for i in range(m)) for n, m in zip(size, wanted, strict=True)
    ]
    even = all(n % m == 0 for n, m in zip(size, wanted, strict=True))
    dtype, load = x.get_dtype(), x.make_loader()
    beside = 0.0 if kind == "sum" else -math.inf

    def inner(index: Sequence[Any], tap: Sequence[Any]) -> Any:
        places, inside = [], []
        for at, t, n, m in zip(index[-dims:], tap, size, wanted, strict=True):
            places.append(FloorDiv(at * n, m) + t)
            if n % m:
                inside.append(_below(places[-1], _end(at, n, m)))
        found = [*index[:-dims], *places]
        if even:
            return load(found)
        return ops.masked(functools.reduce(ops.and_, inside), lambda: load(found), beside)

    made = _compute_dtype(x) if kind == "sum" else dtype
    result = _reduction(x, kind, inner, [*batch, *wanted], most, made)
    if kind == "max":
        return result, None

    def count(index: Sequence[Any]) -> Any:
        factors = [
            ops.index_expr(_end(at, n, m) - FloorDiv(at * n, m), torch.int32)
            for at, n, m in zip(index[-dims:], size, wanted, strict=True)
        ]
        return functools.reduce(ops.mul, factors)

    if even:
        return _cast(lowering.div_prim(result, math.prod(most)), dtype)
    return _cast(lowering.div_prim(result, _pointwise(x, count, result.get_size())), dtype)


def _end(at: Any, n: int, m: int) -> Any:
    return ((at + 1) * n + m - 1) // m if isinstance(at, int) else FloorDiv((at + 1) * n + m - 1, m)


def _below(place: Any, end: Any) -> Any:
    return ops.lt(
        ops.index_expr(sympy.sympify(place), torch.int64),
        ops.index_expr(sympy.sympify(end), torch.int64),
    )


def _reduction(
    x: Any,
    kind: str,
    inner: Callable[..., Any],
    ranges: Sequence[Any],
    taps: Sequence[int],
    dtype: torch.dtype,
) -> Any:
    result: Any = Reduction.create(
        reduction_type=kind,  # type: ignore[arg-type]
        input_node=x,
        device=x.get_device(),
        dst_dtype=dtype,
        src_dtype=x.get_dtype(),
        inner_fn=inner,
        ranges=list(ranges),
        reduction_ranges=list(taps),
    )
    if isinstance(result.data.data, Reduction):
        result.realize()
    return result


def _pointwise(x: Any, function: Callable[..., Any], size: Sequence[Any]) -> Any:
    made = Pointwise.create(
        device=x.get_device(), dtype=torch.int32, inner_fn=function, ranges=list(size)
    )
    return lowering.to_dtype(made, _compute_dtype(x))


def _compute_dtype(x: Any) -> torch.dtype:
    """What sums are made in."""
    half = x.get_dtype() in (torch.float16, torch.bfloat16)
    found: torch.dtype = torch.float32 if half else x.get_dtype()
    return found


def _cast(x: Any, dtype: torch.dtype) -> Any:
    return lowering.to_dtype(x, dtype)
