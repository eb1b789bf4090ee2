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


def record(folder: Path, values: Sequence[Any], specs: Sequence[TensorSpec] | None = None) -> str:
    """Write what a graph was called with into a new folder, and name it.

    "" where that cannot be: what is no plain tensor, more than `RECORD_LIMIT`, other tensors than specified, no room.
    """
    plain = (torch.Tensor, torch.nn.Parameter)
    real = [x.detach() for x in values if type(x) in plain and x.layout is torch.strided]
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
        flat = flat_storage(tensor.detach()).cpu().contiguous()
        (folder / f"{number}.bin").write_bytes(flat.view(torch.uint8).numpy().tobytes())
        described.append(
            {
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "stride": list(tensor.stride()),
            }
        )
    (folder / "tensors.json").write_text(json.dumps(described))


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


def _bytes(tensor: torch.Tensor) -> int:
    """What is written of it: all from its first to its last element."""
    return tensor_spec(tensor).extent * tensor.itemsize
