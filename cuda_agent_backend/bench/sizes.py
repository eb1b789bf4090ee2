"""What a task holds, in bytes, from tensors without memory: before it begins, and without a device."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Held:
    """Bytes of one task. given: inputs and weights. peak: all that eager mode holds at once, those included.

    largest: of a single input, weight or output. elements: of the one with most elements.
    """

    given: int
    outputs: int
    peak: int
    largest: int
    elements: int

    @property
    def ends(self) -> int:
        """Inputs, weights and outputs together."""
        return self.given + self.outputs


class LiveStorages(TorchDispatchMode):
    """Counts the bytes of storages from the operator that makes them until nothing refers to them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live, self.peak = 0, 0
        self._known: dict[int, weakref.finalize[Any, Any]] = {}

    def count(self, value: Any) -> None:
        """Count a tensor's storage, once."""
        if not isinstance(value, Tensor):
            return
        storage = value.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known[key] = weakref.finalize(storage, self._gone, key, size)
        self.live += size
        self.peak = max(self.peak, self.live)

    def _gone(self, key: int, size: int) -> None:
        del self._known[key]
        self.live -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operator and count what it made."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            self.count(leaf)
        return result


def held_by(module: ModuleType) -> Held:
    """The bytes of a task file, imported. Raises whatever its code raises on tensors without memory."""
    with FakeTensorMode(), torch.no_grad():
        model, inputs = module.Model(*module.get_init_inputs()).eval(), module.get_inputs()
        drawn = [value for value in inputs if isinstance(value, Tensor)]
        given = [*drawn, *model.parameters(), *model.buffers()]
        with LiveStorages() as counted:
            for tensor in given:
                counted.count(tensor)
            result = model(*inputs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    every = [*given, *outputs]
    return Held(
        given=sum(map(_bytes, given)),
        outputs=sum(map(_bytes, outputs)),
        peak=counted.peak,
        largest=max(map(_bytes, every)),
        elements=max(tensor.numel() for tensor in every),
    )


def _bytes(tensor: Tensor) -> int:
    return tensor.nbytes
