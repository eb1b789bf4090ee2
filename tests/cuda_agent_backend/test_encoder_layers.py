"""Layers of torch's encoder are taken apart and compute what the module does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from cuda_agent_backend import backend
from cuda_agent_backend.frontend.decompose import decompose
from cuda_agent_backend.frontend.encoder_layers import ENCODER_LAYER
from cuda_agent_backend.options import parse
from cuda_agent_backend.settings import Settings
from cuda_agent_backend.tools.capture import capture

TOKENS, SIZE = 9, 16


def layer(**how: Any) -> nn.Module:
    torch.manual_seed(3)
    made = nn.TransformerEncoderLayer(SIZE, 2, 32, batch_first=True, **how).eval()
    for weight in made.parameters():
        nn.init.normal_(weight, std=0.3)
    return made


def compiled(model: nn.Module, *inputs: Any, **named: Any) -> tuple[Any, list[GraphModule]]:
    """What a model gives by its graphs with layers taken apart, and these."""
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        assert gm.graph.find_nodes(op="call_function", target=ENCODER_LAYER)
        decompose(gm)
        graphs.append(gm)
        return gm.forward

    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(model, backend=backend)(*inputs, **named), graphs


@pytest.mark.parametrize("how", [{}, {"norm_first": True, "activation": "gelu"}])
def test_a_layer_computes_what_it_did_by_operators_that_are_compiled(how: dict[str, Any]) -> None:
    model, x = layer(**how), torch.randn(3, TOKENS, SIZE)
    found, graphs = compiled(model, x)
    with torch.no_grad():
        torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
    targets = {node.target for graph in graphs for node in graph.graph.nodes}
    assert ENCODER_LAYER not in targets and nn.functional.scaled_dot_product_attention in targets


def hidden(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(2)) > 0.6


@pytest.mark.parametrize(
    "masks",
    [
        {"src_mask": nn.Transformer.generate_square_subsequent_mask(TOKENS)},
        {"src_mask": hidden(TOKENS, TOKENS)},
        {"src_key_padding_mask": hidden(3, TOKENS)},
        {"src_mask": hidden(TOKENS, TOKENS), "src_key_padding_mask": hidden(3, TOKENS)},
        {"src_mask": torch.ones(TOKENS, TOKENS).tril(-1)},
    ],
    ids=["causal", "places", "keys", "both", "no row sees nothing, first"],
)
def test_masks_hide_what_they_hid(masks: dict[str, Tensor]) -> None:
    model, x = layer(), torch.randn(3, TOKENS, SIZE)
    found, _ = compiled(model, x, **masks)
    with torch.no_grad():
        want = model(x, **masks)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_queries_are_scaled_before_half_precision_overflows() -> None:
    model, x = layer().half(), torch.randn(3, TOKENS, SIZE).half() * 2
    with torch.no_grad():
        model.self_attn.in_proj_weight.mul_(40)  # type: ignore[operator,union-attr]
    keys = torch.zeros(3, TOKENS, dtype=torch.bool)
    found, _ = compiled(model, x, src_key_padding_mask=keys)
    with torch.no_grad():
        want = model(x, src_key_padding_mask=keys)
    assert want.isfinite().all()
    torch.testing.assert_close(found, want, rtol=1e-2, atol=1e-2)


def test_the_graph_that_is_captured_has_its_products() -> None:
    model = nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False).eval()
    options = parse(Settings.from_environment(), None, None)
    (graph,) = capture(model, [torch.randn(3, TOKENS, SIZE)], options)
    names = [str(node.target) for node in graph.module.graph.nodes]
    assert sum("addmm" in name for name in names) == 8


def attempts(monkeypatch: pytest.MonkeyPatch, helps: bool, **how: Any) -> list[str]:
    """What Inductor is given where a layer is compiled, one after another; helps: whether kernels come of it."""
    found: list[str] = []
    compile_fx = backend._compile_fx

    def watched(gm: GraphModule, *more: Any) -> Any:
        whole = bool(gm.graph.find_nodes(op="call_function", target=ENCODER_LAYER))
        found.append("whole" if whole else "apart")
        return compile_fx(gm, *more)

    monkeypatch.setattr(backend, "_compile_fx", watched)
    monkeypatch.setattr(backend, "_changed", lambda _: helps)
    model, x = layer(), torch.randn(3, TOKENS, SIZE)
    torch._dynamo.reset()
    with torch.no_grad():
        options = {"cuda_agent.search": "cached"}
        made = torch.compile(model, backend=backend.cuda_agent, options=options, **how)
        torch.testing.assert_close(made(x), model(x), rtol=1e-5, atol=1e-5)
    return found


def test_only_where_that_brings_kernels_the_graph_stays_taken_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert attempts(monkeypatch, helps=True) == ["apart"]
    monkeypatch.undo()
    assert attempts(monkeypatch, helps=False) == ["apart", "whole"]


def test_where_dynamo_is_to_trace_anew_nothing_else_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it is for a norm's eps where shapes are dynamic."""
    seen: list[GraphModule] = []

    def plain(gm: GraphModule, inputs: Any) -> Any:
        seen.append(gm)
        return gm

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(layer(), backend=plain, dynamic=True)(torch.randn(3, TOKENS, SIZE))
    if not seen:
        pytest.skip("this torch leaves the layer to Python where shapes are dynamic: 2.11 does")
    assert attempts(monkeypatch, helps=True, dynamic=True) == ["apart", "apart"]
