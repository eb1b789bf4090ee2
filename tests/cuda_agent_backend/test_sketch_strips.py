"""Rows and columns that all blocks work on together, strip by strip, within one launch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, sample
from torch.nn import functional as F

from cuda_agent_backend.sketch import cuda
from cuda_agent_backend.sketch.cuda_schedules import BEFORE_STRIPS
from cuda_agent_backend.sketch.schedule import Schedule
from cuda_agent_backend.sketch.ssa import Unsupported
from sandbox.plan import Launch, Plan

DEVICE = cuda.DeviceFacts(l2_bytes=50 << 20)
TINY = cuda.DeviceFacts(sm_count=2, l2_bytes=1 << 20, shared_per_block_bytes=1 << 14)
"""A device on which small tensors are large."""


def randn(*shape: int, mean: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator) + mean


def not_finite(*shape: int) -> torch.Tensor:
    x = randn(*shape)
    x.view(-1)[:: x.numel() // 7] = math.nan
    x.view(-1)[5 :: x.numel() // 3] = math.inf
    return x


def batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, w, b, training=True)


def row_statistics(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    var, mean = torch.var_mean(x, 1, keepdim=True)
    return (x - mean) * torch.rsqrt(var + 1e-3), mean, var


def softmax_backward(g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y * (g - (g * y).sum(-1, keepdim=True))


Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...], dict[str, Any]]
COLUMNS = {"lanes": "outer", "vector": 4, "across": 8, "team": 8}
ROWS = {"vector": 4, "team": 64, "across": 1}
CASES: dict[str, Case] = {
    "columns": (
        lambda x: F.normalize(x, dim=0),
        (randn(700, 136),),
        {**COLUMNS, "segments": 5, "strip": 1},
    ),
    "columns of several matrices, two groups of them a strip": (
        lambda x: F.normalize(x, dim=1),
        (randn(3, 301, 40),),
        {**COLUMNS, "segments": 4, "strip": 2, "ahead": 2},
    ),
    "an odd number of columns": (
        lambda x: F.normalize(x, dim=0),
        (randn(303, 45),),
        {"lanes": "outer", "vector": 1, "across": 32, "team": 4, "segments": 3, "strip": 1},
    ),
    "softmax of columns": (
        lambda x: torch.softmax(x, 0),
        (randn(500, 72),),
        {**COLUMNS, "segments": 7, "strip": 2},
    ),
    "means and deviations of columns": (
        lambda x: (x - x.mean(0)) * torch.rsqrt(x.var(0) + 1e-3),
        (randn(411, 64, mean=30),),
        {**COLUMNS, "segments": 6, "strip": 1, "ahead": 3},
    ),
    "softmax of rows": (
        lambda x: torch.softmax(x, 1),
        (randn(7, 4000),),
        {**ROWS, "segments": 5, "strip": 2, "ahead": 2},
    ),
    "log softmax of rows of an odd length": (
        lambda x: torch.log_softmax(x, 1),
        (randn(9, 2023),),
        {**ROWS, "vector": 1, "segments": 6, "strip": 4},
    ),
    "one strip of all rows": (
        lambda x: F.layer_norm(x, x.shape[1:]),
        (randn(5, 3000, mean=100),),
        {**ROWS, "segments": 3, "strip": 5},
    ),
    "strips larger than all rows": (
        lambda x: F.layer_norm(x, x.shape[1:]),
        (randn(5, 3000),),
        {**ROWS, "segments": 3, "strip": 64},
    ),
    "one row": (
        lambda x: F.normalize(x, dim=0),
        (randn(9000),),
        {**ROWS, "segments": 4, "strip": 1},
    ),
    "several rows of a block": (
        lambda x: F.normalize(x, dim=1),
        (randn(7, 1000),),
        {"vector": 4, "team": 32, "across": 4, "segments": 3, "strip": 1},
    ),
    "values of several images": (
        batch_norm,
        (randn(6, 8, 20, 10, mean=3), randn(8), randn(8)),
        {**ROWS, "segments": 2, "strip": 3, "ahead": 2},
    ),
    "groups of channels": (
        lambda x, w, b: F.group_norm(x, 2, w, b),
        (randn(3, 8, 20, 10, mean=3), randn(8), randn(8)),
        {**ROWS, "segments": 3, "strip": 2},
    ),
    "statistics that are results as well": (
        row_statistics,
        (randn(6, 2500, mean=2),),
        {**ROWS, "segments": 4, "strip": 2},
    ),
    "a result that is reduced again": (
        lambda x: (x - x.mean(1, keepdim=True)).abs().sum(1),
        (randn(6, 2500, mean=2),),
        {**ROWS, "segments": 4, "strip": 2},
    ),
    "two inputs": (
        softmax_backward,
        (randn(5, 2200), torch.softmax(randn(5, 2200), 1)),
        {**ROWS, "segments": 3, "strip": 1},
    ),
    "positions of extremes": (
        lambda x: (x - x.mean(1, keepdim=True)).argmax(1),
        (randn(6, 2500, mean=2),),
        {**ROWS, "segments": 4, "strip": 2},
    ),
    "double precision": (
        lambda x: torch.softmax(x, 1),
        (randn(4, 1800).double(),),
        {**ROWS, "vector": 2, "segments": 3, "strip": 2},
    ),
    "infinities and NaN": (
        lambda x: torch.softmax(x, 1),
        (not_finite(8, 2000),),
        {**ROWS, "segments": 3, "strip": 2},
    ),
    "infinities and NaN in columns": (
        lambda x: F.normalize(x, dim=0),
        (not_finite(300, 64),),
        {**COLUMNS, "segments": 3, "strip": 1},
    ),
    "half precision": (
        lambda x: F.normalize(x, dim=0),
        (randn(400, 136).half(),),
        {**COLUMNS, "vector": 8, "segments": 3, "strip": 1},
    ),
}


LARGE: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "columns": (lambda x: F.normalize(x, dim=0), torch.empty(20_000, 1100)),
    "softmax of rows": (lambda x: torch.softmax(x, 1), torch.empty(40, 500_000)),
    "rows of odd length": (lambda x: F.layer_norm(x, x.shape[1:]), torch.empty(101, 200_003)),
}
"""Inputs are filled where they are used: 80 MB each."""


def schedule(**parameters: Any) -> Schedule:
    way = {"sketch": "row", "exchange": "strip", "keep": "none", "stream": 1, "unroll": 4}
    return Schedule.of({**way, **parameters})


def emitted(it: Sample, **parameters: Any) -> tuple[str, Plan]:
    way = schedule(**parameters)
    return cuda.emit(it.analysis.region, it.analysis.kernels, way, DEVICE)


@pytest.mark.parametrize("name", CASES)
def test_strips_give_what_eager_gives_each_time_they_are_launched(
    name: str, tmp_path: Path
) -> None:
    function, inputs, parameters = CASES[name]
    it = sample(function, *inputs)
    source, plan = emitted(it, **parameters)
    once = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    again = cuda_emulator.run(source, plan, it.inputs, tmp_path, times=3)
    loose = 2e-3 if inputs[0].dtype == torch.float16 else 1e-4
    for got, same, want in zip(once, again, it.want, strict=True):
        torch.testing.assert_close(got, want, rtol=loose, atol=loose, equal_nan=True)
        assert torch.equal(got.nan_to_num(7.0), same.nan_to_num(7.0))


@pytest.mark.parametrize("name", ["columns", "softmax of rows", "one strip of all rows"])
def test_how_rows_are_put_into_strips_changes_no_bit(name: str, tmp_path: Path) -> None:
    function, inputs, parameters = CASES[name]
    it = sample(function, *inputs)
    found = [
        cuda_emulator.run(*emitted(it, **{**parameters, **change}), it.inputs, tmp_path)
        for change in ({}, {"strip": 3, "ahead": 2}, {"ahead": 20}, {"strip": 2, "ahead": 1})
    ]
    assert all(torch.equal(found[0][0], other[0]) for other in found[1:])


@pytest.mark.parametrize(
    "name", ["columns", "means and deviations of columns", "one strip of all rows"]
)
def test_strips_are_as_accurate_as_eager(name: str, tmp_path: Path) -> None:
    function, inputs, parameters = CASES[name]
    it = sample(function, *inputs)
    (got,) = cuda_emulator.run(*emitted(it, **parameters), it.inputs, tmp_path)
    exact = function(*(x.double() for x in inputs))
    own, eager = ((x.double() - exact).abs().max().item() for x in (got, it.want[0]))
    assert own <= 2 * eager + 1e-7


def test_counts_are_set_to_zero_before_each_launch_and_meetings_pass_through_memory() -> None:
    it = sample(lambda x: torch.softmax(x, 1), randn(7, 4000))
    source, plan = emitted(it, **ROWS, segments=5, strip=2)
    steps = [step for step in plan.steps if isinstance(step, Launch)]
    assert [step.kernel for step in steps] == ["k0_clear", "k0"]
    names = {b.name: b.spec for b in plan.buffers if b.kind == "temporary"}
    assert names["k0_counts"].shape == (1 + 2 * 7,)  # tickets, and of seven rows two passes
    assert "restrict__ v0" not in source and "restrict__ all_" not in source


def test_what_is_read_for_the_last_time_leaves_the_cache_first() -> None:
    it = sample(lambda x: torch.softmax(x, 1), randn(7, 4000))
    source = emitted(it, **ROWS, segments=5, strip=2)[0].partition('extern "C"')[2]
    first, last = source.split("if (phase == 2)")
    assert "load_once" not in first and "load_once" in last and "store_stream" in last


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"strip": 0}, "strips of nothing"),
        ({"ahead": 0}, "strips of nothing"),
        ({"segments": 1}, "strips of nothing"),
        ({"exchange": "split"}, "strips without"),
        ({"exchange": "cluster", "segments": 4}, "strips without"),
    ],
)
def test_strips_that_do_not_fit_are_unsupported(change: dict[str, Any], reason: str) -> None:
    it = sample(lambda x: torch.softmax(x, 1), randn(7, 4000))
    with pytest.raises(Unsupported, match=reason):
        emitted(it, **{**ROWS, "segments": 5, "strip": 2, **change})


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.sum(1), "read once"),
        (lambda x: x.cumsum(1) / x.sum(1, keepdim=True), "scans"),
    ],
)
def test_what_is_read_once_or_scanned_has_no_strips(
    function: Callable[..., Any], reason: str
) -> None:
    it = sample(function, randn(7, 4000))
    with pytest.raises(Unsupported, match=reason):
        emitted(it, **ROWS, segments=5, strip=2)


# --- proposals ----------------------------------------------------------------------------------------------------


def strips(
    function: Callable[..., Any], *inputs: torch.Tensor, device: cuda.DeviceFacts = DEVICE
) -> dict[int, dict[str, Any]]:
    """Proposals of strips by their place."""
    it = sample(function, *inputs)
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, device)
    parameters = [dict(s.parameters(0)) for s in found]
    return {n: p for n, p in enumerate(parameters) if p.get("exchange") == "strip"}


@pytest.mark.parametrize(
    ("function", "shape", "points"),
    [
        *((function, tuple(x.shape), max(x.shape)) for function, x in LARGE.values()),
        (lambda x: F.normalize(x, dim=0), (40_000, 1500), 40_000),
        (lambda x: F.instance_norm(x), (3, 24, 60, 120, 110), 792_000),
        (lambda x: torch.softmax(x, 1), (96, 600_000), 600_000),
        (lambda x: torch.log_softmax(x, 1), (1100, 50_023), 50_023),
        (lambda x: F.layer_norm(x, x.shape[1:]), (24, 2_500_000), 2_500_000),
        (lambda x: F.group_norm(x, 3), (10, 48, 350, 370), 2_072_000),
    ],
)
def test_strips_are_tried_where_rows_are_long_and_the_cache_does_not_hold_them_all(
    function: Callable[..., Any], shape: tuple[int, ...], points: int
) -> None:
    found = strips(function, torch.empty(shape))
    assert min(found) == BEFORE_STRIPS and len(found) > 1 and BEFORE_STRIPS + 1 not in found
    for p in found.values():
        columns = p["across"] * p["vector"] if p["lanes"] == "outer" else 1
        assert p["strip"] * columns * points * 4 <= DEVICE.l2_bytes // 5


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: F.normalize(x, dim=0), (4000, 150)),  # the cache holds all of it
        (lambda x: F.normalize(x, dim=1), (40_000, 1500)),  # a block holds a row
        (lambda x: F.normalize(x, dim=0), (100, 600_000)),  # or a group of columns
        (lambda x: x.sum(0), (40_000, 1500)),  # read once
        (lambda x: F.normalize(x, dim=0), (60_000_000,)),  # the cache holds no row
    ],
)
def test_strips_are_not_tried_where_nothing_would_come_from_the_cache(
    function: Callable[..., Any], shape: tuple[int, ...]
) -> None:
    assert not strips(function, torch.empty(shape))


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: F.normalize(x, dim=0), (1100, 252)),
        (lambda x: torch.softmax(x, 1), (8, 40_000)),
    ],
)
def test_what_is_proposed_gives_what_eager_gives(
    function: Callable[..., Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    it = sample(function, randn(*shape))
    found = strips(function, *it.inputs, device=TINY)
    assert found
    for p in found.values():
        source, plan = emitted(it, **p)
        (got,) = cuda_emulator.run(source, plan, it.inputs, tmp_path)
        torch.testing.assert_close(got, it.want[0], rtol=1e-4, atol=1e-4)


def test_threads_without_a_column_work_on_one_of_their_strip() -> None:
    function, inputs, parameters = CASES["columns"]
    source, _ = emitted(sample(function, *inputs), **parameters)
    assert re.search(r"column = live \? column : group % 5 \* 32;", source)
