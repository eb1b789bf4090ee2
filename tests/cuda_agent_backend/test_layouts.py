"""Where Inductor runs convolutions channels last, regions are taken channels last."""

import pytest
import torch
from test_partition import graph_of
from torch import Tensor
from torch.fx import Graph, Node
from torch.nn import functional as F

from cuda_agent_backend.codegen.api import analyse
from cuda_agent_backend.codegen.covered_task import Analysis
from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.graph.layouts import channels_last, inductor_layouts
from cuda_agent_backend.partition.regions import partition

X, W = torch.randn(2, 8, 14, 14), torch.randn(8, 8, 3, 3)


def block(x: Tensor, w: Tensor) -> Tensor:
    y = F.silu(F.conv2d(x, w, padding=1) * 2)
    return F.conv2d(y + x, w, padding=1)


def named(graph: Graph, name: str) -> Node:
    return next(node for node in graph.nodes if name in str(node.target))


def test_what_follows_a_convolution_becomes_channels_last_and_is_put_back() -> None:
    graph = graph_of(block, X, W)
    before = {node: node.meta["val"].stride() for node in graph.nodes if "val" in node.meta}
    with inductor_layouts(graph):
        assert named(graph, "aten.exp").meta["val"].is_contiguous(memory_format=torch.channels_last)
    assert before == {node: node.meta["val"].stride() for node in before}


def test_operands_that_disagree_give_channels_last() -> None:
    graph = graph_of(block, X, W)
    with inductor_layouts(graph):
        assert named(graph, "aten.add").meta["val"].stride() == (1568, 1, 112, 8)


def test_what_a_graph_puts_out_keeps_its_strides() -> None:
    graph = graph_of(lambda x, w: torch.relu(F.conv2d(x, w, padding=1)), X, W)
    with inductor_layouts(graph):
        (region,) = partition(graph)
        found = canonical(region.nodes, region.outputs, region.target)
    assert isinstance(found, Canonical)
    assert found.task.inputs[0].stride == (1568, 1, 112, 8)
    assert found.task.output_specs[0].stride == X.stride()
    assert isinstance(analyse(found.task), Analysis)


@pytest.mark.parametrize(
    "function", [lambda x, w: x * 2, lambda x, w: F.conv1d(x[:, :, 0], w[..., 0]).relu()]
)
def test_graphs_without_convolutions_of_images_keep_their_layouts(function: object) -> None:
    assert channels_last(graph_of(function, X, W)) == {}  # type: ignore[arg-type]


def test_a_graph_with_an_operator_that_does_not_take_the_strides_keeps_its_layouts() -> None:
    graph = graph_of(lambda x, w: F.conv2d(x, w, padding=1).view(2, 4, -1).exp().sum(), X, W)
    assert channels_last(graph) == {}
