"""The functional ATen graph of a model's call without gradients, traced on tensors without memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor.decomposition import select_decomp_table
from torch.func import functional_call, functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from cuda_agent_backend.tools.model_oracle import tensors


def traced(model: nn.Module, inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """Its placeholders are what `given_of` gives, its outputs all tensors of the result. Raises whatever torch raises
    where there is no graph, as where what the model does depends on values."""
    names, places = list(_weights(model)), _places(inputs)

    def call(*values: Tensor) -> tuple[Tensor, ...]:
        all_inputs = list(inputs)
        for place, value in zip(places, values[len(names) :], strict=True):
            all_inputs[place] = value
        state = dict(zip(names, values, strict=False))
        return tuple(tensors(functional_call(model, state, tuple(all_inputs))))

    with torch.no_grad():
        pure = functionalize(call, remove="mutations")
        made = make_fx(pure, select_decomp_table(), tracing_mode="fake")
        return made(*given_of(model, inputs))


def given_of(model: nn.Module, inputs: Sequence[Any]) -> list[Tensor]:
    """Weights and buffers, and then those of the inputs that are tensors."""
    return [*_weights(model).values(), *(inputs[place] for place in _places(inputs))]


def _places(inputs: Sequence[Any]) -> list[int]:
    return [place for place, value in enumerate(inputs) if isinstance(value, Tensor)]


def _weights(model: nn.Module) -> dict[str, Tensor]:
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor.detach() for name, tensor in named.items()}
