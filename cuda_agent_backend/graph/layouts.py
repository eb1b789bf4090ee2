"""The strides that values will have where Inductor chooses them itself: channels last around convolutions.

A post-grad graph says what eager would do. Inductor's layout optimisation then lets convolutions and all that follows
them run channels last; a kernel bound to eager's strides would cost a copy on either side. In float32 that is often
slower than what eager does (the libraries' channels-first kernels are the better ones), so a graph may be compiled
without it, where that was measured to be faster.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._inductor import config
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node

from cuda_agent_backend import log
from cuda_agent_backend.graph.layout_passes import bound_to_eagers

EAGERS = {"layout_optimization": False}
"""Inductor's options with which convolutions keep eager's layouts."""
CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten._convolution.default)


@contextmanager
def choosing(inductor: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Within it, a pass may have Inductor keep eager's layouts (`keep_eagers`), under a user's options of Inductor."""
    with config.patch({**unchosen(), **(inductor or {})}):
        yield


def unchosen() -> dict[str, Any]:
    """Inductor's options as they are. A compilation that is given them puts them back when it ends."""
    return {name: getattr(config, name) for name in EAGERS}


def keep_eagers() -> None:
    """Have the graph that is being compiled keep eager's layouts. To be called within `choosing`, or a compilation that
    was given the `unchosen` options."""
    for name, value in EAGERS.items():
        setattr(config, name, value)


@contextmanager
def inductor_layouts(graph: Graph) -> Iterator[None]:
    """Within it, ``meta["val"]`` of the graph's nodes is what Inductor will make of them. What a graph puts out keeps
    eager's strides: they are promised."""
    chosen = channels_last(graph)
    before = {node: node.meta["val"] for node in chosen}
    for node, value in chosen.items():
        node.meta["val"] = value
    try:
        yield
    finally:
        for node, value in before.items():
            node.meta["val"] = value


def channels_last(graph: Graph) -> dict[Node, Any]:
    """New fake values of the nodes whose strides change; empty where Inductor keeps eager's.

    A graph in which some operator does not take the new strides keeps eager's throughout.
    """
    if not optimised(graph):
        return {}
    mode = _images(graph)[0].meta["val"].fake_mode
    promised = {n for output in graph.find_nodes(op="output") for n in output.all_input_nodes}
    try:
        with mode:
            return _unbound(graph, promised)
    except Exception as error:  # whatever an operator says of strides it does not take
        log.logger("layouts").debug("a graph keeps eager's layouts: %s", error)
        return {}


def optimised(graph: Graph) -> bool:
    """Whether Inductor chooses layouts around convolutions of images itself."""
    return bool(_images(graph)) and _optimises(graph)


def _images(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.target in CONVOLUTIONS and _is_image(n)]


def _is_image(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, FakeTensor) and value.dim() == 4 and _fixed(value)


def _fixed(value: torch.Tensor) -> bool:
    return all(type(n) is int for n in (*value.shape, *value.stride()))


def _optimises(graph: Graph) -> bool:
    from torch._inductor.graph import GraphLowering

    owner = graph.owning_module
    module = owner if owner is not None else torch.fx.GraphModule(torch.nn.Module(), graph)
    return bool(GraphLowering.decide_layout_opt(module, is_inference=True))


def _unbound(graph: Graph, promised: set[Node]) -> dict[Node, Any]:
    """The new values, without those on which an operator depends that reads memory as it lies."""
    while True:  # each round keeps more of eager's strides
        changed = _propagate(graph, promised)
        bound = bound_to_eagers(graph, changed)
        if not bound:
            return changed
        promised = promised | bound


def _propagate(graph: Graph, promised: set[Node]) -> dict[Node, Any]:
    """Run the operators behind convolutions again on values with the new strides."""
    changed: dict[Node, Any] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op != "call_function" or node in promised:
            continue
        if node.target in CONVOLUTIONS:
            if _is_image(node):
                changed[node] = value.contiguous(memory_format=torch.channels_last)
        elif any(read in changed for read in node.all_input_nodes) and _pure(node):
            changed[node] = _like_operands(_again(node, changed), node, changed)
    return {n: v for n, v in changed.items() if _strides(v) != _strides(n.meta["val"])}


def _pure(node: Node) -> bool:
    """Whether an operator can be run again, and Inductor chooses the layout of what it makes."""
    if node.target is operator.getitem:
        return True
    return (
        isinstance(node.target, torch._ops.OpOverload)
        and not node.target._schema.is_mutable
        and node.target.namespace in ("aten", "prims")
    )


def _again(node: Node, changed: dict[Node, Any]) -> Any:
    def value(read: Node) -> Any:
        return changed.get(read, read.meta["val"])

    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), value)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _like_operands(value: Any, node: Node, changed: dict[Node, Any]) -> Any:
    """Channels last wins where operands disagree: what made one of them so is followed by more of its kind."""
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or not value.is_contiguous():
        return value
    same = [read for read in node.all_input_nodes if read in changed]
    shapes = [changed[r].shape for r in same if isinstance(changed[r], torch.Tensor)]
    pointwise = isinstance(node.target, torch._ops.OpOverload) and (
        torch.Tag.pointwise in node.target.tags
    )
    if pointwise and value.shape in shapes and value.shape[1] > 1:
        return value.contiguous(memory_format=torch.channels_last)
    return value


def _strides(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.stride()
    return tuple(map(_strides, value)) if isinstance(value, list | tuple) else None
