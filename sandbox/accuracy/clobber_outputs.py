"""Overwrite outputs before their memory is free, so that nobody finds right results in memory that is new to it.

An allocator gives the next call the memory of the last. Of two calls on the same inputs, the second would be right
without doing anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sandbox.accuracy.perturb_inputs import flat_storage

if TYPE_CHECKING:
    import torch

CLOBBERED = 0xFF
"""The byte of clobbered outputs: NaN in floating point, -1 or the largest number elsewhere."""


def clobber(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    """Fill outputs with `CLOBBERED` in place, but for what lies in the memory of an input, as eager mode's may."""
    import torch

    kept = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    for tensor in outputs:
        if tensor.untyped_storage().data_ptr() not in kept:
            flat_storage(tensor).view(torch.uint8).fill_(CLOBBERED)
