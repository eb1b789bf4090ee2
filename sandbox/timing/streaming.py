"""Reading memory as fast as a GPU can, to measure a ceiling: torch's own reductions are some percent slower."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK, WARPS = 8192, 8


@triton.jit  # type: ignore[untyped-decorator]
def _sums(source, sums, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    tl.store(sums + tl.program_id(0), tl.sum(tl.load(source + at), 0))


def read(source: torch.Tensor, sums: torch.Tensor) -> None:
    """Read all of ``source``: float32 on cuda, contiguous, `BLOCK` elements for each of ``sums``.

    Raises what Triton raises where it cannot compile (a machine without a C compiler, say).
    """
    _sums[(sums.numel(),)](source, sums, BLOCK, num_warps=WARPS)
