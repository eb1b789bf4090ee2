"""Places of extremes among equal values are eager's, the first, whatever the dtype, the lanes and the threads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from sketch_kit import run_cpu_on, sample
from torch import Tensor

from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.task.flags import threads

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
)  # fmt: skip
SHAPE = (9, 67)
"""Rows and columns are both longer than vectors of 16, with a rest."""


def drawn(dtype: torch.dtype) -> Tensor:
    """Few values, so that nearly all are equal to others; a row of the least and one of the largest there are, and of
    floating ones rows with NaN and zeros of both signs. Every second place of memory."""
    found = torch.randint(0, 3, SHAPE, generator=torch.Generator().manual_seed(1)).to(dtype)
    if dtype == torch.bool:
        found[0], found[1] = False, True
        found[2], found[2, -1] = False, True
        found[3], found[3, 37:] = True, False
    elif not dtype.is_floating_point:
        whole = torch.iinfo(dtype)
        found[0], found[1] = whole.min, whole.max
    else:
        found[0], found[1] = -math.inf, math.inf
        found[2, ::2], found[2, 1::2] = 0.0, -0.0
        found[3, 5::7], found[4, -1] = math.nan, math.nan
    return torch.stack([found, found], -1).flatten(1)[:, ::2]


def on_threads(inputs: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    """The same inputs for runs on one thread and on several; the numbers hold while a run has them."""
    for count in (1, 2, 4):
        with threads(count):
            yield inputs


@pytest.mark.parametrize("lanes", ["inner", "outer"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
def test_places_among_equal_values_are_the_first_on_any_threads(
    dtype: torch.dtype, lanes: str, tmp_path: Path
) -> None:
    it = sample(lambda x: tuple(t for d in (0, 1) for t in (*x.max(d), *x.min(d))), drawn(dtype))
    kernels = len(it.analysis.kernels)
    own = {"lanes": lanes, "width": 16, "unroll": 2, "threads": 1}
    schedule = Schedule.of(*[own] * kernels)
    for found in run_cpu_on(it.analysis, schedule, on_threads(it.inputs), tmp_path):
        for f, w in zip(found, it.want, strict=True):
            torch.testing.assert_close(f, w, rtol=0, atol=0, equal_nan=True)
