"""The roofline floor of a whole model: the least seconds that a call, its bytes and its products take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

READ_IN_PART = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True)
class Floor:
    """bytes: of parameters, inputs and outputs, each once. operations: see `sandbox.roofline.operations_of`."""

    bytes: int
    operations: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def floor_of(moved: int, operations: int, ceilings: Mapping[str, Any]) -> Floor:
    """Memory and arithmetic may overlap, so the longer of the two counts, after what any call takes."""
    memory = moved / float(ceilings["bytes_per_s"])
    work = max(memory, operations / float(ceilings["flops_per_s"]))
    return Floor(moved, operations, float(ceilings["call_s"]) + work)


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
