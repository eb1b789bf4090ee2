"""Rows taken together read what they share once, and give what each would give alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, on_cuda

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Schedule

DEVICE = cuda.DeviceFacts()
Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...], dict[str, Any]]


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


BLOCK = {"exchange": "block", "segments": 1, "keep": "none", "unroll": 2}
CUT = {"exchange": "split", "keep": "none", "unroll": 2, "whole": 1}
CASES: dict[str, Case] = {
    "a product with a vector, cut in whole tiles": (
        torch.mv,
        (randn(12, 9000), randn(9000)),
        {**CUT, "vector": 4, "team": 256, "segments": 5, "together": 4, "once": 1},
    ),
    "a product with a vector, in segments that differ": (
        torch.mv,
        (randn(6, 9000), randn(9000)),
        {**CUT, "vector": 2, "team": 128, "segments": 7, "together": 3, "whole": 0},
    ),
    "what follows the sum": (
        lambda x, v, b: (torch.mv(x, v) + b).tanh(),
        (randn(10, 3000), randn(3000) / 50, randn(10)),
        {**BLOCK, "vector": 4, "team": 128, "together": 2},
    ),
    "a vector for each matrix": (
        lambda x, v: (x * v[:, None]).amax(2),
        (randn(3, 8, 1600), randn(3, 1600)),
        {**BLOCK, "vector": 4, "team": 64, "together": 8},
    ),
    "places and infinities": (
        lambda x, v: (x + v).argmax(1),
        (torch.where(randn(9, 1500) > 2, torch.inf, randn(9, 1500)), randn(1500)),
        {**BLOCK, "vector": 4, "team": 32, "across": 2, "together": 3},
    ),
}


def source_of(it: Sample, parameters: dict[str, Any]) -> tuple[str, Any]:
    way = Schedule.of({"sketch": "row", **parameters})
    return cuda.emit(it.analysis.region, it.analysis.kernels, way, DEVICE)


@pytest.mark.parametrize("name", CASES)
def test_an_emulator_computes_what_eager_does(name: str, tmp_path: Path) -> None:
    function, inputs, parameters = CASES[name]
    it = on_cuda(function, *inputs)
    source, plan = source_of(it, parameters)
    for got, want in zip(
        cuda_emulator.run(source, plan, it.inputs, tmp_path), it.want, strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_what_rows_share_is_loaded_once_and_each_row_by_itself() -> None:
    function, inputs, parameters = CASES["a product with a vector, cut in whole tiles"]
    source, _ = source_of(on_cuda(function, *inputs), parameters)
    first = source[source.index("__global__") : source.rindex("__global__")]
    assert len(re.findall(r"load_once<L>\(m_", first)) == 4
    assert len(re.findall(r"load<L>\(m_", first)) == 1


@pytest.mark.parametrize(
    ("function", "together", "reason"),
    [
        (torch.mv, 5, "5 rows together"),
        (lambda x, v: x.sum(1) + v[0], 2, "2 rows together"),
        (lambda x, v: (x * v).softmax(1), 2, "rows together that are kept"),
    ],
)
def test_what_does_not_fit_says_so(
    function: Callable[..., Any], together: int, reason: str
) -> None:
    it = on_cuda(function, randn(12, 900), randn(900))
    with pytest.raises(Unsupported, match=reason):
        source_of(it, {**BLOCK, "vector": 4, "team": 64, "together": together})


def test_long_rows_with_something_in_common_are_offered_together() -> None:
    shapes = torch.empty(900, 70_000, device="meta"), torch.empty(70_000, device="meta")
    it = on_cuda(torch.mv, *shapes)
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    ways = [dict(s.parameters(0)) for s in found]
    together = [p for p in ways[:4] if "together" in p]
    assert len(together) == 2 and {p["together"] for p in together} == {4}


def test_rows_with_nothing_in_common_are_not() -> None:
    it = on_cuda(lambda x: x.sum(1), torch.empty(900, 70_000, device="meta"))
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    assert not any("together" in dict(s.parameters(0)) for s in found)
