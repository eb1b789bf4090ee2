"""Does the GPU still work? Every worker for cuda asks before it serves, and so after every fault of one before it."""

from __future__ import annotations

import torch

COUNT = 1 << 20


class DeviceFault(RuntimeError):
    """The GPU does not do what it is told; no verdict that was taken on it would mean anything."""


def probe() -> dict[str, int]:
    """Compute something whose result is known. Returns the device memory free and in all, in bytes.

    Raises `DeviceFault` if the result is another, and torch's own error if the device does not answer.
    """
    numbers = torch.arange(COUNT, device="cuda")
    found = int((numbers * 2).sum())
    if found != COUNT * (COUNT - 1):
        raise DeviceFault(f"a sum on the GPU came out as {found}, not as {COUNT * (COUNT - 1)}")
    free, total = torch.cuda.mem_get_info()
    return {"free_bytes": free, "total_bytes": total}
