"""A layout is changed only under operators whose meaning does not depend on it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from test_partition import graph_of
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.graph.layout_passes import bound_to_eagers
from cuda_agent_backend.graph.layouts import channels_last, inductor_layouts
from cuda_agent_backend.partition.regions import partition
from sandbox.graph.build import build_graph

X, W = torch.randn(1, 16, 8, 8), torch.randn(8, 16, 1, 1)


def reinterpreted(x: Tensor) -> Tensor:
    return F.pad(x, (2, 2, 2, 2)).as_strided([1, 8, 8, 8], [1152, 144, 12, 1], 26)


def regions_agree(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Every region's task, run on what eager gives it in the layout that the task names, gives what eager gives."""
    graph = graph_of(function, *inputs)
    assert graph.owning_module is not None
    values: dict[str, Tensor] = {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> object:
            values[n.name] = result = super().run_node(n)
            return result

    module = torch.fx.GraphModule(graph.owning_module, graph)
    Recorder(module).run(*inputs)
    with inductor_layouts(graph):
        for region in [r for r in partition(graph) if r.reason is None]:
            found = canonical(region.nodes, region.outputs, region.target)
            assert isinstance(found, Canonical)
            given = [
                _laid(values[n.name], s.stride)
                for n, s in zip(found.inputs, found.task.inputs, strict=True)
            ]
            made = build_graph(found.task)(*given)
            for node, output in zip(region.outputs, made, strict=True):
                torch.testing.assert_close(output, values[node.name])


def _laid(value: Tensor, stride: tuple[int, ...]) -> Tensor:
    return torch.empty_strided(value.shape, stride, dtype=value.dtype).copy_(value)


def test_memory_read_as_it_lies_is_that_of_eagers_layout() -> None:
    regions_agree(lambda x, w: reinterpreted(F.conv2d(x, w)) + 1, X, W)


def test_what_an_unlisted_operator_depends_on_keeps_eagers_layout() -> None:
    graph = graph_of(lambda x, w: reinterpreted(torch.relu(F.conv2d(x, w)) * 2) + 1, X, W)
    changed = [node for node in graph.nodes if node.op == "call_function"]
    bound = bound_to_eagers(graph, changed)
    names = {n.target._schema.name.partition("::")[2] for n in bound}
    assert names == {"convolution", "relu", "mul", "constant_pad_nd"}
    assert channels_last(graph) == {}


def test_strides_that_do_not_change_bind_nothing_before_them() -> None:
    def pooled(x: Tensor, w: Tensor) -> Tensor:
        y = torch.relu(F.conv2d(x, w))
        means = (y + 1).mean((2, 3)) * 2
        return y * means.as_strided((8,), (1,))[None, :, None, None] + 1

    names = {n.target._schema.name for n in channels_last(graph_of(pooled, X, W))}
    assert "aten::relu" in names


def test_beside_such_an_operator_layouts_still_change() -> None:
    def both(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return reinterpreted(F.conv2d(x, w)) + 1, F.conv2d(
            torch.relu(F.conv2d(x, w) * 3), w[:, :8]
        ) + 1

    names = {n.target._schema.name for n in channels_last(graph_of(both, X, W))}
    assert "aten::relu" in names


STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "pad": lambda x: F.pad(x, (1, 0, 0, 1)),
    "pool": lambda x: F.avg_pool2d(x, 2, 1),
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 3),
    "permute": lambda x: x.permute(0, 1, 3, 2) * 2,
    "cat": lambda x: torch.cat([x, x + 1], 2),
    "view": lambda x: (x.reshape(x.shape[0], -1, 1, x.shape[3]) + 1).reshape(x.shape),
    "strided": lambda x: x.as_strided(x.shape, x.stride(), 0) - 1,
    "overlapping": lambda x: (x + 0).as_strided((1, 4, 4, 4), (5, 3, 2, 1), 3) + 1,
    "mean": lambda x: x - x.mean((2, 3), keepdim=True),
}


@pytest.mark.parametrize("seed", range(12))
def test_tasks_behind_convolutions_compute_what_the_graph_does(seed: int) -> None:
    chosen = random.Random(seed).choices(sorted(STEPS), k=4)

    def function(x: Tensor, w: Tensor) -> Tensor:
        y = F.conv2d(x, w)
        for name in chosen:
            y = STEPS[name](y)
        return y * 0.5 + 1

    regions_agree(function, X, W)
