"""Products that are reduced in their tiles on cuda: recognised, and right, as an emulator on the CPU runs them."""

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
from kit.compare import relative
from sketch_kit import Sample
from sketch_kit import on_cuda as made
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.analysis import mixed_reductions as crossing
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda import join_schedules
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce import family as reduce_family
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.directions import shape_of
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.match import ReduceMatch, match_reduction
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.schedules import reduce_schedules
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.stages import below
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.writer import (
    SKETCH,
    reduce_epilogue_writer,
)
from cuda_agent_backend.codegen.cuda.gemm.tiles import read_tiles
from cuda_agent_backend.codegen.cuda.schedules import kernel_schedules
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import RowStage
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate

pytestmark = pytest.mark.usefixtures("plain_layouts")

DEVICE = cuda.DeviceFacts()
TILES: dict[str, Parameter] = {
    "sketch": SKETCH, "tile_m": 32, "tile_n": 32, "depth": 16, "warp_m": 16, "warp_n": 16, "stages": 3, "run": 16,
}  # fmt: skip
GROUPS: dict[str, Parameter] = {
    "tile_m": 128, "tile_n": 64, "depth": 32, "stages": 5, "run": 32, "group": 2,
}  # fmt: skip
HALF: dict[str, Parameter] = {"products": 1, "run": 0, "depth": 32}


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def below_maximum(y: Tensor) -> Tensor:
    return (y - y.amax(1, keepdim=True)).exp().sum(1)


def statistics(y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var_mean(y, 1)


def squares_from_a_mean(y: Tensor, share: float = 1.0) -> Tensor:
    return (y - y.mean(1, keepdim=True) * share).square().sum(1)


def some_ignored(count: int) -> Tensor:
    return torch.where(torch.arange(count) % 3 == 0, -100, torch.arange(count) * 7 % 99)


def cross_entropy_of_tail(x: Tensor, w: Tensor, b: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w, b).tanh() * 3.0, targets)


def nearest(x: Tensor, codes: Tensor, lengths: Tensor) -> Tensor:
    return torch.sqrt(4.0 + (lengths - x @ codes.t()).amin(1).abs())


def below_row(y: Tensor, extreme: Callable[..., Tensor]) -> Tensor:
    return y - extreme(y, 1, keepdim=True)


X, W = randn(61, 70), randn(70, 99)
LONG = (randn(9, 40), randn(40, 5000))
IMAGE, FILTER, BIAS = randn(3, 8, 20, 22), randn(24, 8, 3, 3), randn(24)
Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
# sizes that are no multiple of a tile, so that lines end within one
CASES: dict[str, Case] = {
    "sum over columns": (lambda x, w: (x @ w).relu().sum(1), (X, W)),
    "maximum over columns": (lambda x, w: (x @ w).amax(1), (X, W)),
    "minimum over columns": (nearest, (X, randn(99, 70), randn(99))),
    "a scaled operand": (lambda x, w: (3.0 - 2 * x @ w).amin(1), (X, W)),
    "sum of squares": (lambda x, w: (x @ w).square().sum(1), (X, W)),
    "whole tiles": (lambda x, w: (x @ w).relu().sum(1), (randn(64, 64), randn(64, 96))),
    "one tile by columns": (lambda x, w: (x @ w).relu().sum(1), (X, randn(70, 27))),
    "sum over rows": (lambda x, w: (x @ w).relu().sum(0), (X, W)),
    "maximum over rows": (lambda x, w, b: (F.linear(x, w, b) * 0.5).amax(0), (X, randn(45, 70), randn(45))),
    "sum over all": (lambda x, w: (x @ w).relu().sum(), (X, W)),
    "logsumexp": (lambda x, w: torch.logsumexp(x @ w, 1), (X, W)),
    "logsumexp over rows": (lambda x, w: torch.logsumexp(x @ w, 0), (X, W)),
    "below a maximum": (lambda x, w: below_maximum((x @ w) / 0.7), (X, W)),
    "statistics": (lambda x, w: statistics((x @ w) + 9.0), (X, W)),
    "statistics of long rows": (lambda x, w: statistics((x @ w) + 9.0), (randn(9, 40), randn(40, 1100))),
    "squares from a scaled mean": (
        lambda x, w: squares_from_a_mean((x @ w).relu(), 0.5), (X, W),
    ),
    "squares from a mean": (lambda x, w: squares_from_a_mean(x @ w), (X, W)),
    "several": (lambda x, w: ((x @ w).sum(1), (x @ w).amax(1), (x @ w).square().sum(1)), (X, W)),
    "cross entropy": (lambda x, w, t: F.cross_entropy(x @ w, t), (X, W, some_ignored(61))),
    "cross entropy with a tail": (cross_entropy_of_tail, (X, randn(99, 70), randn(99), some_ignored(61))),
    "cross entropy over rows": (
        lambda x, w, t: F.cross_entropy((x @ w).t(), t, reduction="none"),
        (randn(99, 70), randn(70, 45), some_ignored(45)),
    ),
    "batches": (lambda a, b: torch.bmm(a, b).amax(2), (randn(3, 33, 40), randn(3, 40, 50))),
    "positions of an image": (lambda x, w, b: F.conv2d(x, w, b).mean((2, 3)), (IMAGE, FILTER, BIAS)),
    "padded positions": (
        lambda x, w: F.conv2d(x, w, padding=1, stride=2).relu().amax((2, 3)), (IMAGE, FILTER),
    ),
    "tokens of a batch": (lambda x, w: F.gelu(x @ w).mean(1), (randn(3, 90, 40), randn(40, 30))),
    "more rows than threads": (lambda x, w: (x @ w).exp().sum(1), (0.1 * randn(200, 40), randn(40, 40))),
}  # fmt: skip


def case(name: str) -> Sample:
    function, inputs = CASES[name]
    return made(function, *inputs)


def in_tiles(it: Sample, **change: Parameter) -> Schedule:
    """The first product reduced in such tiles, and the best guess for what joins them."""
    tiles = TILES | change
    region, kernels = it.analysis.region, it.analysis.kernels
    reducing = match_reduction(region, kernels, 0)
    region, kernels = reducing.in_tiles(shape_of(read_tiles(tiles)))
    others = (kernel_schedules(kernel, region, DEVICE)[0] for kernel in kernels[1:])
    return Schedule.of(tiles, *others)


def excited(x: Tensor, w: Tensor, b: Tensor, mix: Tensor) -> Tensor:
    y = F.conv2d(x, w, b, padding=1).relu()
    return y * (y.mean((2, 3)) @ mix).sigmoid()[:, :, None, None]


def pairs(a: Tensor, b: Tensor) -> Tensor:
    """Cross entropy of all pairs' scores, each matched with its own, in both directions."""
    scores = a @ b.T
    wanted = torch.arange(len(a))
    return F.cross_entropy(scores, wanted) + F.cross_entropy(scores.T, wanted)


def both_ways(y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.logsumexp(y, 1), torch.logsumexp(y, 0)


def pairs_of_products(x: Tensor, w: Tensor, across: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ w
    return (
        F.cross_entropy(y, across, reduction="none"),
        F.cross_entropy(y.T, down, reduction="none"),
    )


BOTH: dict[str, Case] = {
    "both directions": (lambda x, w: both_ways((x @ w) / 0.7), (X, W)),
    "both directions of a tail": (lambda x, w: both_ways((x @ w).tanh() * 4.0), (X, W)),
    "both directions of long lines": (lambda x, w: both_ways(x @ w), (randn(150, 40), randn(40, 292))),
    "statistics in one, extremes in the other": (
        lambda x, w: (torch.var(x @ w, 1), (x @ w).amax(0)), (X, W),
    ),
    "batches in both directions": (
        lambda a, b: (torch.bmm(a, b).amax(2), torch.bmm(a, b).exp().sum(1)),
        (randn(3, 33, 40), 0.1 * randn(3, 40, 50)),
    ),
    "cross entropy in both directions": (
        pairs_of_products, (X, W, some_ignored(61), torch.arange(99) * 5 % 61),
    ),
}  # fmt: skip
CASES |= BOTH
KEPT: dict[str, Case] = {
    "and wanted": (lambda x, w: (x @ w, (x @ w).sum(1)), (X, W)),
    "columns of what lies by rows": (lambda x, w: ((x @ w).tanh(), (x @ w).tanh().amax(0)), (X, W)),
    "squeezed and excited": (excited, (IMAGE, FILTER, BIAS, randn(24, 24))),
}
CASES |= KEPT


def emulated(it: Sample, schedule: Schedule, folder: Path) -> list[Tensor]:
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    return cuda_emulator.run(source, plan, it.inputs, folder)


def in_float64(name: str, results: list[Tensor]) -> list[Tensor]:
    """In the order of a region's results, which need not be the function's where their shapes differ."""
    function, inputs = CASES[name]
    found = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    waiting = [found] if isinstance(found, Tensor) else list(found)
    return [waiting.pop([x.shape for x in waiting].index(r.shape)) for r in results]


@pytest.mark.parametrize("name", CASES)
def test_products_are_written_only_where_something_else_needs_them(name: str) -> None:
    it = case(name)
    reducing = match_reduction(it.analysis.region, it.analysis.kernels, 0)
    _, kernels = reducing.in_tiles((32, 32))
    written = {s.buffer for k in kernels for stage in k.stages for s in stage.stores}
    assert (reducing.buffer in written) == (name in KEPT)


@pytest.mark.parametrize("name", CASES)
def test_reductions_are_as_accurate_as_eagers(name: str, tmp_path: Path) -> None:
    it = case(name)
    got = emulated(it, in_tiles(it), tmp_path)
    for mine, theirs, want in zip(got, it.want, in_float64(name, got), strict=True):
        assert mine.shape == theirs.shape
        assert relative(mine, want) < 2 * relative(theirs, want) + 1e-7


@pytest.mark.parametrize(
    "name", ["sum over columns", "logsumexp", "positions of an image", "statistics", "and wanted"]
)
@pytest.mark.parametrize(
    "change",
    [
        GROUPS,
        {**GROUPS, "group": 1, "stages": 4, "tile_m": 64},
        {"warp_n": 32, "tile_n": 64, "depth": 64, "warps_k": 2, "stages": 2},
        {"aligned": 1, "tile_n": 64},
    ],
)
def test_other_ways_to_multiply_reduce_the_same(
    name: str, change: dict[str, Parameter], tmp_path: Path
) -> None:
    it = case(name)
    if "aligned" in change and name == "positions of an image":
        pytest.skip("its operands need no copies")
    got = emulated(it, in_tiles(it, **change), tmp_path)
    for mine, theirs, want in zip(got, it.want, in_float64(name, got), strict=True):
        assert relative(mine, want) < 2 * relative(theirs, want) + 2e-7


SPECIAL = (math.inf, -math.inf, math.nan)


@pytest.mark.parametrize(
    "change",
    [GROUPS, {"warp_n": 32, "tile_n": 64, "depth": 64, "warps_k": 2, "stages": 2}],
)
@pytest.mark.parametrize("size", [150, 151])
def test_scores_of_all_pairs_are_never_written(
    size: int, change: dict[str, Parameter], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(crossing, "LEAST", 1)
    a, b = F.normalize(randn(size, 40), dim=1), 12.0 * F.normalize(randn(40, size).T, dim=1)
    it = made(pairs, a, b)
    schedule = in_tiles(it, **change)
    reducing = match_reduction(it.analysis.region, it.analysis.kernels, 0)
    assert [one.by_rows for one in reducing.directions] == [False, True]
    assert not reducing.kept
    (got,) = emulated(it, schedule, tmp_path)
    want = pairs(a.double(), b.double())
    assert relative(got, want) < 2 * relative(it.want[0], want) + 1e-7


@pytest.mark.parametrize("special", SPECIAL)
def test_both_directions_see_what_is_not_finite(special: float, tmp_path: Path) -> None:
    x, w = torch.zeros(40, 16), torch.zeros(16, 70)
    x[:, :1], w[0] = randn(40, 1), 1.0
    x[5, 0], w[0, 7] = special, special
    x[9] = 0.0
    function, _ = CASES["both directions"]
    it = made(function, x, w)
    for mine, theirs in zip(emulated(it, in_tiles(it), tmp_path), it.want, strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("group", [0, 3, 4])
def test_both_directions_of_operands_of_16_bits(
    dtype: torch.dtype, group: int, tmp_path: Path
) -> None:
    x, w = randn(150, 72).to(dtype), randn(72, 104).to(dtype)
    it = made(lambda x, w: ((x @ w).amax(1), (x @ w).amax(0)), x, w)
    tiles: dict[str, Parameter] = {"tile_m": 128, "tile_n": 64, "depth": 64, "stages": 4}
    change = HALF if not group else {**HALF, **tiles, "group": group}
    for mine, theirs in zip(emulated(it, in_tiles(it, **change), tmp_path), it.want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "scaled", [lambda y: y * 3.0, lambda y: y / 0.07, lambda y: y / 3, lambda y: y * 0.5 / 0.3]
)
@pytest.mark.parametrize("extreme", [torch.amax, torch.amin])
def test_extremes_of_multiples_are_scaled_once_for_a_line(
    scaled: Callable[..., Tensor], extreme: Callable[..., Tensor], tmp_path: Path
) -> None:
    it = made(lambda x, w: extreme(scaled(x @ w), 1), X, W)
    reducing = match_reduction(it.analysis.region, it.analysis.kernels, 0)
    text = "\n".join(reduce_epilogue_writer(reducing, read_tiles(TILES), DEVICE).store_tail())
    loop, _, end = text.partition("warp_join")
    assert not re.search("divide|mul", loop)
    assert re.search("divide|mul", end)
    (got,) = emulated(it, in_tiles(it), tmp_path)
    torch.testing.assert_close(got, it.want[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "changed",
    [lambda y: y * -3.0, lambda y: y / -0.07, lambda y: 2.0 * (y + 1.0)],
)
def test_other_extremes_are_those_of_each_value(
    changed: Callable[..., Tensor], tmp_path: Path
) -> None:
    it = made(lambda x, w, z: (changed(x @ w) * z).amax(1), X, W, randn(61, 1))
    (got,) = emulated(it, in_tiles(it), tmp_path)
    torch.testing.assert_close(got, it.want[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "apart"),
    [
        (lambda x: (x.sum(1), x.sum(0)), True),
        (lambda x: (x.sum(1), x.amax(1)), False),
        (lambda x: (x.sum(0), x.amax(0)), False),
        (lambda x: (x[:64, :64].sum(1), x[:64, :64].sum(0)), False),
    ],
)
def test_reductions_along_and_across_memory_are_kernels_of_their_own(
    change: Callable[..., Any], apart: bool
) -> None:
    it = made(change, torch.empty(1024, 1024))
    assert len(it.analysis.kernels) == 1 + apart


@pytest.mark.parametrize(
    "name",
    [
        "sum over columns",
        "maximum over columns",
        "a scaled operand",
        "logsumexp",
        "below a maximum",
        "squares from a mean",
    ],
)
@pytest.mark.parametrize("special", SPECIAL)
def test_what_is_not_finite_is_as_in_eager(name: str, special: float, tmp_path: Path) -> None:
    function, _ = CASES[name]
    x, w = torch.zeros(40, 16), torch.zeros(16, 70)
    x[:, :1], w[0] = randn(40, 1), 1.0
    x[5, 0], w[0, 7] = special, special  # a row, and one result of each
    x[9] = 0.0
    it = made(function, x, w)
    for mine, theirs in zip(emulated(it, in_tiles(it), tmp_path), it.want, strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("special", SPECIAL)
def test_picked_results_that_are_not_finite_are_as_in_eager(special: float, tmp_path: Path) -> None:
    x, w, targets = randn(61, 70), randn(70, 99), torch.arange(61)
    x[5, 3], w[4, 9] = special, special
    it = made(lambda x, w, t: F.cross_entropy(x @ w, t, reduction="none"), x, w, targets)
    (got,) = emulated(it, in_tiles(it), tmp_path)
    torch.testing.assert_close(got, it.want[0], equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["logsumexp", "below a maximum"])
def test_tiles_without_any_number_add_nothing(name: str, tmp_path: Path) -> None:
    function, _ = CASES[name]
    x, w = torch.full((20, 16), 2.0), torch.ones(16, 70)
    w[0, :40], w[0, 40:] = -math.inf, randn(30) - 60.0
    it = made(function, x, w)
    (got,) = emulated(it, in_tiles(it), tmp_path)
    torch.testing.assert_close(got, it.want[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "name", ["sum over columns", "maximum over columns", "logsumexp over rows"]
)
def test_operands_of_16_bits(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    halves = tuple(x.to(dtype) for x in inputs)
    it = made(function, *halves)
    want = function(*(x.double() for x in halves))
    (got,) = emulated(it, in_tiles(it, **HALF), tmp_path)
    assert relative(got, want) < 2 * relative(it.want[0], want) + 1e-7


@pytest.mark.parametrize("group", [3, 4])
@pytest.mark.parametrize("across", [False, True])
def test_warp_groups_reduce_operands_of_16_bits(group: int, across: bool, tmp_path: Path) -> None:
    x, w = randn(150, 72).half(), randn(72, 104).half()
    it = made(lambda x, w: torch.logsumexp(x @ w, int(not across)), x, w)
    tiles: dict[str, Parameter] = {"tile_m": 128, "tile_n": 64, "depth": 64, "stages": 4}
    (got,) = emulated(it, in_tiles(it, **{**HALF, **tiles, "group": group}), tmp_path)
    want = torch.logsumexp(x.double() @ w.double(), int(not across))
    assert relative(got, want) < 2 * relative(it.want[0], want) + 1e-7


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, w: F.log_softmax(x @ w, 1), (X, W)),
        (lambda x, w: (x @ w).argmax(1), (X, W)),
        (
            lambda x, w, t: ((x @ w).amax(1), (x @ w).gather(1, t)),
            (X, W, torch.zeros(61, 2, dtype=torch.int64)),
        ),
        (lambda x, w: (x @ w)[:, :50].sum(1), (X, W)),
        (lambda x, w: (x @ w).view(61, 11, 9).amax(2), (X, W)),
        (
            lambda a, b: (a @ b).diagonal(dim1=-2, dim2=-1).sum(-1),
            (randn(3, 40, 50), randn(3, 50, 40)),
        ),
        (lambda x, w: ((x @ w) * (x @ w).amax(1, keepdim=True)).sum(1), (X, W)),
        # Welford's statistics of what is below the row's maximum, not the tile's
        (lambda x, w: below_row(x @ w, torch.amax).var(1), LONG),
        (lambda x, w: below_row(x @ w, torch.amin).var(1), LONG),
        (lambda x, w: torch.var_mean(below_row((x @ w).relu(), torch.amax).exp(), 1), LONG),
        # squared deviations from what is no mean of theirs
        (lambda x, w: below_row(x @ w, torch.amin).square().sum(1), (X, W)),
        (lambda x, w: ((x @ w) + (x @ w).mean(1, keepdim=True)).square().sum(1), (X, W)),
        (lambda x, w: ((x @ w) - (x @ w).mean(1, keepdim=True).sigmoid()).square().sum(1), (X, W)),
        (lambda x, w: ((x @ w) - (x @ w).relu().mean(1, keepdim=True)).square().sum(1), (X, W)),
        # scalars that the reader makes of something else
        (lambda x, w, z: ((x @ w) * z.sum(1, keepdim=True)).amax(1), (X, W, randn(61, 50))),
        (lambda x, w, z: (x @ w - z.amax(1, keepdim=True)).exp().sum(1), (X, W, randn(61, 50))),
    ],
)
def test_what_else_becomes_of_a_product_is_left_to_others(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    it = made(function, *inputs)
    with pytest.raises(Unsupported):
        match_reduction(it.analysis.region, it.analysis.kernels, 0).in_tiles((32, 32))
    offered = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    assert all(dict(k)["sketch"] != SKETCH for s in offered for k in s.kernels)


@pytest.mark.parametrize(("rows", "columns", "first"), [(4096, 4000, True), (128, 96, False)])
def test_both_ways_are_offered(rows: int, columns: int, first: bool, tmp_path: Path) -> None:
    it = made(
        lambda x, w: torch.logsumexp(x @ w, 1), torch.empty(rows, 512), torch.empty(512, columns)
    )
    region, kernels = it.analysis.region, it.analysis.kernels
    offered = cuda.schedules(region, kernels, DEVICE)
    ways = [s.parameters(0)["sketch"] == SKETCH for s in offered]
    assert ways[:2] == [first, not first]
    for schedule in offered:
        cuda.emit(region, kernels, schedule, DEVICE)


def test_what_a_body_shares_is_looked_at_once() -> None:
    squared = [Instruction(Value(0), "local", buffer="product", index=sympy.S.Zero)]
    for n in range(64):  # as a tree, of 2**64 values
        squared.append(Instruction(Value(n + 1), "mul", (Value(n), Value(n))))
    top = Instruction(Value(65), "local", buffer="top", index=sympy.S.Zero)
    less = Instruction(Value(66), "sub", (Value(64), Value(65)))
    exp = Instruction(Value(67), "exp", (Value(66),))

    def reduction(combine: str, *more: Instruction) -> RowStage:
        body = Body([*squared, *more], ((*squared, *more)[-1].result,))
        return RowStage(combine, "reduce", combine, torch.float32, (), body, (), ())

    assert below(reduction("sum", top, less, exp), {"top": reduction("max")}) == Value(64)


def test_tiles_are_ranked_once_for_all_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(reducing: ReduceMatch, device: cuda.DeviceFacts, most: int) -> list[Any]:
        asked.append(reducing.number)
        return reduce_schedules(reducing, device, most)

    monkeypatch.setattr(reduce_family, "reduce_schedules", counted)
    it = made(
        lambda x, w: torch.logsumexp(x @ w, 1), torch.empty(1024, 512), torch.empty(512, 1000)
    )
    found = join_schedules.reduced_schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    assert len(found) > 1
    assert asked == [0]


@pytest.mark.parametrize("most", [2, 3])
def test_no_more_schedules_are_offered_than_are_asked_for(most: int) -> None:
    it = made(
        lambda x, w: torch.logsumexp(x @ w, 1), torch.empty(4096, 512), torch.empty(512, 4000)
    )
    region, kernels = it.analysis.region, it.analysis.kernels
    offered = cuda.schedules(region, kernels, DEVICE, most)
    assert most <= len(offered) <= 1 + len(kernels) * (most - 1)
    assert offered[0].parameters(0)["sketch"] == SKETCH


@pytest.mark.parametrize("change", [{}, GROUPS])
@pytest.mark.parametrize("name", ["and wanted", "sum over columns"])
def test_results_are_stored_before_any_is_worked_out_anew(
    name: str, change: dict[str, Parameter]
) -> None:
    it = case(name)
    tiles = read_tiles(TILES | change)
    reducing = match_reduction(it.analysis.region, it.analysis.kernels, 0)
    writer = reduce_epilogue_writer(reducing, tiles, DEVICE)
    before, _, _ = "\n".join(writer.store_tail()).partition("for (int turn")
    assert before.count(writer.meeting) == (name in KEPT)


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_directions_compile_without_spilling_registers(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    a, b = torch.empty(5000, 384, dtype=dtype), torch.empty(5000, 384, dtype=dtype)
    it = made(lambda a, b: ((a @ b.T).amax(1), (a @ b.T).amax(0)), a, b)
    if dtype == torch.float32:
        it = made(pairs, a, b)
    region, kernels = it.analysis.region, it.analysis.kernels
    schedule = cuda.schedules(region, kernels, DEVICE)[0]
    assert schedule.parameters(0)["sketch"] == SKETCH
    candidate = Candidate("cuda", "cuda", *cuda.emit(region, kernels, schedule, DEVICE), "sketch")
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    assert all(kernel["spill_store_bytes"] == 0 for kernel in built.facts.values())
