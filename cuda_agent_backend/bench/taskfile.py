"""A task file, imported: its model and its inputs. Whatever the file raises goes through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cuda_agent_backend.loading import BadTarget, import_file


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
    """The model, in evaluation mode, and what draws inputs for it by a seed."""

    model: nn.Module
    draw: Callable[[int], tuple[Any, ...]]


def build(file: Path, place: Place, seed: int) -> BuiltTask | BadTarget:
    """Build the model and say how to draw inputs. May raise whatever the file's code raises."""
    module = import_file(file)
    if isinstance(module, BadTarget):
        return module
    torch.manual_seed(seed)
    model = module.Model(*_list(module.get_init_inputs()))
    if not isinstance(model, nn.Module):
        return BadTarget(f"Model is {type(model).__name__}, not a torch.nn.Module")

    def draw(seed: int) -> tuple[Any, ...]:
        torch.manual_seed(seed)
        return tuple(place.put(_list(module.get_inputs())))

    return BuiltTask(place.put(model.eval()), draw)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]
