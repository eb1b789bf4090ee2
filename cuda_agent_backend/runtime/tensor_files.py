"""Tensors in files, without pickle: the bytes from the first to the last element, and JSON that describes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from cuda_agent_backend.graph.canonical import tensor_spec
from sandbox.accuracy.perturb_inputs import flat_storage
from sandbox.task.specs import TensorSpec

RECORD_LIMIT = 1 << 30
"""Bytes of real inputs kept per task, and per graph; one with more is verified and measured on drawn inputs only."""

_PIECE = 1 << 22
"""Elements that are copied and written at once, so that a large tensor is not in memory twice."""


def record(folder: Path, values: Sequence[Any], specs: Sequence[TensorSpec] | None = None) -> str:
    """Write what a graph was called with into a new folder, and name it.

    "" where that cannot be: what is no plain tensor, more than `RECORD_LIMIT`, other tensors than specified, no room.
    The values are only read: their memory, its flags and their versions stay as they are.
    """
    plain = (torch.Tensor, torch.nn.Parameter)
    real = [x.detach() for x in values if type(x) in plain and _is_there(x)]
    if len(real) < len(values) or sum(map(_bytes, real)) > RECORD_LIMIT:
        return ""
    if specs is not None and not are_of(real, specs):
        return ""
    try:
        save(folder, real)
    except (OSError, RuntimeError):  # on the disk, or on a device
        return ""
    return str(folder.absolute())


def save(folder: Path, tensors: Sequence[torch.Tensor]) -> None:
    """Write tensors (of any device; strided, non-negative strides) into a new folder."""
    folder.mkdir(parents=True)
    described = []
    for number, tensor in enumerate(tensors):
        _write(folder / f"{number}.bin", flat_storage(tensor.detach()))
        described.append(
            {
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "stride": list(tensor.stride()),
            }
        )
    (folder / "tensors.json").write_text(json.dumps(described))


def _write(path: Path, line: torch.Tensor) -> None:
    """Write the bytes of a tensor of one dimension, from copies.

    Asked for its own bytes, a tensor would give them away: NumPy marks memory that it sees as never to be resized
    again, and a copy-on-write tensor would make its copy.
    """
    with path.open("wb") as file:
        for piece in line.split(_PIECE):
            copy = torch.empty(piece.shape, dtype=piece.dtype, device="cpu").copy_(piece)
            file.write(copy.view(torch.uint8).numpy().tobytes())


def load(folder: Path) -> list[torch.Tensor]:
    """The tensors of a folder, on the CPU, with their strides. Raises `OSError` or `ValueError` if it is incomplete."""
    made = []
    for number, spec in enumerate(json.loads((folder / "tensors.json").read_text())):
        data = bytearray((folder / f"{number}.bin").read_bytes())
        dtype = getattr(torch, spec["dtype"])
        flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        made.append(flat.as_strided(spec["shape"], spec["stride"]))
    return made


def are_of(tensors: Sequence[torch.Tensor], specs: Sequence[TensorSpec]) -> bool:
    """Whether the tensors have the dtypes, shapes and strides that are specified."""
    return [tensor_spec(tensor) for tensor in tensors] == list(specs)


def _is_there(tensor: torch.Tensor) -> bool:
    """Whether all its elements lie in memory: who shards parameters takes it away from them between their uses."""
    if tensor.layout is not torch.strided:
        return False
    end = tensor.storage_offset() + tensor_spec(tensor).extent
    return tensor.untyped_storage().nbytes() >= end * tensor.itemsize


def _bytes(tensor: torch.Tensor) -> int:
    """What is written of it: all from its first to its last element."""
    return tensor_spec(tensor).extent * tensor.itemsize
