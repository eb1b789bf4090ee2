"""A task file, imported: its model and its inputs. Whatever the file raises goes through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cuda_agent_backend.tools.load_model import BadTarget, import_file

Made = TypeVar("Made")
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

    def made(self, make: Callable[[], Made], seed: int) -> Made:
        """What a task's own code makes, by a seed, where it is to be: the host would need seconds for gigabytes.

        Code that does not work there, as it mixes in tensors of its own on the host, is called again on the host.
        """
        if self.target != "cpu":
            try:
                torch.manual_seed(seed)
                with torch.device(self.target):
                    return make()
            except (
                Exception
            ):  # whatever is wrong with the code itself is raised by the host as well
                pass
        torch.manual_seed(seed)
        return make()


@dataclass(frozen=True)
class BuiltTask:
    """The model, in evaluation mode, and what draws inputs for it by a seed.

    draw: makes inputs where the model is. again: makes the model once more, with the same tensors and code of its own.
    Where one compiler cannot go on, Dynamo gives up the code it was in, for every other compiler as well.
    """

    model: nn.Module
    draw: Callable[[int], tuple[Any, ...]]
    again: Callable[[], nn.Module]


def build(file: Path, place: Place, seed: int) -> BuiltTask | BadTarget:
    """Build the model and say how to draw inputs. May raise whatever the file's code raises."""
    module = import_file(file)
    if isinstance(module, BadTarget):
        return module
    model = _model(module, place, seed)
    if not isinstance(model, nn.Module):
        return BadTarget(f"Model is {type(model).__name__}, not a torch.nn.Module")

    def draw(seed: int) -> tuple[Any, ...]:
        values = place.made(lambda: list(_list(module.get_inputs())), OTHER + seed)
        for number in range(len(values)):  # one after another, so that only one is there twice
            values[number] = place.put(values[number])
        return tuple(values)

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

    return BuiltTask(model, draw, again)


def _model(module: ModuleType, place: Place, seed: int) -> Any:
    model = place.made(lambda: module.Model(*_list(module.get_init_inputs())), seed)
    return place.put(model.eval()) if isinstance(model, nn.Module) else model


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]
