"""What of its operands a part of an operator's result needs: rules by operator, on FX nodes with fake values.

A part is a `Span`: elements `a * unit` to `b * unit` - 1 along a dimension, for any slice from a to b. A rule gives for
each operand the span that it needs, or None for all of it, and what else of the arguments names the size of the result.
An operator without a rule is computed whole. That is right for any operator; it only takes more memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Span:
    """Part of a tensor for a slice a to b: elements a * unit to b * unit - 1 along `dim`."""

    dim: int
    unit: int


Needs = Mapping["torch.fx.Node", Span | None]
"""Of each operand. One that is used twice must be needed alike."""


@dataclass(frozen=True)
class Rule:
    """What a part of a result is made from. sized: a list among the arguments, by its place there, and the index in it
    of what is the result's size along the dimension that is cut."""

    needs: Needs
    sized: tuple[int, int] | None = None


def rule_of(node: torch.fx.Node, span: Span) -> Rule | None:
    """How a part of a node's (first) result is computed; None where only the whole can be."""
    import torch

    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return None
    name = str(target._schema.name).partition("::")[2]
    if name in ("max", "min") and target._overloadname == "other":
        return _pointwise(node, span)
    if name in _RULES:
        return _RULES[name](node, span)
    if torch.Tag.pointwise in target.tags and str(target) not in _OF_BITS:
        return _pointwise(node, span)
    return None


_OF_BITS = frozenset(("aten.view.dtype", "aten.nextafter.default"))


def shape_of(node: torch.fx.Node) -> tuple[int, ...]:
    """Of its value, the first where there are several."""
    value = node.meta["val"]
    value = value[0] if isinstance(value, tuple | list) else value
    return tuple(getattr(value, "shape", ()))


def argument(node: torch.fx.Node, name: str, default: Any = None) -> Any:
    """By its name in the operator's schema."""
    target: Any = node.target
    if name in node.kwargs:
        return node.kwargs[name]
    for place, one in enumerate(target._schema.arguments):
        if one.name == name:
            given = place < len(node.args)
            return (
                node.args[place] if given else (one.default_value if default is None else default)
            )
    return default


def _operands(node: torch.fx.Node) -> list[torch.fx.Node]:
    return [n for n in node.all_input_nodes if "val" in n.meta]


def _aligned(operand: torch.fx.Node, shape: Sequence[int], span: Span) -> Span | None:
    """Of an operand that is broadcast to a shape: the same elements, or all where it has one for all."""
    mine = shape_of(operand)
    dim = span.dim - (len(shape) - len(mine))
    return Span(dim, span.unit) if dim >= 0 and mine[dim] == shape[span.dim] != 1 else None


def _pointwise(node: torch.fx.Node, span: Span) -> Rule | None:
    shape = shape_of(node)
    return Rule({n: _aligned(n, shape, span) for n in _operands(node)})


def _dims(node: torch.fx.Node, rank: int, name: str = "dim") -> set[int]:
    found = argument(node, name)
    if found is None or found == []:
        return set(range(rank))
    return {d % max(rank, 1) for d in (found if isinstance(found, list | tuple) else [found])}


def _reduction(node: torch.fx.Node, span: Span) -> Rule | None:
    operand = _self(node)
    rank = len(shape_of(operand))
    reduced = _dims(node, rank)
    kept = [d for d in range(rank) if d not in reduced or argument(node, "keepdim")]
    dim = kept[span.dim]
    return None if dim in reduced else Rule({operand: Span(dim, span.unit)})


def _along(*names: str) -> Callable[[torch.fx.Node, Span], Rule | None]:
    """Of an operator that goes along some dimensions, named so in its schema: all others are each other's copies."""

    def rule(node: torch.fx.Node, span: Span) -> Rule | None:
        rank = len(shape_of(node))
        if any(span.dim in _dims(node, rank, name) for name in names):
            return None
        return Rule({n: Span(span.dim, span.unit) for n in _operands(node)})

    return rule


def _self(node: torch.fx.Node) -> torch.fx.Node:
    first: torch.fx.Node = node.all_input_nodes[0]
    return first


def _first(most: int) -> Callable[[torch.fx.Node, Span], Rule | None]:
    """Of an operator that treats the first dimensions of its first operand, `most` at most, as a batch; what else it
    takes is needed whole."""

    def rule(node: torch.fx.Node, span: Span) -> Rule | None:
        operand = _self(node)
        if span.dim >= most or shape_of(operand)[: span.dim + 1] != shape_of(node)[: span.dim + 1]:
            return None
        others: dict[torch.fx.Node, Span | None] = dict.fromkeys(_operands(node))
        return Rule({**others, operand: Span(span.dim, span.unit)})

    return rule


def _planes(spatial: int) -> Callable[[torch.fx.Node, Span], Rule | None]:
    """Of windows over the last dimensions: whatever comes before those is a batch."""

    def rule(node: torch.fx.Node, span: Span) -> Rule | None:
        return _first(len(shape_of(node)) - spatial)(node, span)

    return rule


def _convolution(node: torch.fx.Node, span: Span) -> Rule | None:
    batched = len(shape_of(node)) == len(shape_of(argument(node, "weight")))
    return _first(1)(node, span) if batched else None


def _layer_norm(node: torch.fx.Node, span: Span) -> Rule | None:
    return _planes(len(argument(node, "normalized_shape")))(node, span)


def _product(left: str, right: str) -> Callable[[torch.fx.Node, Span], Rule | None]:
    """Of matrices, or batches of them, with or without something added that is broadcast."""

    def rule(node: torch.fx.Node, span: Span) -> Rule | None:
        shape = shape_of(node)
        a, b, added = argument(node, left), argument(node, right), None
        if a is b:
            return None
        if left != "self":
            added = argument(node, "self")
        last = len(shape) - 1
        needs: dict[torch.fx.Node, Span | None] = {
            a: span if span.dim != last else None,
            b: span if span.dim != last - 1 else None,
        }
        if added is not None:
            if added in needs:
                return None
            needs[added] = _aligned(added, shape, span)
        return Rule(needs)

    return rule


def _permute(node: torch.fx.Node, span: Span) -> Rule | None:
    order = [d % len(shape_of(node)) for d in argument(node, "dims")]
    return Rule({_self(node): Span(order[span.dim], span.unit)})


def _transpose(node: torch.fx.Node, span: Span) -> Rule | None:
    rank = len(shape_of(node))
    name = str(node.target)
    pair = (0, 1) if ".t." in name else (argument(node, "dim0"), argument(node, "dim1"))
    order = list(range(rank))
    if rank > 1:
        one, other = (d % rank for d in pair)
        order[one], order[other] = other, one
    return Rule({_self(node): Span(order[span.dim], span.unit)})


def _unsqueeze(node: torch.fx.Node, span: Span) -> Rule | None:
    at = argument(node, "dim") % len(shape_of(node))
    if span.dim == at:
        return None
    return Rule({_self(node): Span(span.dim - (span.dim > at), span.unit)})


def _squeeze(node: torch.fx.Node, span: Span) -> Rule | None:
    operand = _self(node)
    shape = shape_of(operand)
    given = argument(node, "dim")
    gone = set(range(len(shape))) if given is None else _dims(node, len(shape))
    kept = [d for d in range(len(shape)) if d not in gone or shape[d] != 1]
    return Rule({operand: Span(kept[span.dim], span.unit)})


def _expand(node: torch.fx.Node, span: Span) -> Rule | None:
    operand = _self(node)
    return Rule({operand: _aligned(operand, shape_of(node), span)}, (1, span.dim))


def _view(node: torch.fx.Node, span: Span) -> Rule | None:
    operand = _self(node)
    mine, shape = shape_of(operand), shape_of(node)
    if 0 in shape:
        return None
    before, step = math.prod(shape[: span.dim]), span.unit * math.prod(shape[span.dim + 1 :])
    for dim in reversed(range(len(mine))):
        behind = math.prod(mine[dim + 1 :])
        if math.prod(mine[:dim]) == before and step % behind == 0 and mine[dim] > 1:
            return Rule({operand: Span(dim, step // behind)}, (1, span.dim))
    return None


def _full(node: torch.fx.Node, span: Span) -> Rule | None:
    return Rule({}, (0, span.dim))


def _index_select(node: torch.fx.Node, span: Span) -> Rule | None:
    operand, index = argument(node, "self"), argument(node, "index")
    if span.dim in _dims(node, len(shape_of(node))):
        return Rule({operand: None, index: Span(0, span.unit)})
    return Rule({operand: span, index: None})


def _gather(node: torch.fx.Node, span: Span) -> Rule | None:
    operand, index = argument(node, "self"), argument(node, "index")
    if operand is index or span.dim in _dims(node, len(shape_of(node))):
        return None
    return Rule({operand: span, index: span})


def _embedding(node: torch.fx.Node, span: Span) -> Rule | None:
    weight, indices = argument(node, "weight"), argument(node, "indices")
    if span.dim == len(shape_of(node)) - 1:
        return Rule({weight: Span(1, span.unit), indices: None})
    return Rule({weight: None, indices: span})


def _concatenated(node: torch.fx.Node, span: Span) -> Rule | None:
    rank = len(shape_of(node))
    if span.dim in _dims(node, rank) or any(len(shape_of(n)) != rank for n in _operands(node)):
        return None
    return Rule(dict.fromkeys(_operands(node), span))


def _padded(node: torch.fx.Node, span: Span) -> Rule | None:
    pad, rank = argument(node, "pad"), len(shape_of(node))
    return Rule({_self(node): span}) if span.dim < rank - len(pad) // 2 else None


def _select(node: torch.fx.Node, span: Span) -> Rule | None:
    operand = _self(node)
    at = argument(node, "dim") % len(shape_of(operand))
    return Rule({operand: Span(span.dim + (span.dim >= at), span.unit)})


def _index(node: torch.fx.Node, span: Span) -> Rule | None:
    """Of indices of neighbouring dimensions, which are broadcast; where they are apart their dimensions come first."""
    operand, indices = argument(node, "self"), argument(node, "indices")
    given = [place for place, index in enumerate(indices) if index is not None]
    if not given or given != list(range(given[0], given[-1] + 1)) or operand in indices:
        return None
    first, own = given[0], [indices[place] for place in given]
    if any(
        index.meta["val"].dtype.is_floating_point or index.meta["val"].itemsize == 1
        for index in own
    ):
        return None  # a mask selects as many as it says
    rank = max(len(shape_of(index)) for index in own)
    whole: dict[torch.fx.Node, Span | None] = dict.fromkeys(own)
    if first <= span.dim < first + rank:
        shape = shape_of(node)[first : first + rank]
        inner = Span(span.dim - first, span.unit)
        return Rule({operand: None, **{index: _aligned(index, shape, inner) for index in own}})
    behind = span.dim if span.dim < first else span.dim - rank + len(own)
    return Rule({**whole, operand: Span(behind, span.unit)})


def _attention(node: torch.fx.Node, span: Span) -> Rule | None:
    """By batch, by head where no heads share keys and values, and by query where none is hidden from another."""
    query, key, value = (argument(node, name) for name in ("query", "key", "value"))
    plain = not argument(node, "is_causal") and argument(node, "attn_bias") is None
    alone = shape_of(query)[:2] == shape_of(key)[:2]
    if span.dim == 2 and plain and query not in (key, value):
        return Rule({query: span, key: None, value: None})
    if span.dim > 1 or (span.dim == 1 and not alone):
        return None
    needs: dict[torch.fx.Node, Span | None] = dict.fromkeys((query, key, value), span)
    bias = argument(node, "attn_bias")
    if bias is not None:
        needs[bias] = _aligned(bias, shape_of(node), span) if len(shape_of(bias)) == 4 else None
    return Rule(needs)


_BY_DIM = (
    "_softmax",
    "_log_softmax",
    "cumsum",
    "cumprod",
    "logcumsumexp",
    "cummax",
    "cummin",
    "sort",
    "topk",
)
_ALONG = {name: _along("dim") for name in _BY_DIM} | {
    "flip": _along("dims"),
    "rev": _along("dims"),
    "split": _along("dim"),
    "split_with_sizes": _along("dim"),
    "slice": _along("dim"),
}
_REDUCED = (
    *("sum", "mean", "amax", "amin", "var", "std", "var_mean", "logsumexp", "any", "all", "prod"),
    *("linalg_vector_norm", "argmax", "argmin", "max", "min"),
)
_WINDOWS = {
    "max_pool2d_with_indices": 2, "max_pool3d_with_indices": 3, "avg_pool1d": 1, "avg_pool2d": 2, "avg_pool3d": 3,
    "_adaptive_avg_pool2d": 2, "_adaptive_avg_pool3d": 3, "adaptive_max_pool2d": 2, "adaptive_max_pool3d": 3,
    "upsample_nearest1d": 1, "upsample_nearest2d": 2, "upsample_nearest3d": 3, "upsample_bilinear2d": 2,
    "upsample_bicubic2d": 2, "upsample_trilinear3d": 3, "upsample_linear1d": 1, "reflection_pad1d": 1,
    "reflection_pad2d": 2, "reflection_pad3d": 3, "replication_pad1d": 1, "replication_pad2d": 2,
    "replication_pad3d": 3,
}  # fmt: skip
_COPIES = ("_to_copy", "clone", "alias", "detach", "contiguous", "convert_element_type")
_RULES: dict[str, Callable[[torch.fx.Node, Span], Rule | None]] = {
    **_ALONG,
    **dict.fromkeys(_REDUCED, _reduction),
    **{name: _planes(spatial) for name, spatial in _WINDOWS.items()},
    **dict.fromkeys(_COPIES, _pointwise),
    "view": _view,
    "_unsafe_view": _view,
    "reshape": _view,
    "permute": _permute,
    "transpose": _transpose,
    "t": _transpose,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "expand": _expand,
    "full": _full,
    "mm": _product("self", "mat2"),
    "bmm": _product("self", "mat2"),
    "addmm": _product("mat1", "mat2"),
    "baddbmm": _product("batch1", "batch2"),
    "convolution": _convolution,
    "native_layer_norm": _layer_norm,
    "_native_batch_norm_legit_no_training": _first(1),
    "index": _index,
    "index_select": _index_select,
    "gather": _gather,
    "embedding": _embedding,
    "cat": _concatenated,
    "constant_pad_nd": _padded,
    "select": _select,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
}
