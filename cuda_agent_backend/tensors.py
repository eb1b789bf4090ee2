"""Tensors in files, without pickle: the bytes from the first to the last element, and JSON that describes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

RECORD_LIMIT = 1 << 30
"""Bytes of real inputs kept per task, and per graph; one with more is verified and measured on drawn inputs only."""


def save(folder: Path, tensors: Sequence[torch.Tensor]) -> None:
    """Write tensors (of any device; strided, non-negative strides) into a new folder."""
    folder.mkdir(parents=True)
    described = []
    for number, tensor in enumerate(tensors):
        flat = _flat(tensor.detach()).cpu()
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
        flat = torch.frombuffer(data, dtype=getattr(torch, spec["dtype"]))
        made.append(flat.as_strided(spec["shape"], spec["stride"]))
    return made


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All memory from the first to the last element, as one contiguous dimension."""
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((extent,), (1,)).clone()
