"""How many of the machine's cores a run may count on: beside it others may use the machine's other GPUs."""

from __future__ import annotations

import os
import subprocess
from functools import cache

CARDS = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
"""Says all GPUs that there are, whatever ``CUDA_VISIBLE_DEVICES`` says: one a line."""
ASK_LIMIT_S = 30.0


@cache
def cores_of(target: str) -> int:
    """Cores for a run of this process: those that it may use; on cuda no more than its share by GPUs."""
    own = len(os.sched_getaffinity(0))
    if target != "cuda":
        return own
    import torch

    whole = os.cpu_count() or own
    return share_of(own, whole, torch.cuda.device_count(), number_of_cards())


def share_of(own: int, whole: int, seen: int, there: int) -> int:
    """Cores for a process: the part of the machine's that its GPUs are of all, unless they are divided already.

    own: cores that it may use: less than `whole`, those of the machine, where it or its container was given a share.
    seen: GPUs that it sees, of those that are there, 0 where nobody says.
    """
    if own < whole or not 0 < seen < there:
        return own
    return max(1, own * seen // there)


def number_of_cards() -> int:
    """GPUs of this machine, as the driver says; 0 where it does not."""
    try:
        done = subprocess.run(
            CARDS, capture_output=True, text=True, check=True, timeout=ASK_LIMIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.strip().isdecimal() for line in done.stdout.splitlines())
