"""The roofline floor of a whole model: the least seconds that a call, its bytes and its products take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sandbox.timing.machine import Ceilings

READ_IN_PART = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True)
class Floor:
    """bytes: of parameters, inputs and outputs, each once, and of tables the rows that are looked up, each once.
    operations: see `sandbox.timing.roofline.operations_of`. tensors: bytes of all of these, whole tables included.
    """

    bytes: int
    operations: int
    seconds: float
    tensors: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def floor_of(read: int, written: int, operations: int, ceilings: Mapping[str, Any]) -> Floor:
    """Memory and arithmetic may overlap, so the longer of the two counts, after what any call takes.

    read, written: bytes. ceilings: `Ceilings` as JSON, and ``call_s``.
    """
    rates = Ceilings.of(ceilings)
    work = max(rates.seconds_to_move(read, written), operations / rates.flops_per_s)
    return Floor(read + written, operations, float(ceilings["call_s"]) + work)


def unique_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors; memory that several share counts once, and no more of it than the largest of them covers."""
    sizes: dict[tuple[str, int], int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        place = (str(tensor.device), storage.data_ptr())
        size = min(tensor.numel() * tensor.itemsize, storage.nbytes())
        sizes[place] = max(sizes.get(place, 0), size)
    return sum(sizes.values())


def weights(model: nn.Module) -> Sequence[Tensor]:
    """Parameters and buffers that a call reads whole: not the tables of embeddings, of which it looks rows up."""
    partly = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, READ_IN_PART)
        for parameter in module.parameters(recurse=False)
    }
    every = [*model.parameters(), *model.buffers()]
    return [tensor for tensor in every if id(tensor) not in partly]


@dataclass
class Lookups:
    """Which rows of which tables the modules of `READ_IN_PART` looked up: a table and a mark for each of its rows."""

    rows: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def add(self, table: Tensor, indices: Tensor) -> None:
        """indices: row numbers, any shape."""
        fresh = table, torch.zeros(table.shape[0], dtype=torch.bool, device=table.device)
        self.rows.setdefault(id(table), fresh)[1][indices.reshape(-1)] = True

    @property
    def bytes(self) -> int:
        """Of the rows, each once."""
        return sum(
            int(marks.sum()) * table.shape[1] * table.itemsize
            for table, marks in self.rows.values()
        )


@contextmanager
def lookups(model: nn.Module) -> Iterator[Lookups]:
    """Within it, what calls of the model look up is told."""
    found = Lookups()

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(module.weight, Tensor)
        found.add(module.weight, args[0] if args else kwargs["input"])

    tables = (module for module in model.modules() if isinstance(module, READ_IN_PART))
    hooks = [table.register_forward_pre_hook(note, with_kwargs=True) for table in tables]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
