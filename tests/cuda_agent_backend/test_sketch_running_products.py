"""Running products are rounded once or little more, and leave the range of single precision as late as results do."""

from __future__ import annotations

import math
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
POINTS = 1500
WAYS: dict[str, dict[str, Any]] = {
    "in registers": {"vector": 4, "team": 64, "across": 2, "keep": "registers"},
    "with many blocks": {"vector": 4, "team": 128, "keep": "registers", "blocks": 8},
    "tile by tile": {"vector": 2, "team": 32, "across": 4, "keep": "none", "unroll": 4},
}


def factors() -> torch.Tensor:
    """Rows near one, of any size, with zeros, numbers that are none, and products beyond single precision."""
    made = torch.Generator().manual_seed(3)
    x = 1 + torch.randn(12, POINTS, generator=made) / 30
    x[1] = torch.randn(POINTS, generator=made)
    x[2, 700] = 0.0
    x[3, 31], x[3, 900] = math.inf, -2.0
    x[4, 500] = math.nan
    x[5, 0::2], x[5, 1::2] = 1e30, 1e-30
    x[6, 3::4], x[6, 2::4] = 1e-30, -1e30
    x[7, 8:11], x[7, 1000:1003] = 1e-13, 1e13
    x[8, 100] = 1e-42
    x[9, 10], x[9, 11] = math.inf, 0.0
    x[10:] = torch.randn(2, POINTS, generator=made) / 10
    x[10, 1400] = math.inf  # where the product has long been zero, also in double precision
    x[11, 3] = -math.inf  # behind which factors whose product would be zero leave it as it is
    return x


def source_of(it: Sample, way: dict[str, Any]) -> tuple[str, Any]:
    schedule = Schedule.of({"sketch": "row", "exchange": "block", "segments": 1, **way})
    return cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)


@pytest.mark.parametrize("way", WAYS)
def test_products_are_those_of_double_precision_rounded(way: str, tmp_path: Path) -> None:
    it = on_cuda(lambda x: x.cumprod(1), factors())
    source, plan = source_of(it, WAYS[way])
    (got,) = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    want = it.inputs[0].double().cumprod(1).float()
    torch.testing.assert_close(got, want, rtol=3e-7, atol=1e-44, equal_nan=True)


@pytest.mark.parametrize("way", WAYS)
def test_what_follows_reads_the_product_before(way: str, tmp_path: Path) -> None:
    def before(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x.cumprod(1)[:, :-1], (1, 0), value=1.0) + x

    it = on_cuda(before, factors())
    assert len(it.analysis.kernels) == 1
    source, plan = source_of(it, WAYS[way])
    (got,) = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    want = before(it.inputs[0].double()).float()
    torch.testing.assert_close(got, want, rtol=1e-6, atol=2e-7, equal_nan=True)


def test_many_blocks_are_offered_early() -> None:
    it = on_cuda(lambda x: x.cumprod(1), torch.empty(8000, 7000, device="meta"))
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    ways = [dict(s.parameters(0)) for s in found[:3]]
    assert [(p["team"], p["blocks"]) for p in ways if "blocks" in p] == [(256, 4)]


def test_warps_read_totals_before_the_next_row_writes_its_own() -> None:
    it = on_cuda(lambda x: x.cumsum(1), torch.empty(4000, 1024, device="meta"))
    way = {"vector": 4, "team": 128, "keep": "shared", "stages": 2, "blocks": 1}
    source, _ = source_of(it, way)
    rows = source[source.index("for (int row = ") :]
    stored = rows.index("ca::store<L>(m_buf0")
    assert "__syncthreads();" in rows[stored:]


def test_columns_are_not_on_their_way_by_stages() -> None:
    it = on_cuda(lambda x: torch.nn.functional.normalize(x, dim=0), torch.empty(65, 12))
    way = {"lanes": "outer", "vector": 2, "team": 32, "across": 1, "keep": "shared", "stages": 2}
    with pytest.raises(Unsupported, match="stages of columns"):
        source_of(it, way)
