"""Bilinear forms are written as products, where what is between is small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.fx import GraphModule
from torch.nn import functional as F

from cuda_agent_backend.frontend import bilinear
from cuda_agent_backend.frontend.decompose import decompose


def targets_of(model: nn.Module, *inputs: torch.Tensor) -> tuple[torch.Tensor, set[Any]]:
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        decompose(gm)
        graphs.append(gm)
        return gm.forward

    torch._dynamo.reset()
    found = torch.compile(model, backend=backend)(*inputs)
    return found, {node.target for gm in graphs for node in gm.graph.nodes}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7,), (3, 2), ()])
def test_a_form_is_a_product_and_a_sum(shape: tuple[int, ...], bias: bool) -> None:
    model = nn.Bilinear(4, 5, 6, bias=bias)
    left, right = torch.randn(*shape, 4), torch.randn(*shape, 5, requires_grad=True)
    found, targets = targets_of(model, left, right)
    assert torch.bilinear not in targets
    torch.testing.assert_close(found, model(left, right))
    want = torch.autograd.grad(model(left, right).sum(), right)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), right), want)


def strided(shape: Sequence[int], layout: str) -> torch.Tensor:
    """Random values without gaps, in another order of dimensions, or at every second place."""
    if layout == "transposed":
        return torch.randn(shape).transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "gaps":
        return torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]
    return torch.randn(shape)


@pytest.mark.parametrize("rows", [(), (1,), (3,), (2, 3)])
@pytest.mark.parametrize("layout", ["plain", "transposed", "gaps"])
def test_gradients_lie_in_memory_as_the_operators_own(layout: str, rows: tuple[int, ...]) -> None:
    def backend(gm: GraphModule, inputs: Any) -> Any:
        assert decompose(gm)
        return aot_eager(gm, inputs)

    shapes = ((*rows, 4), (*rows, 5), (6, 4, 5))
    given = [strided(shape, layout).requires_grad_() for shape in shapes]
    torch._dynamo.reset()
    found = torch.compile(F.bilinear, backend=backend, dynamic=False)(*given)
    want = F.bilinear(*given)
    pairs = zip(
        torch.autograd.grad(found.sum(), given), torch.autograd.grad(want.sum(), given), strict=True
    )
    for own, other in pairs:
        torch.testing.assert_close(own, other, check_stride=1 not in other.shape)


def test_what_would_be_large_between_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bilinear, "MOST_BYTES", 4 * 7 * 4 * 6 - 1)
    _, targets = targets_of(nn.Bilinear(4, 5, 6), torch.randn(7, 4), torch.randn(7, 5))
    assert torch.bilinear in targets


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64, torch.complex64])
def test_a_form_of_other_than_floating_numbers_stays_and_keeps_its_type(dtype: torch.dtype) -> None:
    given = [torch.ones(shape, dtype=dtype) for shape in ((7, 4), (7, 5), (6, 4, 5), (6,))]
    targets = []

    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        assert not decompose(gm)
        targets.extend(node.target for node in gm.graph.nodes)
        return gm.forward

    torch._dynamo.reset()
    found = torch.compile(F.bilinear, backend=backend, dynamic=False)(*given)
    assert torch.bilinear in targets and found.dtype == dtype


@pytest.mark.parametrize("unknown", ["input1", "input2", "weight", "none"])
def test_a_form_of_operands_without_known_values_stays(unknown: str) -> None:
    shapes = {"input1": (7, 4), "input2": (7, 5), "weight": (6, 4, 5)}
    graph = torch.fx.Graph()
    given = {name: graph.placeholder(name) for name in shapes}
    for name, node in given.items():
        if name != unknown:
            node.meta["example_value"] = torch.empty(shapes[name])
    graph.output(graph.call_function(torch.bilinear, tuple(given.values())))
    assert decompose(GraphModule(nn.Module(), graph)) == (unknown == "none")


@pytest.mark.parametrize("inside", [False, True])
def test_under_autocast_it_stays(inside: bool) -> None:
    """The form multiplies in the widest type of its operands, a product of them in the narrow one."""
    model, x, y = nn.Bilinear(4, 5, 6), torch.randn(7, 4), torch.randn(7, 5)

    class Casting(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return model(x, y)  # type: ignore[no-any-return]

    if inside:
        _, targets = targets_of(Casting(), x, y)
    else:
        with torch.autocast("cpu", torch.bfloat16):
            _, targets = targets_of(model, x, y)
    assert torch.bilinear in targets
