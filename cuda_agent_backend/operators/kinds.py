"""What an operator of a post-grad graph is to the partition: a view, fusible, a matrix product, or a barrier."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch.fx import Node

from cuda_agent_backend.graph.convolution_grad import (
    convolution_of,
    is_backward,
    is_gradient,
    is_sum_of_products,
)
from cuda_agent_backend.graph.edit import argument, dtype_of, is_tensor, name_of, shape_of
from cuda_agent_backend.graph.gathers import bag_length, overlap_add
from cuda_agent_backend.graph.matrix_product import PRODUCT_TYPES, PRODUCTS
from cuda_agent_backend.rewrite.vanishing import vanishes
from sandbox.graph import recurrent_ops as recurrent


class Kind(Enum):
    """`SOURCE`: placeholder or attribute. `CONSTANT`: fusible without tensor inputs. `RANDOM`: not replayable.

    `PRODUCT`: a matrix product, or on cuda a convolution, that our sketches fuse with what follows it, where Inductor
    calls a library.
    `BACKWARD`: the backward of a convolution on cuda. Its results are products that our sketches fuse with what follows
    each of them, or barriers; it is a part of each one's region.
    `VANISHING`: a matrix product that a rewrite does away with: fusible, whatever its size, dtype and device; or one of
    two that are better made in the other order, where sketches make products of its dtype.
    `ATTENTION`: an attention that our sketches cover as it stands, its one result that is used included; or the last
    operator of one that is taken apart, or of its like without a softmax.
    `RECURRENT`: a recurrent layer that our sketches may cover, the results that are used included.
    `SORT`: a sort of rows or a selection of their largest or smallest, the results that are used included.
    `SCATTER`: a scatter that our sketches cover, a region of its own, with what is made for its values alone.
    """

    SOURCE = "source"
    VIEW = "view"
    COMPUTE = "compute"
    CONSTANT = "constant"
    RANDOM = "random"
    PRODUCT = "product"
    BACKWARD = "backward"
    VANISHING = "vanishing"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    SORT = "sort"
    SCATTER = "scatter"
    BARRIER = "barrier"
    MUTATION = "mutation"


SCANS = frozenset({"cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"})
"""Inductor fuses them on some targets only; they are tasks on all."""

RANDOM = frozenset(
    {"inductor_random", "inductor_randint", "inductor_lookup_seed", "inductor_rand_eager_offset"}
)

NOT_FUSED = frozenset(
    {
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "convolution",
        "_convolution",
        "_int_mm",
        "_scaled_mm",
        "_scaled_mm_v2",
        "_scaled_grouped_mm",
        "_sparse_semi_structured_mm",
        "_weight_int4pack_mm_for_cpu",
        "_weight_int8pack_mm",
        "mkldnn_rnn_layer",
        "sort",
        "topk",
        "kthvalue",
        "median",
        "mode",
        "searchsorted",
        "scatter",
        "scatter_add",
        "scatter_reduce",
        "index_put",
        "_unsafe_index_put",
        "_unsafe_masked_index_put_accumulate",
        "as_strided_scatter",
        "fractional_max_pool2d",
        "fractional_max_pool3d",
        "adaptive_max_pool2d",
        "_jagged_to_padded_dense_forward",
        "_padded_dense_to_jagged_forward",
        "_local_scalar_dense",
        "sym_size",
        "sym_stride",
        "sym_numel",
        "sym_constrain_range",
        "_assert_async",
        "_assert_scalar",
        "_assert_tensor_metadata",
        "_functional_assert_async",
        "resize",
        "inductor_seed",
        "inductor_seeds",
        "_make_token",
        "_sink_tokens",
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "inductor_force_stride_order",
        "device_put",
    }
)
"""Extern kernels, scatters (Inductor lowers them to mutations), uninitialised memory, and what has effects."""


ADAPTIVE_POOLINGS = (
    torch.ops.aten._adaptive_avg_pool2d.default,
    torch.ops.aten._adaptive_avg_pool3d.default,
    torch.ops.aten.adaptive_max_pool2d.default,
    torch.ops.aten.adaptive_max_pool3d.default,
)
"""Those of the larger windows are extern kernels to Inductor."""
SMALLEST_PRODUCT = {"cpu": 1 << 20, "cuda": 1 << 16}
"""Multiplications, by target: below them a library's call is over before threads of ours have met on the cpu. On cuda a
library's smallest call takes 5 to 10 us, that of a kernel with its bias and what follows 3."""
_HALF_HEADS = {torch.float16: 256, torch.bfloat16: 256}
ATTENTION = {
    "cpu": {"_scaled_dot_product_flash_attention_for_cpu": {torch.float32: 256}},
    "cuda": {
        "_scaled_dot_product_efficient_attention": {torch.float32: 256, **_HALF_HEADS},
        "_scaled_dot_product_flash_attention": _HALF_HEADS,
        "_scaled_dot_product_cudnn_attention": _HALF_HEADS,
    },
}
"""The operators of each target for which there are sketches: the largest head in each dtype."""
SQUARE_WHERE_CAUSAL = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention")
"""Those whose causal mask is a settled one only for as many queries as keys: it begins at the first of them, or ends at
the last, by the library's version."""
SORTS = frozenset({"aten.sort.default", "aten.sort.stable", "aten.topk.default"})
"""Libraries run them; there are sketches for those of cuda."""
LONGEST_SORT = 8192
"""Elements of a row that fit into a block's shared memory, positions included."""
LARGEST_SELECTION = 256
SHORTEST_SORTS = 1 << 12
"""Elements in all below which the time is that of a launch."""
SORTED_DTYPES = frozenset(
    {
        torch.float32, torch.float64, torch.float16, torch.bfloat16,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    }
)  # fmt: skip
VIEWS_OF_AN_INDEX = (
    torch.ops.aten.unsqueeze.default,
    torch.ops.aten.expand.default,
    torch.ops.aten.permute.default,
)
"""Views that a region of a scatter takes in."""
SCATTERS = ("scatter_add", "scatter_reduce")
MASKED_PUT = "_unsafe_masked_index_put_accumulate"
"""What the gradient of a table of embeddings is: rows at its padding are left out."""
PUTS = ("index_put", "_unsafe_index_put", MASKED_PUT)
"""Scatters of whole slices, by what an index along one dimension names, where they add."""


@functools.cache
def kind_of_target(target: Any) -> Kind:
    """The kind of a call's target, apart from what its arguments say."""
    if not isinstance(target, torch._ops.OpOverload):
        return Kind.MUTATION if "mutation" in getattr(target, "__name__", "") else Kind.BARRIER
    schema = target._schema
    if schema.is_mutable:
        return Kind.MUTATION
    name = schema.name.partition("::")[2]
    if name in RANDOM:
        return Kind.RANDOM
    if (
        target.namespace not in ("aten", "prims")
        or name in NOT_FUSED
        or name.startswith("_foreach")
    ):
        return Kind.BARRIER
    if any(result.alias_info is not None for result in schema.returns):
        return Kind.VIEW
    if name not in SCANS and not _lowered(target):
        return Kind.BARRIER
    return Kind.RANDOM if torch.Tag.nondeterministic_seeded in target.tags else Kind.COMPUTE


def kind_of(node: Node, kinds: dict[Node, Kind]) -> Kind:
    """The kind of a node; `kinds` holds those of all nodes before it."""
    if node.op in ("placeholder", "get_attr"):
        return Kind.SOURCE
    if node.op != "call_function":
        return Kind.BARRIER
    if node.target is operator.getitem:
        return _kind_of_selection(node, kinds)
    kind = kind_of_target(node.target)
    if kind is Kind.BARRIER:
        return _kind_of_barrier(node)
    if kind in (Kind.COMPUTE, Kind.VIEW) and _only_constants(node, kinds):
        return Kind.CONSTANT
    if kind is Kind.VIEW and not _is_view(node):
        return Kind.COMPUTE
    return kind


def _kind_of_selection(node: Node, kinds: dict[Node, Kind]) -> Kind:
    whole = node.args[0]
    kind = kinds[whole] if isinstance(whole, Node) else Kind.BARRIER
    if kind is not Kind.BACKWARD:
        return kind
    large = math.prod(product_sizes(node)) >= SMALLEST_PRODUCT["cuda"]
    return Kind.PRODUCT if large and is_sum_of_products(node) else Kind.BARRIER


def _kind_of_barrier(node: Node) -> Kind:
    """What an operator that Inductor does not fuse is to us."""
    if is_adaptive_pooling(node) or _is_gathered(node):
        return Kind.COMPUTE
    return Kind.VANISHING if vanishes(node) else kind_of_lasting(node)


def kind_of_lasting(node: Node) -> Kind:
    """What an operator of an extern kernel is that does not vanish, or not where it stands."""
    tests = (
        (_is_product, Kind.PRODUCT),
        (_is_attention, Kind.ATTENTION),
        (_is_recurrent, Kind.RECURRENT),
        (is_sort, Kind.SORT),
        (_is_backward_on_cuda, Kind.BACKWARD),
    )
    for test, kind in tests:
        if test(node):
            return kind
    scatters = is_scatter(node) and node.meta["val"].device.type == "cuda"
    return Kind.SCATTER if scatters else Kind.BARRIER


def viewable(shape: tuple[int, ...], stride: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a tensor can be viewed with another shape without a copy."""
    sizes = [(n, s) for n, s in zip(shape, stride, strict=True) if n != 1]
    targets = [n for n in wanted if n != 1]
    if not all(n for n in shape):
        return True
    chunks: list[int] = []
    for position, (size, step) in enumerate(sizes):
        if position and sizes[position - 1][1] == size * step:
            chunks[-1] *= size
        else:
            chunks.append(size)
    for chunk in chunks:
        while chunk > 1 and targets and chunk % targets[0] == 0:
            chunk //= targets.pop(0)
        if chunk != 1:
            return False
    return True


def _is_view(node: Node) -> bool:
    if "reshape" not in str(node.target):
        return True
    source = node.args[0]
    before = source.meta.get("val") if isinstance(source, Node) else None
    after = node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    numbers = (*before.shape, *before.stride(), *after.shape)
    if not all(type(number) is int for number in numbers):
        return True
    return viewable(tuple(before.shape), tuple(before.stride()), tuple(after.shape))


def _is_product(node: Node) -> bool:
    """Whether there are sketches for a node as a matrix product, or on cuda a convolution: of fixed size."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    result = node.meta.get("val")
    if not isinstance(result, torch.Tensor) or result.dtype not in PRODUCT_TYPES.get(
        result.device.type, ()
    ):
        return False
    targets = ("cuda",) if is_convolution(node) else ("cpu", "cuda")
    target, sizes = result.device.type, product_sizes(node)
    if not sizes or target not in targets:
        return False
    return all(type(n) is int for n in sizes) and math.prod(sizes) >= SMALLEST_PRODUCT[target]


def _is_backward_on_cuda(node: Node) -> bool:
    if not is_backward(node):
        return False
    values = [read.meta["val"] for read in node.all_input_nodes]
    types = PRODUCT_TYPES["cuda"]
    return all(x.device.type == "cuda" and x.dtype in types for x in values)


def is_convolution(node: Node) -> bool:
    """Whether a node is a convolution in one to three dimensions; a transposed one has a stride or a dilation of 1."""
    result = node.meta.get("val")
    if node.target is not torch.ops.aten.convolution.default:
        return False
    dilation, transposed = node.args[5], node.args[6]
    stride = node.args[3]
    plain = any(
        isinstance(numbers, list | tuple) and all(n == 1 for n in numbers)
        for numbers in (stride, dilation)
    )
    dims = result.dim() - 2 if isinstance(result, torch.Tensor) else 0
    return 1 <= dims <= 3 and (plain or not transposed)


def is_copy(node: Node) -> bool:
    """Whether a node moves values of its one operand and makes none: a copy, or a change of shape that takes one."""
    return node.target in (torch.ops.aten.clone.default, torch.ops.aten.reshape.default)


def is_zero_padding(node: Node) -> bool:
    """Whether a node puts zeros around its operand, or cuts it off."""
    if node.target is not torch.ops.aten.constant_pad_nd.default:
        return False
    return not (node.args[2] if len(node.args) > 2 else node.kwargs.get("value", 0))


def is_adaptive_pooling(node: Node) -> bool:
    """Whether a node is an adaptive pooling for which there are sketches: of real numbers, without their places."""
    if node.target not in ADAPTIVE_POOLINGS or not isinstance(node.args[0], Node):
        return False
    value = node.args[0].meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return False
    return "max" not in str(node.target) or values_only(node)


def _is_gathered(node: Node) -> bool:
    """Whether each result is a sum over places that are known, or over as many rows of a table."""
    if bag_length(node) is not None:  # on the cpu eager mode raises where an index is out of range
        value = node.meta["val"][0]
        return bool(value.device.type == "cuda" and values_only(node))
    return overlap_add(node) is not None


def values_only(node: Node) -> bool:
    """Whether nobody wants to know where the maxima of a pooling are."""
    return all(u.target is operator.getitem and (u.args[1] == 0 or not u.users) for u in node.users)


def is_depthwise(node: Node) -> bool:
    """Whether a node is a convolution on cuda with one input channel to a filter and several in all."""
    if (
        not is_convolution(node)
        or node.args[6]
        or node.meta["val"].dtype not in PRODUCT_TYPES["cuda"]
    ):
        return False
    weight = node.args[1].meta["val"]  # type: ignore[union-attr]
    return bool(weight.shape[1] == 1 and node.args[8] != 1)


def product_sizes(node: Node) -> tuple[int, ...]:
    """Whose product is the number of multiplications of a matrix product, a convolution or a gradient of one; () of any
    other node."""
    if is_gradient(node):
        return convolution_of(node.args[0]).sizes  # type: ignore[arg-type]
    if not isinstance(node.target, torch._ops.OpOverload):
        return ()
    convolution = is_convolution(node)
    if not convolution and node.target._schema.name.partition("::")[2] not in PRODUCTS:
        return ()
    left, right = node.args[:2] if convolution else node.args[-2:]
    if not isinstance(left, Node) or not isinstance(right, Node):
        return ()
    sizes, result = right.meta["val"].shape, node.meta["val"].shape
    if not convolution:
        return (*result, sizes[-2])
    return (*(left.meta["val"].shape if node.args[6] else result), *sizes[1:])


def _is_attention(node: Node) -> bool:
    """Whether a node is an attention for which there are sketches: of fixed size, for inference only."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = node.target._schema.name.partition("::")[2]
    operands = [a.meta.get("val") if isinstance(a, Node) else None for a in node.args[:3]]
    tensors = [x for x in operands if isinstance(x, torch.Tensor) and x.dim() == 4]
    if len(tensors) != 3 or any(x.dtype != tensors[0].dtype for x in tensors):
        return False
    largest = ATTENTION.get(tensors[0].device.type, {}).get(name, {}).get(tensors[0].dtype, 0)
    if not all(type(n) is int for x in tensors for n in (*x.shape, *x.stride())):
        return False
    if any(
        user.target is not operator.getitem or (user.args[1] and user.users) for user in node.users
    ):
        return False
    names = (argument.name for argument in node.target._schema.arguments)
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    head, work = tensors[0].shape[3], tensors[0].numel() * tensors[1].shape[2]
    square = tensors[0].shape[2] == tensors[1].shape[2]
    return (
        (square or not given.get("is_causal") or name not in SQUARE_WHERE_CAUSAL)
        and not given.get("dropout_p")
        and head % 8 == 0
        and head <= largest
        and work >= SMALLEST_PRODUCT[tensors[0].device.type]
    )


def _is_recurrent(node: Node) -> bool:
    """Whether a node is a recurrent layer for which there are sketches: on cuda, float32 of fixed size."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != recurrent.NAMESPACE:
        return False
    if target._schema.name.partition("::")[2] not in recurrent.KINDS:
        return False
    values = [read.meta.get("val") for read in node.all_input_nodes]
    return all(
        isinstance(x, torch.Tensor)
        and (x.device.type, x.dtype) == ("cuda", torch.float32)
        and all(type(n) is int for n in (*x.shape, *x.stride()))
        for x in values
    )


def is_sort(node: Node) -> bool:
    """Whether a node is a sort or a selection for which there are sketches: on cuda, rows of fixed size."""
    if str(node.target) not in SORTS or not isinstance(node.args[0], Node):
        return False
    value = node.args[0].meta.get("val")
    if not isinstance(value, torch.Tensor) or value.device.type != "cuda" or not value.dim():
        return False
    if not all(type(n) is int for n in (*value.shape, *value.stride())):
        return False
    if value.dtype not in SORTED_DTYPES or value.numel() < SHORTEST_SORTS:
        return False
    names = (argument.name for argument in node.target._schema.arguments)  # type: ignore[union-attr]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    if "k" in given:
        few = type(given["k"]) is int and 1 <= given["k"] <= LARGEST_SELECTION
        return few and given.get("sorted", True) is True
    dim = given.get("dim", -1)
    return isinstance(dim, int) and 2 <= value.shape[dim] <= LONGEST_SORT


@dataclass(frozen=True)
class Scattered:
    """What a scatter reads, and along which dimension.

    spread: how many dimensions of the source stand for that one; a put has those of its index there. wraps: whether an
    index below zero counts from the end. mask: where it is false, nothing goes anywhere.
    """

    into: Node
    index: Node
    source: Node
    dim: int
    how: str
    spread: int = 1
    wraps: bool = False
    mask: Node | None = None


def scattered(node: Node) -> Scattered | None:
    """What a scatter reads, be there a sketch for it or not; None of anything else, as a put by several indices."""
    name = name_of(node)
    if name in SCATTERS:
        into, index, source = (argument(node, key) for key in ("self", "index", "src"))
        if not all(is_tensor(x) for x in (into, index, source)) or not shape_of(into):
            return None
        how = "sum" if name == "scatter_add" else str(argument(node, "reduce"))
        return Scattered(into, index, source, argument(node, "dim") % len(shape_of(into)), how)
    if name not in PUTS or (name != MASKED_PUT and argument(node, "accumulate") is not True):
        return None
    into, indices, source = (argument(node, key) for key in ("self", "indices", "values"))
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(given) != 1 or not all(is_tensor(x) for x in (into, given[0][1], source)):
        return None
    ((dim, index),) = given
    mask = argument(node, "mask") if name == MASKED_PUT else None
    return Scattered(into, index, source, dim, "sum", len(shape_of(index)), True, mask)


def is_scatter(node: Node) -> bool:
    """Whether a node is a scatter for which there are sketches: float32 of fixed size, values where the index names a
    place, results in any order of additions."""
    found = scattered(node)
    if found is None or torch.are_deterministic_algorithms_enabled():
        return False
    into, index, source = found.into, found.index, found.source
    floats = (node, into, source)
    places = (torch.int32, torch.int64)
    if any(dtype_of(x) != torch.float32 for x in floats) or dtype_of(index) not in places:
        return False
    if found.how not in ("sum", "amax", "amin"):
        return False
    if name_of(node) == "scatter_reduce" and argument(node, "include_self") is not True:
        return False
    constants = [argument(x, "fill_value") for x in (into, source) if name_of(x) == "full"]
    return _is_whole(found) and all(
        isinstance(x, int | float) and math.isfinite(x) for x in constants
    )


def _is_whole(found: Scattered) -> bool:
    """Whether values go to all that lies beside a scatter's dimension, and each has a place of its own in the index."""
    into, index, source = map(shape_of, (found.into, found.index, found.source))
    before, behind = into[: found.dim], into[found.dim + 1 :]
    if found.mask is not None and shape_of(found.mask) != (*index, *(1 for _ in behind)):
        return False
    if found.wraps:
        return bool(index) and source == (*before, *index, *behind)
    return index == source and (*index[: found.dim], *index[found.dim + 1 :]) == (*before, *behind)


def _only_constants(node: Node, kinds: dict[Node, Kind]) -> bool:
    """Pointwise work on constants alone is done anew wherever it is needed, as Inductor does."""
    return all(kinds.get(read) is Kind.CONSTANT for read in node.all_input_nodes)


def _lowered(target: Any) -> bool:
    from torch._inductor import lowering

    return target in lowering.lowerings and target not in lowering.fallbacks
