"""Operators that a changed layout may pass through: those whose result, as numbers, does not depend on strides.

What is not listed reads its operand's memory as it lies (``as_strided``), or nobody has looked at it. All that such an
operator's operand is made of keeps eager's layout, since a region that holds both is run again from its inputs on.
"""

from __future__ import annotations

import operator
from collections.abc import Collection

import torch
from torch.fx import Graph, Node

MOVES = frozenset(
    ["_conj", "_reshape_alias", "_to_copy", "_unsafe_view", "alias", "cat", "clone", "constant_pad_nd",
     "convert_element_type", "copy", "copy_", "detach", "diagonal", "diagonal_scatter", "expand", "flip",
     "gather", "index", "index_select", "permute", "pixel_shuffle", "pixel_unshuffle", "reflection_pad1d",
     "reflection_pad2d", "reflection_pad3d", "repeat", "replication_pad2d", "replication_pad3d", "reshape",
     "roll", "select", "select_scatter", "slice", "slice_scatter", "split", "split_with_sizes", "squeeze",
     "stack", "t", "transpose", "tril", "triu", "unbind", "unfold", "unsqueeze", "view"]
)  # fmt: skip
"""Views by dimensions and copies: each element has a place by its indices."""
REDUCES = frozenset(
    ["all", "amax", "amin", "any", "argmax", "argmin", "cumprod", "cumsum", "logcumsumexp", "logsumexp", "max",
     "mean", "min", "prod", "std", "std_mean", "sum", "var", "var_mean", "_softmax", "_log_softmax", "sort", "topk",
     "_softmax_backward_data", "_log_softmax_backward_data", "native_batch_norm", "native_group_norm",
     "native_layer_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
     "_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_no_update", "linalg_vector_norm",
     "native_batch_norm_backward", "native_group_norm_backward", "native_layer_norm_backward"]
)  # fmt: skip
WINDOWS = frozenset(
    ["_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d", "adaptive_max_pool2d",
     "adaptive_max_pool3d", "avg_pool2d", "avg_pool2d_backward", "avg_pool3d", "avg_pool3d_backward", "col2im",
     "im2col", "grid_sampler_2d", "max_pool2d_with_indices", "max_pool2d_with_indices_backward",
     "max_pool3d_with_indices", "_low_memory_max_pool_with_offsets", "_low_memory_max_pool_offsets_to_indices",
     "_low_memory_max_pool2d_with_offsets", "_low_memory_max_pool2d_offsets_to_indices",
     "upsample_bicubic2d", "upsample_bilinear2d", "upsample_nearest2d", "_upsample_nearest_exact2d",
     "upsample_bilinear2d_backward", "upsample_nearest2d_backward"]
)  # fmt: skip
PRODUCTS = frozenset(
    ["_convolution", "addmm", "baddbmm", "bmm", "convolution", "convolution_backward", "dot", "mm", "mv",
     "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
     "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention"]
)  # fmt: skip
MAKES = frozenset(
    ["empty_like", "full_like", "new_empty", "new_full", "new_ones", "new_zeros", "ones_like", "zeros_like",
     "index_put", "scatter", "scatter_add", "scatter_reduce", "index_add", "embedding", "masked_scatter"]
)  # fmt: skip
PASSES = MOVES | REDUCES | WINDOWS | PRODUCTS | MAKES
NAMESPACES = ("aten", "prims")


def may_pass(node: Node) -> bool:
    """Whether a node computes the same numbers from operands in any layout."""
    target = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target.namespace not in NAMESPACES:
        return True  # no region holds it, and Inductor gives it the strides that it was traced with
    name = target._schema.name.partition("::")[2]
    return torch.Tag.pointwise in target.tags or name in PASSES or not node.all_input_nodes


def bound_to_eagers(graph: Graph, changed: Collection[Node]) -> set[Node]:
    """Of the nodes whose strides would change, those that an operator depends on which a layout may not pass: what it
    reads, and what that is made of."""
    bound: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "call_function" and (node in bound or not may_pass(node)):
            bound.update(read for read in node.all_input_nodes if read in changed)
    return bound
