"""What an operator of a post-grad graph is to the partition: a view, fusible, a matrix product, or a barrier."""

from __future__ import annotations

import functools
import math
import operator
from enum import Enum
from typing import Any

import torch
from torch.fx import Node

from cuda_agent_backend.graph.convolution_grad import (
    is_sum_of_products,
)
from cuda_agent_backend.graph.gathers import bag_length, overlap_add
from cuda_agent_backend.operators.attention import is_attention
from cuda_agent_backend.operators.poolings import is_adaptive_pooling, values_only
from cuda_agent_backend.operators.products import (
    SMALLEST_PRODUCT,
    is_backward_on_cuda,
    is_product,
    product_sizes,
)
from cuda_agent_backend.operators.recurrent import is_recurrent
from cuda_agent_backend.operators.scatters import is_scatter
from cuda_agent_backend.operators.sorts import is_sort
from cuda_agent_backend.operators.views import is_view
from cuda_agent_backend.rewrite.vanishing import vanishes


class Kind(Enum):
    """What an operator is to the partition."""

    SOURCE = "source"
    """A placeholder or an attribute of the module."""
    VIEW = "view"
    COMPUTE = "compute"
    """Fusible: Inductor has loops for it."""
    CONSTANT = "constant"
    """Fusible and without tensors as inputs."""
    RANDOM = "random"
    """Random numbers, which cannot be replayed."""
    PRODUCT = "product"
    """A matrix product, or on cuda a convolution, that kernels here fuse with what follows it; Inductor calls a
    library."""
    BACKWARD = "backward"
    """The backward of a convolution on cuda. Each of its results is a product that kernels here fuse with what follows,
    or a barrier; the backward is a part of each one's region."""
    VANISHING = "vanishing"
    """A matrix product that a rewrite does away with, which is fusible whatever its size, dtype and device; or one of
    two that are better made in the other order, where kernels here make products of its dtype."""
    ATTENTION = "attention"
    """An attention that kernels here cover as one operator, the result that is used included; or the last operator of
    one that is written out, or of its like without a softmax."""
    RECURRENT = "recurrent"
    """A recurrent layer that kernels here may cover, the results that are used included."""
    SORT = "sort"
    """A sort of rows or a selection of their largest or smallest, the results that are used included."""
    SCATTER = "scatter"
    """A scatter that kernels here cover. It is a region of its own, with what is made for its values alone."""
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
    if kind is Kind.VIEW and not is_view(node):
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
        (is_product, Kind.PRODUCT),
        (is_attention, Kind.ATTENTION),
        (is_recurrent, Kind.RECURRENT),
        (is_sort, Kind.SORT),
        (is_backward_on_cuda, Kind.BACKWARD),
    )
    for test, kind in tests:
        if test(node):
            return kind
    scatters = is_scatter(node) and node.meta["val"].device.type == "cuda"
    return Kind.SCATTER if scatters else Kind.BARRIER


def _is_gathered(node: Node) -> bool:
    """Whether each result is a sum over places that are known, or over as many rows of a table."""
    if bag_length(node) is not None:  # on the cpu eager mode raises where an index is out of range
        value = node.meta["val"][0]
        return bool(value.device.type == "cuda" and values_only(node))
    return overlap_add(node) is not None


def _only_constants(node: Node, kinds: dict[Node, Kind]) -> bool:
    """Pointwise work on constants alone is done anew wherever it is needed, as Inductor does."""
    return all(kinds.get(read) is Kind.CONSTANT for read in node.all_input_nodes)


def _lowered(target: Any) -> bool:
    from torch._inductor import lowering

    return target in lowering.lowerings and target not in lowering.fallbacks
