"""Which graphs may be replayed from a CUDA graph, and which of their inputs stay where they are."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from cuda_agent_backend.operators.kinds import Kind, kind_of
from cuda_agent_backend.options import CUDAGRAPHS, Options

LEAST_LAUNCHES = 4
"""A graph with fewer launches gains nothing. A library does a recurrent layer in more."""
FUSED = (Kind.SOURCE, Kind.VIEW, Kind.CONSTANT, Kind.COMPUTE)
"""Nodes without a launch of their own."""
NAMESPACES = ("aten", "prims", "cuda_agent")
"""Of operators of which it is known that they do the same on the device each time, and nothing else."""


def replay_is_wanted(options: Options) -> bool:
    """Whether a user's wishes and Inductor's options as they are leave it to us."""
    from torch._inductor import config

    if options.acceptance == "trust" or not options.cudagraphs or options.prepack:
        return False  # a replay would not see that weights have changed
    return not options.inductor.get(CUDAGRAPHS, config.triton.cudagraphs)


def aot_static_inputs() -> tuple[int, ...] | None:
    """Numbers of the parameters and buffers among the inputs of the graph that is being compiled.

    None where the graph changes inputs, or where what it puts out are views, or more than tensors: by what AOTAutograd
    found of it, so only while it compiles.
    """
    context = torch._guards.TracingContext.try_get()
    found = context.fw_metadata if context is not None else None
    if found is None or found.tokens or found.num_intermediate_bases:
        return None
    changes = any(one.mutates_data or one.mutates_metadata for one in found.input_info)
    views = any(one.output_type.name != "non_alias" for one in found.output_info)
    return None if changes or views else tuple(found.static_input_indices)


def may_replay(graph: Graph) -> bool:
    """Whether a post-grad graph does the same each time, on one cuda device, in fixed sizes, in several launches."""
    kinds: dict[Node, Kind] = {}
    devices, launches = set(), 0
    for node in graph.nodes:
        kind = kinds[node] = kind_of(node, kinds)
        if node.op == "output":
            continue
        if kind in (Kind.RANDOM, Kind.MUTATION) or not _known(node):
            return False
        for value in _values(node):
            if not isinstance(value, Tensor) or not _is_fixed(value):
                return False
            devices.add(value.device)
        if node.target is operator.getitem or kind in FUSED:
            continue
        launches += LEAST_LAUNCHES if kind is Kind.RECURRENT else 1
    fused = sum(kind is Kind.COMPUTE for kind in kinds.values())
    one = len(devices) == 1 and devices.pop().type == "cuda"
    return one and launches + min(fused, launches + 1) >= LEAST_LAUNCHES


def copied_bytes(graph: Graph, static_inputs: Sequence[int]) -> int:
    """Of the inputs that a replay copies to where the recording has them: all but parameters, which stay where they
    are."""
    inputs = enumerate(graph.find_nodes(op="placeholder"))
    moving = [value for n, node in inputs if n not in static_inputs for value in _values(node)]
    return sum(value.nbytes for value in moving if isinstance(value, Tensor))


def _known(node: Node) -> bool:
    if node.op in ("placeholder", "get_attr") or node.target is operator.getitem:
        return True
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    return target.namespace in NAMESPACES and torch.Tag.nondeterministic_seeded not in target.tags


def _values(node: Node) -> Sequence[Any]:
    value = node.meta.get("val")
    return value if isinstance(value, list | tuple) else (value,)


def _is_fixed(value: Tensor) -> bool:
    return all(type(number) is int for number in (*value.shape, *value.stride()))


def dynamo_graph_name(gm: GraphModule, inductor: Mapping[str, Any]) -> str:
    """One name for a graph of Dynamo's, its inputs, and the options with which Inductor compiles it."""
    parts = [gm.code, repr(sorted(inductor.items())), str(torch.is_grad_enabled())]
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        parts.append(str(_facts(value) if isinstance(value, Tensor) else value))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _wraps(value: Tensor) -> bool:
    return is_traceable_wrapper_subclass(value)


def _facts(value: Tensor) -> tuple[Any, ...]:
    return tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad


def dynamo_static_inputs(gm: GraphModule) -> tuple[int, ...] | None:
    """As `aot_static_inputs`, of a graph of Dynamo's.

    None where it holds parameters itself, whose places nobody tells, where it has no inputs, or where one is not a
    plain tensor on a cuda device.
    """
    if any(True for _ in (*gm.parameters(), *gm.buffers())):
        return None
    inputs = gm.graph.find_nodes(op="placeholder")
    values = [node.meta.get("example_value") for node in inputs]
    plain = (isinstance(value, Tensor) and value.is_cuda and not _wraps(value) for value in values)
    if not inputs or not all(plain):
        return None
    told = [node.meta.get("tensor_dict", {}) for node in inputs]
    return tuple(n for n, facts in enumerate(told) if facts.get("_dynamo_static_input_type"))
