"""A task file, imported: its model and its inputs. Whatever the file raises goes through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cuda_agent_backend.tools.load_model import BadTarget, import_file

OTHER = 1_000_003
"""Added to seeds of inputs: by the model's own, an input of a weight's width begins with that weight's numbers."""


@dataclass(frozen=True)
class Place:
    """Where tensors go, and what floating ones become."""

    target: str
    dtype: torch.dtype

    def put(self, value: Any) -> Any:
        """A module, or tensors in tuples, lists and dictionaries, there."""
        if isinstance(value, nn.Module):
            return value.to(self.target, self.dtype)
        return pytree.tree_map(self._put, value)

    def _put(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(self.target, self.dtype if value.is_floating_point() else None)


@dataclass(frozen=True)
class BuiltTask:
    """The model, in evaluation mode, and what draws inputs for it by a seed.

    values: inputs as the task's own code makes them, which takes the host some while; put: takes them to where the
    model is. again: makes the model once more, with the same tensors and code of its own. Where one compiler cannot go
    on, Dynamo gives up the code it was in, for every other compiler as well.
    """

    model: nn.Module
    values: Callable[[int], tuple[Any, ...]]
    put: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    again: Callable[[], nn.Module]

    def draw(self, seed: int) -> tuple[Any, ...]:
        """Inputs where the model is."""
        return self.put(self.values(seed))


def build(file: Path, place: Place, seed: int) -> BuiltTask | BadTarget:
    """Build the model and say how to draw inputs. May raise whatever the file's code raises."""
    module = import_file(file)
    if isinstance(module, BadTarget):
        return module
    model = _model(module, place, seed)
    if not isinstance(model, nn.Module):
        return BadTarget(f"Model is {type(model).__name__}, not a torch.nn.Module")

    def values(seed: int) -> tuple[Any, ...]:
        torch.manual_seed(OTHER + seed)
        return tuple(_list(module.get_inputs()))

    def again() -> nn.Module:
        fresh = import_file(file)
        if isinstance(fresh, BadTarget):
            raise RuntimeError(fresh.reason)
        twin: nn.Module = _model(fresh, place, seed)
        twin.load_state_dict(
            model.state_dict(keep_vars=True), assign=True
        )  # what is tied, stays so
        # Recurrent modules see their weights anew, and on cuda lay them together: in a first call, which is compiled,
        # that would break the graph for good.
        placed: nn.Module = place.put(twin)
        return placed

    return BuiltTask(model, values, place.put, again)


def _model(module: ModuleType, place: Place, seed: int) -> Any:
    torch.manual_seed(seed)
    model = module.Model(*_list(module.get_init_inputs()))
    return place.put(model.eval()) if isinstance(model, nn.Module) else model


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]
