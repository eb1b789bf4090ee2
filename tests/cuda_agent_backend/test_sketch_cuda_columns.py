"""Norms over strided dimensions, over several dimensions, and of rows that no cluster holds: read once, or near."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import sympy
import torch
from sketch_kit import Sample, sample
from torch.nn import functional as F

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.common.body_rewrites import fold_constants
from cuda_agent_backend.codegen.cuda.rows.facts import row_facts
from cuda_agent_backend.codegen.cuda.rows.prepare.gather_order import (
    gather_indices_first,
    order_rows_by_reuse,
)
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel, RowStage
from cuda_agent_backend.codegen.ir.loops import merge_outer
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.ir.ssa import GATHER, Body, Instruction, Value

DEVICE = cuda.DeviceFacts()


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, nonnegative=True)


def proposals(it: Sample) -> list[dict[str, Any]]:
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    return [dict(s.parameters(0)) for s in found]


def source_of(it: Sample, **parameters: Any) -> str:
    way = Schedule.of({"sketch": "row", "exchange": "block", "segments": 1, **parameters})
    return cuda.emit(it.analysis.region, it.analysis.kernels, way, DEVICE)[0]


def channels(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    last = x.permute(0, 2, 3, 1)
    return F.layer_norm(last, w.shape, w, b).permute(0, 3, 1, 2).contiguous()


def batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, w, b, training=True)


def sum_and_norm(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = x + y
    return total, F.layer_norm(total, w.shape, w)


Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...], dict[str, Any]]
STRIP = {"lanes": "outer", "vector": 4, "across": 8}
SHARED = {"keep": "shared", "unroll": 4}
ODD: dict[str, Case] = {
    "rows of odd length, copied by four bytes": (
        lambda x: x.log_softmax(1),
        (randn(5, 1023),),
        {**SHARED, "vector": 1, "team": 64},
    ),
    "rows copied by eight bytes, several under way": (
        lambda x: F.normalize(x, dim=1),
        (randn(9, 1026),),
        {**SHARED, "vector": 2, "team": 64, "stages": 2, "blocks": 1},
    ),
    "halves copied by four bytes": (
        lambda x: x.softmax(1),
        (randn(5, 1030).half(),),
        {**SHARED, "vector": 2, "team": 64},
    ),
}
"""Rows that do not begin at multiples of sixteen bytes."""
CASES: dict[str, Case] = {
    **ODD,
    "columns, part of them held": (
        lambda x: F.normalize(x, dim=0),
        (randn(700, 136),),
        {**STRIP, **SHARED, "team": 16, "held": 5},
    ),
    "columns of a whole block": (
        lambda x: F.normalize(x, dim=0),
        (randn(700, 136),),
        {**STRIP, **SHARED, "team": 64},
    ),
    "long sums in runs, upwards and downwards": (
        lambda x: (x - x.mean(0)) / (x - x.mean(0)).square().sum(0, True),
        (randn(1500, 32) + 1,),
        {**STRIP, **SHARED, "team": 4, "held": 150},
    ),
    "columns kept by a cluster in strips of half a line": (
        lambda x: F.normalize(x, dim=0),
        (randn(700, 40),),
        {
            "lanes": "outer",
            "vector": 4,
            "across": 4,
            **SHARED,
            "team": 32,
            "exchange": "cluster",
            "segments": 4,
        },
    ),
    "columns read twice, the second time downwards": (
        lambda x: F.normalize(x, dim=0),
        (randn(700, 136),),
        {**STRIP, "keep": "none", "unroll": 8, "team": 8, "exchange": "split", "segments": 5},
    ),
    "channels first": (
        channels,
        (randn(2, 40, 12, 13) + 1, randn(40), randn(40)),
        {**STRIP, "team": 8, "keep": "registers"},
    ),
    "channels first, part of them held": (
        channels,
        (randn(2, 40, 12, 13) + 1, randn(40), randn(40)),
        {**STRIP, **SHARED, "team": 4, "held": 3},
    ),
    "values of several images": (
        batch_norm,
        (randn(6, 8, 20, 10) + 3, randn(8), randn(8)),
        {**SHARED, "vector": 4, "team": 64},
    ),
    "values of several images, part of them held": (
        batch_norm,
        (randn(6, 8, 20, 10) + 3, randn(8), randn(8)),
        {**SHARED, "vector": 4, "team": 32, "held": 4},
    ),
    "a result that is normalised, part of it held": (
        sum_and_norm,
        (randn(5, 2200), randn(5, 2200) + 1, randn(2200)),
        {**SHARED, "vector": 4, "team": 32, "held": 5},
    ),
    "several rows of a warp": (
        lambda x: (x - x.mean(-1, True)) * x.var(-1, keepdim=True),
        (randn(70, 72) + 100,),
        {"vector": 2, "team": 8, "across": 8, "keep": "registers"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_kept_of_a_row_gives_what_eager_gives(name: str, tmp_path: Path) -> None:
    function, inputs, parameters = CASES[name]
    it = sample(function, *inputs)
    way = Schedule.of({"sketch": "row", "exchange": "block", "segments": 1, **parameters})
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, way, DEVICE)
    outputs = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    for got, want in zip(outputs, it.want, strict=True):
        loose = 1e-2 if want.dtype == torch.float16 else 1e-4
        torch.testing.assert_close(got, want, rtol=loose, atol=loose)


@pytest.mark.parametrize(("name", "size"), zip(ODD, (4, 8, 4), strict=True))
def test_rows_of_any_length_are_copied_without_waiting(name: str, size: int) -> None:
    function, inputs, parameters = ODD[name]
    source = source_of(sample(function, *inputs), **parameters)
    assert f"copy_async_narrow<{size}>(kept0" in source


def test_values_spread_over_several_dimensions_are_kept() -> None:
    it = sample(batch_norm, torch.empty(40, 72, 150, 140), torch.empty(72), torch.empty(72))
    best = proposals(it)[0]
    assert (best["keep"], best["exchange"]) == ("shared", "cluster")
    source = source_of(it, **best)
    assert len(re.findall(r"ca::load(_once)?<L>\(m_arg0", source)) == 0


@pytest.mark.parametrize("shape", [(24, 2_500_000), (3, 40, 700_000)])
def test_of_rows_too_long_for_a_cluster_part_is_held_first_of_all(shape: tuple[int, ...]) -> None:
    it = sample(lambda x: F.layer_norm(x, x.shape[-1:]), torch.empty(shape))
    held = [p for p in proposals(it)[:6] if p.get("held")]
    if shape[-1] < 900_000:
        assert all(p["segments"] < 16 for p in held)  # sixteen blocks hold such a row whole
    else:
        assert held and held[0]["segments"] == 16


def test_columns_too_long_for_a_cluster_are_held_in_strips_of_whole_lines() -> None:
    it = sample(lambda x: F.normalize(x, dim=0), torch.empty(40_000, 1500))
    best = proposals(it)[0]
    assert best["held"] and best["across"] * best["vector"] * 4 == 128


@pytest.mark.parametrize(("rows", "widths"), [(40_000, {64}), (28_000, set())])
def test_columns_are_kept_whole_in_strips_of_half_a_line_where_those_of_a_line_are_too_long(
    rows: int, widths: set[int]
) -> None:
    it = sample(lambda x: F.normalize(x, dim=0), torch.empty(rows, 1500))
    kept = [p for p in proposals(it)[:8] if p["keep"] == "shared" and not p.get("held")]
    found = {p["across"] * p["vector"] * 4 for p in kept}
    assert {width for width in found if width < 128} == widths
    assert found


def test_blocks_that_read_columns_twice_fill_one_wave() -> None:
    it = sample(lambda x: F.normalize(x, dim=0), torch.empty(40_000, 1500))
    split = [p for p in proposals(it)[:4] if p["exchange"] == "split"]
    waves = [
        p["segments"] * math.ceil(1500 / (p["across"] * p["vector"])) / DEVICE.sm_count
        for p in split
    ]
    assert len(waves) == 2
    assert 2.9 < waves[0] <= 3 and 3.9 < waves[1] <= 4


def test_what_a_launch_reads_again_it_reads_downwards() -> None:
    it = sample(lambda x: F.normalize(x, dim=0), torch.empty(700, 136))
    way = {**STRIP, "team": 8, "keep": "none", "exchange": "split", "segments": 5}
    first, second = source_of(it, **way).partition('extern "C"')[2].split('extern "C"')
    assert "--k" not in first and "--k" in second


@pytest.mark.parametrize("change", [{"keep": "registers"}, {"keep": "none"}, {"stages": 2}])
def test_a_part_is_held_in_shared_memory_only(change: dict[str, Any]) -> None:
    it = sample(lambda x: F.normalize(x, dim=1), torch.empty(64, 20_000))
    parameters = {**SHARED, "vector": 4, "team": 256, "held": 3}
    assert "ca::copy_async" in source_of(it, **parameters)
    with pytest.raises(Unsupported, match="held"):
        source_of(it, **{**parameters, **change})


def test_what_is_not_held_is_read_downwards_by_the_second_pass() -> None:
    it = sample(lambda x: F.normalize(x, dim=1), torch.empty(64, 20_480))
    source = source_of(it, **SHARED, vector=4, team=256, held=8).partition('extern "C"')[2]
    first, second = source.split("// pass 1")
    assert "for (int k = 8; k < 20; ++k)" in first
    assert "for (int k = 20 - 1; k >= 8; --k)" in second and "load_once" in second
    assert "load_once" not in first  # it is wanted again


def test_what_a_row_shares_is_not_hidden_from_the_compiler() -> None:
    it = sample(lambda x: F.instance_norm(x), torch.empty(8, 9, 60, 60))
    assert "truediv" in source_of(it, vector=4, team=256, keep="registers").partition("m_")[2]
    assert "ca::maximum" not in source_of(it, vector=4, team=256, keep="registers")


def test_constants_are_folded_where_that_is_exact() -> None:
    def constant(number: int, text: str, dtype: torch.dtype = torch.float32) -> Instruction:
        return Instruction(Value(number), "constant", (text,), dtype)

    body = Body(
        [
            constant(0, "0.0"),
            constant(1, "36000.0"),
            constant(2, "1e-05"),
            constant(3, "7", torch.int64),
            Instruction(Value(4), "sub", (Value(1), Value(0))),
            Instruction(Value(5), "maximum", (Value(0), Value(4))),
            Instruction(Value(6), "add", (Value(1), Value(2))),
            Instruction(Value(7), "maximum", (Value(0), Value(0))),
            Instruction(Value(8), "add", (Value(3), Value(3))),
        ],
        (Value(8),),
    )
    folded = fold_constants(body).instructions
    assert [i.op for i in folded[4:]] == ["constant", "constant", "add", "maximum", "add"]
    assert [i.operands for i in folded[4:6]] == [("36000.0",), ("36000.0",)]


def load(number: int, buffer: str, index: sympy.Expr) -> Instruction:
    return Instruction(Value(number), "load", dtype=torch.float32, buffer=buffer, index=index)


def stage(body: Body, inner: tuple[tuple[sympy.Symbol, int], ...]) -> RowStage:
    return RowStage("s", "map", "", torch.float32, inner, body, (), ())


def test_lines_of_an_image_are_one_line_of_neighbouring_rows() -> None:
    it = sample(channels, torch.empty(12, 320, 120, 130), torch.empty(320), torch.empty(320))
    (kernel,) = it.analysis.kernels
    assert [n for _, n in merge_outer(kernel).outer] == [12, 120 * 130]
    assert row_facts(kernel, it.analysis.region).columns == 15_600
    assert proposals(it)[0]["vector"] == 4


def test_outer_loops_that_an_access_tells_apart_stay_apart() -> None:
    a, b, r = symbol("p0"), symbol("p1"), symbol("r")
    together = stage(Body([load(0, "x", 800 * a + 100 * b + r)], (Value(0),)), ((r, 100),))
    apart = stage(Body([load(0, "w", 100 * b + r)], (Value(0),)), ((r, 100),))
    outer = ((a, 4), (b, 8))
    assert merge_outer(Kernel(outer, (together,), {})).outer == ((b, 32),)
    assert merge_outer(Kernel(outer, (together, apart), {})).outer == outer


def test_rows_that_read_the_same_are_side_by_side() -> None:
    a, b, r = symbol("p0"), symbol("p1"), symbol("r")
    body = Body([load(0, "x", 2048 * a + 256 * b + r), load(1, "w", 256 * b + r)], (Value(1),))
    kernel = Kernel(((a, 4), (b, 8)), (stage(body, ((r, 256),)),), {})
    assert order_rows_by_reuse(kernel).outer == ((b, 8), (a, 4))
    short = Kernel(kernel.outer, (stage(body, ((r, 16),)),), {})
    assert order_rows_by_reuse(short).outer == short.outer


def test_places_are_loaded_before_the_first_is_tested_and_rows_after_the_last() -> None:
    a, r = symbol("p0"), symbol("r")

    def gather(number: int, place: int) -> Instruction:
        return Instruction(Value(number), GATHER, (Value(place),), torch.float32, "t", r)

    body = Body(
        [
            load(0, "i", a),
            Instruction(Value(1), "place", (Value(0),)),
            gather(2, 1),
            load(3, "x", r),
            load(4, "k", a),
            Instruction(Value(5), "place", (Value(4),)),
            gather(6, 5),
            Instruction(Value(7), "add", (Value(2), Value(6))),
        ],
        (Value(7),),
    )
    numbers = [i.result.number for i in gather_indices_first(body).instructions]
    assert numbers == [0, 4, 1, 5, 2, 3, 6, 7]
    assert gather_indices_first(Body([load(0, "x", r)], (Value(0),))).instructions[0].buffer == "x"


def test_tables_and_a_norm_give_what_eager_gives(tmp_path: Path) -> None:
    def function(w: Any, p: Any, k: Any, a: Any, b: Any) -> torch.Tensor:
        return F.layer_norm(w[a] + p[None] + k[b], (256,))

    at, kind = torch.arange(54).view(6, 9) % 50, torch.arange(54).view(6, 9) % 7
    it = sample(function, randn(50, 256), randn(9, 256), randn(7, 256), at, kind, target="cuda")
    way = Schedule.of({"sketch": "row", "vector": 4, "team": 32, "across": 4, "keep": "registers"})
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, way, DEVICE)
    assert "p1 = ca::idiv(row, 6)" in source  # rows of a block have one place in common
    (found,) = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    torch.testing.assert_close(found, it.want[0], rtol=1e-4, atol=1e-4)


def test_positions_of_extremes_are_not_looked_for_out_of_order() -> None:
    it = sample(lambda x: (x - x.amax(1, True), x.argmax(1)), randn(2, 4_000_000))
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    assert found and not any(s.parameters(0).get("held") for s in found)
    only = sample(lambda x: x - x.amax(1, True), randn(2, 4_000_000))
    found = cuda.schedules(only.analysis.region, only.analysis.kernels, DEVICE)
    assert any(s.parameters(0).get("held") for s in found)


@pytest.mark.parametrize(("lanes", "shape"), [("inner", (2, 4000)), ("outer", (2000, 8))])
def test_of_equal_extremes_the_first_is_found_also_by_a_pass_that_reads_again(
    lanes: str, shape: tuple[int, int], tmp_path: Path
) -> None:
    dim = int(lanes == "inner")
    x = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(1)).float()
    it = sample(lambda x: (x - x.mean(dim, keepdim=True)).argmax(dim), x)
    way = {"exchange": "split", "keep": "none", "unroll": 4, "segments": 4, "vector": 4}
    own = {"team": 128, "across": 1} if lanes == "inner" else {"team": 32, "across": 2}
    source, plan = cuda.emit(
        it.analysis.region,
        it.analysis.kernels,
        Schedule.of({"sketch": "row", "lanes": lanes, **way, **own}),
        DEVICE,
    )
    (got,) = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    assert torch.equal(got, it.want[0])
