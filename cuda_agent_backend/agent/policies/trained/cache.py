"""A cache of keys and values that grows with room to spare.

The cache of transformers is copied whole for each id that is said, which takes longer than all else where many
conversations are long and the model is small.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

LEAST, SHARE = 64, 4
"""Of places that are full, one in `SHARE` more are made than are wanted, and at least `LEAST`."""


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Of one layer. keys, values: (rows, heads, places, head), the filled part of memory that has room for more."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)  # type: ignore[no-untyped-call]
        self._room: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Append (rows, heads, new places, head) to both, and give what there is then."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        held = self.get_seq_length()
        wanted = held + key_states.shape[-2]
        if self._room is None or self._room[0].shape[-2] < wanted:
            self._room = self._larger(key_states, value_states, held, wanted)
        new = (key_states, value_states)
        for memory, states in zip(self._room, new, strict=True):
            memory[:, :, held:wanted] = states
        self.keys, self.values = (memory[:, :, :wanted] for memory in self._room)
        return self.keys, self.values

    def _larger(
        self, keys: Tensor, values: Tensor, held: int, wanted: int
    ) -> tuple[Tensor, Tensor]:
        places = wanted + max(LEAST, wanted // SHARE)
        made = [t.new_empty(*t.shape[:2], places, t.shape[-1]) for t in (keys, values)]
        if held:
            made[0][:, :, :held], made[1][:, :, :held] = self.keys, self.values  # type: ignore[assignment]
        return made[0], made[1]

    def batch_select_indices(self, indices: Tensor) -> None:
        """Have the rows be those, in this order; one may come twice."""
        super().batch_select_indices(indices)
        self._room = None  # the next place makes room for these rows


def new_cache(config: Any) -> Cache | None:
    """An empty one for a model of this configuration; None where a layer looks back in a way of its own, for which
    transformers makes the cache."""
    return Cache(layer_class_to_replicate=GrowingLayer) if looks_at_all(config) else None


def looks_at_all(config: Any) -> bool:
    """Whether every layer of a model looks at all places before its own."""
    kinds = set(getattr(config, "layer_types", None) or ())
    return kinds == {"full_attention"}
