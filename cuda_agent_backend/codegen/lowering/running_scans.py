"""Scans that Inductor hands to ATen, or writes in a way that says less: running extremes and the places of these,
running sums of exponentials.

A place is found by a scan of its own, of whole numbers of 64 bits: above what orders the values, below where they are.
The largest such number belongs to the last of the largest values, as eager has it, and to the last NaN after any.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir, lowering
from torch._inductor.virtualized import V, ops
from torch.fx import Node

from cuda_agent_backend.graph.edit import dtype_of, is_tensor, name_of
from cuda_agent_backend.graph.layout_passes import MOVES
from cuda_agent_backend.operators.poolings import values_only
from cuda_agent_backend.operators.views import is_zero_padding

aten = torch.ops.aten
EXTREMES = {aten.cummax.default: "maximum", aten.cummin.default: "minimum"}
ORDERED = (
    torch.float32, torch.float16, torch.bfloat16,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
"""Values whose order 32 bits hold."""
PLACE_BITS = 32
LARGEST_ORDER = (1 << 31) - 1
"""That of NaN."""
MOVED = (MOVES | {"rev"}) - {"constant_pad_nd"}
"""Operators that compute no value. What padding puts in need not be a number of half precision."""


def lowered(node: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The results of a scan; None for anything else, and for what only ATen does."""
    target: Any = node.target
    if target in EXTREMES:
        return _extremes(node, *args, **kwargs)
    if target is aten.logcumsumexp.default and not is_rounded_before(node):
        return _scan("logaddexp", *args, **kwargs)
    return None


def is_rounded_before(node: Node) -> bool:
    """Whether a scan is of what was computed in half precision. Inductor hands it to ATen, with that rounded; in a
    gradient it is a difference of large numbers, and without the rounding e to its power was 2.7 times as far off."""
    x: Any = node.args[0]
    dtype = x.meta["val"].dtype
    if dtype not in (torch.float16, torch.bfloat16):
        return False
    found, waiting = {x}, [x]
    while waiting:  # through what only moves values
        one = waiting.pop()
        if one.op != "call_function":
            continue
        values = _moved_by(one, dtype)
        if values is None:
            return True
        waiting += values - found
        found |= values
    return False


def _moved_by(node: Node, dtype: torch.dtype) -> set[Node] | None:
    """The nodes whose values, of ``dtype``, are those of a node but for zeros; None where it computes or converts."""
    read = set(node.all_input_nodes)
    if node.target is operator.getitem:  # of a split, or of what computes
        return read
    if not (is_zero_padding(node) or name_of(node) in MOVED):
        return None
    return read if all(is_tensor(x) and dtype_of(x) == dtype for x in read) else None


def _extremes(node: Node, x: Any, dim: int) -> Any:
    operation = EXTREMES[node.target]  # type: ignore[index]
    if values_only(node):
        found = _scan(operation, x, dim)
        return None if found is None else (found, None)
    if x.get_dtype() not in ORDERED:
        return None
    if not x.get_size():
        return lowering.clone(x), _pointwise(x, lambda _: ops.constant(0, torch.int64))
    x.realize_hint()  # both scans read it
    return _scan(operation, x, dim), _places(x, dim, smallest=operation == "minimum")


def _scan(operation: str, x: Any, dim: int) -> Any:
    """``operation`` is what the two halves of a scan are joined by, as the sketches know it."""
    if not x.get_size():
        return None
    return _joined(operation, lowering._make_scan_inner(x, axis=dim, dtype=x.get_dtype()))


def _joined(operation: str, inner: dict[str, Any]) -> Any:
    def join(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        handler: Any = V.get_ops_handler()
        return (handler._default(operation, (a[0], b[0]), {}),)

    (found,) = ir.Scan.create(**inner, combine_fn=join)
    return found


def _places(x: Any, dim: int, smallest: bool) -> Any:
    """Where the running extreme of each element lies along ``dim``, int64."""
    inner = lowering._make_scan_inner(x, axis=dim, dtype=x.get_dtype())
    load, dtype, axis = x.make_loader(), x.get_dtype(), inner["axis"]

    def key(index: Sequence[Any]) -> Any:
        order = ops.to_dtype(_order(load(index), dtype, smallest), torch.int64)
        above = ops.bitwise_left_shift(order, ops.constant(PLACE_BITS, torch.int64))
        return ops.bitwise_or(above, ops.index_expr(sympy.sympify(index[axis]), torch.int64))

    found = _joined("maximum", {**inner, "dtypes": (torch.int64,), "inner_fns": (key,)})
    read = found.make_loader()
    mask = (1 << PLACE_BITS) - 1
    return _pointwise(x, lambda at: ops.bitwise_and(read(at), ops.constant(mask, torch.int64)))


def _order(value: Any, dtype: torch.dtype, smallest: bool) -> Any:
    """A whole number, int32, the larger the further a value is towards the extreme; equal ones of equal values."""
    if not dtype.is_floating_point:
        whole = ops.to_dtype(value, torch.int32)
        return ops.bitwise_not(whole) if smallest else whole

    def number(n: int) -> Any:
        return ops.constant(n, torch.int32)

    value = ops.to_dtype(value, torch.float32)
    zero = ops.constant(0.0, torch.float32)
    unsigned = ops.where(ops.eq(value, zero), zero, value)  # -0.0 is as large as 0.0
    bits = ops.to_dtype_bitcast(unsigned, torch.int32, torch.float32)
    negative = ops.bitwise_right_shift(bits, number(31))
    order = ops.bitwise_xor(bits, ops.bitwise_and(negative, number(LARGEST_ORDER)))
    if smallest:
        order = ops.bitwise_not(order)
    return ops.where(ops.isnan(value), number(LARGEST_ORDER), order)


def _pointwise(x: Any, function: Callable[[Sequence[Any]], Any]) -> Any:
    """Whole numbers for each element of ``x``, int64."""
    return ir.Pointwise.create(
        device=x.get_device(), dtype=torch.int64, inner_fn=function, ranges=x.get_size()
    )
