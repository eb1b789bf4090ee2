"""Sums of products for cuda: recognised, written, and right, as an emulator on the CPU runs them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from kit.compare import relative
from sketch_kit import Sample, sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.analysis.gemm import GemmForm, gemm_of, points
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.gemm.aligned_operands import sides_of
from cuda_agent_backend.codegen.cuda.gemm.filter_taps import filter_taps_of, with_taps_apart
from cuda_agent_backend.codegen.cuda.gemm.operands import Output, gather_of, output_of
from cuda_agent_backend.codegen.cuda.gemm.tiles import read_tiles
from cuda_agent_backend.codegen.cuda.gemm.writer import GemmWriter
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate

pytestmark = pytest.mark.usefixtures("plain_layouts")

DEVICE = cuda.DeviceFacts()
TILES = {"sketch": "contract", "tile_m": 32, "tile_n": 32, "depth": 16, "warp_m": 16, "warp_n": 16, "stages": 3,
         "run": 16, "split": 1}  # fmt: skip
GROUPS = {"group": 1, "tile_m": 128, "tile_n": 64, "depth": 32, "stages": 4, "run": 64}


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


def head_major(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w, b).view(2, 33, 4, 16).permute(0, 2, 1, 3).contiguous()


def head_scores(q: Tensor, k: Tensor) -> Tensor:
    return q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1)


def patches(x: Tensor, w: Tensor) -> Tensor:
    return x.view(2, 3, 4, 8, 5, 8).permute(0, 2, 4, 1, 3, 5).reshape(40, 192) @ w


def shared_keys(q: Tensor, k: Tensor) -> Tensor:
    return q @ k[:, :, None].expand(2, 3, 4, 16, 50).reshape(24, 16, 50)


def shared_tokens(x: Tensor, w: Tensor) -> Tensor:
    return torch.bmm(x.expand(3, 34, 40).clone(memory_format=torch.contiguous_format), w)


def gram(x: Tensor) -> Tensor:
    tokens = x.permute(0, 2, 1).reshape(-1, 20)
    return tokens.t() @ tokens


def heads_back(p: Tensor, v: Tensor) -> Tensor:
    return (p @ v).view(3, 4, 33, 16).permute(0, 2, 1, 3).reshape(3, 33, 64)


def padded_twice(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(F.pad(x, (1, 2, 0, 3)), w, padding=1, stride=2)


Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
# sizes that are no multiple of a tile, so that the edges of rows, columns and terms are all met
CASES: dict[str, Case] = {
    "product": (lambda a, b: a @ b, (randn(61, 70), randn(70, 50))),
    "whole tiles": (lambda a, b: a @ b, (randn(64, 64), randn(64, 32))),
    "bias and GELU": (lambda *a: F.gelu(F.linear(*a)), (randn(2, 31, 72), randn(44, 72), randn(44))),
    "residual": (lambda x, w, h: F.linear(x, w) + h, (randn(61, 70), randn(45, 70), randn(61, 45))),
    "long sums": (F.linear, (randn(13, 1501), randn(19, 1501), randn(19))),
    "scaled operands": (lambda a, b: (0.7 * a) @ (b * -3.0), (randn(61, 70), randn(70, 50))),
    "batches": (lambda a, b: torch.bmm(a, b) * 0.5, (randn(5, 33, 64), randn(5, 64, 41))),
    "both transposed": (lambda a, b: torch.relu(a.t() @ b.t()), (randn(70, 33), randn(45, 70))),
    "stored head by head": (head_major, (randn(2, 33, 70), randn(64, 70), randn(64))),
    "stored by columns": (lambda a, b: (a @ b).t().contiguous(), (randn(61, 70), randn(70, 50))),
    "scaled addend": (
        lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2.0).tanh(),
        (randn(45), randn(61, 70), randn(70, 45)),
    ),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), (randn(2, 8, 13, 11), randn(20, 8, 3, 3))),
    "convolution, bias and ReLU": (
        lambda *a: F.relu(F.conv2d(*a, padding=1)), (randn(2, 8, 12, 12), randn(20, 8, 3, 3), randn(20)),
    ),
    "strided and dilated": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=2, dilation=2), (randn(2, 8, 17, 15), randn(20, 8, 3, 3)),
    ),
    "pointwise convolution": (F.conv2d, (randn(2, 24, 8, 12), randn(20, 24, 1, 1))),
    "channels last": (
        lambda *a: F.gelu(F.conv2d(*a, padding=1)), (last(randn(2, 16, 9, 11)), last(randn(24, 16, 3, 3)), randn(24)),
    ),
    "convolution 1D": (lambda x, w: F.conv1d(x, w, stride=3, padding=4), (randn(3, 12, 50), randn(16, 12, 7))),
    "convolution 3D": (
        lambda *a: F.conv3d(*a, padding=1).sigmoid(), (randn(2, 5, 6, 7, 5), randn(12, 5, 3, 3, 3), randn(12)),
    ),
    "transposed, stride 2": (
        lambda *a: F.relu(F.conv_transpose2d(*a, stride=2, padding=1)),
        (randn(2, 9, 7, 6), randn(9, 10, 4, 4), randn(10)),
    ),
    "transposed, stride 2, one more": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        (randn(2, 9, 7, 6), randn(9, 10, 3, 3)),
    ),
    "transposed, cut off": (
        lambda *a: F.conv_transpose1d(*a, stride=3, padding=2).tanh(), (randn(3, 10, 19), randn(10, 12, 5), randn(12)),
    ),
    "transposed, cut off and nothing after it": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), (randn(2, 9, 7, 6), randn(9, 10, 3, 3)),
    ),
    "transposed, each phase by itself": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), (randn(2, 9, 6, 7), randn(9, 16, 4, 4)),
    ),
    "transposed, phases with the same taps": (
        lambda *a: F.conv_transpose1d(*a, stride=8, padding=4).relu(), (randn(3, 10, 19), randn(10, 6, 16), randn(6)),
    ),
    "transposed, fewer taps than phases": (
        lambda x, w: F.conv_transpose2d(x, w, stride=(4, 1)), (randn(2, 20, 6, 7), randn(20, 8, 3, 2)),
    ),
    "transposed, no taps for some columns": (
        lambda x, w: F.conv_transpose2d(x, w, stride=(4, 1)), (randn(2, 9, 6, 7), randn(9, 32, 3, 1)),
    ),
    "transposed 3D, groups": (
        lambda x, w: F.conv_transpose3d(x, w, stride=(1, 2, 1), padding=(0, 1, 1), groups=2),
        (randn(2, 8, 3, 4, 5), randn(8, 6, 2, 4, 3)),
    ),
    "transposed 3D, one dimension shifted, groups": (
        lambda x, w: F.conv_transpose3d(x, w, stride=(1, 2, 2), padding=(1, 3, 0), groups=2),
        (randn(2, 8, 3, 5, 4), randn(8, 16, 2, 6, 2)),
    ),
    "transposed, wide padding": (
        lambda x, w: F.conv_transpose2d(x, w, padding=2), (randn(2, 9, 9, 8), randn(9, 12, 3, 3)),
    ),
    "transposed and dilated": (
        lambda *a: F.conv_transpose1d(*a, dilation=3).relu(), (randn(3, 10, 19), randn(10, 12, 5), randn(12)),
    ),
    "transposed and dilated, groups and padding": (
        lambda x, w: F.conv_transpose2d(x, w, padding=(3, 1), dilation=(2, 1), groups=2),
        (randn(2, 16, 9, 8), randn(16, 9, 3, 2)),
    ),
    "a norm behind it": (
        lambda x, w, b: F.layer_norm(F.linear(x, w, b), (40,)), (randn(61, 70), randn(40, 70), randn(40)),
    ),
    "transposed, taps next to each other in memory": (
        lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=2, output_padding=1).permute(0, 2, 1).contiguous(),
        (randn(64, 32, 2), randn(32, 64, 3)),
    ),
    "heads inside": (head_scores, (randn(3, 35, 4, 16), randn(3, 37, 4, 16))),
    "channels to the end": (
        lambda x, w: x.permute(0, 2, 3, 1).reshape(3 * 15 * 12, 13) @ w, (randn(3, 13, 15, 12), randn(13, 20)),
    ),
    "patches": (patches, (randn(2, 3, 32, 40), randn(192, 24))),
    "keys shared by heads": (shared_keys, (randn(24, 33, 16), randn(2, 3, 16, 50))),
    "tokens shared by experts": (shared_tokens, (randn(34, 40), randn(3, 40, 24))),
    "a copy times itself": (gram, (randn(3, 20, 36),)),
    "heads to the inside": (heads_back, (randn(12, 33, 40), randn(12, 40, 16))),
    "padded, then padded again": (padded_twice, (randn(2, 8, 13, 11), randn(20, 8, 3, 3))),
    "padded terms": (lambda x, w: F.pad(x, (3, 5, 1, 2)) @ w, (randn(60, 56), randn(64, 48))),
    "groups": (lambda x, w: F.conv2d(x, w, padding=1, groups=2), (randn(2, 16, 9, 9), randn(24, 8, 3, 3))),
}  # fmt: skip


def case(name: str) -> Sample:
    function, inputs = CASES[name]
    return sample(function, *inputs, target="cuda")


def first(it: Sample) -> GemmForm:
    found = gemm_of(it.analysis.kernels[0])
    assert found is not None
    return found


def with_tiles(it: Sample, **change: Any) -> Schedule:
    offered = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    rest = next(s for s in offered if len(s.kernels) == len(it.analysis.kernels))
    others = [rest.parameters(n) for n in range(1, len(rest.kernels))]
    return Schedule.of({**TILES, **change}, *others)


def emulated(it: Sample, schedule: Schedule, folder: Path) -> list[Tensor]:
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    return cuda_emulator.run(source, plan, it.inputs, folder)


def in_float64(name: str) -> list[Tensor]:
    function, inputs = CASES[name]
    found = function(*(x.double() for x in inputs))
    return [found] if isinstance(found, Tensor) else list(found)


@pytest.mark.parametrize("name", CASES)
def test_sums_are_as_accurate_as_eagers(name: str, tmp_path: Path) -> None:
    it = case(name)
    (want,) = in_float64(name)
    own = relative(it.want[0], want)
    best = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)[0]
    for schedule in (best, with_tiles(it), with_tiles(it, split=3)):
        (got,) = emulated(it, schedule, tmp_path)
        assert relative(got, want) < 2 * own + 1e-7, schedule


@pytest.mark.parametrize(
    "name",
    [
        "whole tiles",
        "bias and GELU",
        "both transposed",
        "long sums",
        "channels last",
        "convolution",
    ],
)
@pytest.mark.parametrize(
    ("products", "split", "tile", "run", "group"),
    [
        (6, 1, (128, 128), 32, 1),
        (6, 2, (64, 64), 32, 1),
        (6, 1, (128, 64), 128, 1),
        (1, 1, (128, 64), 64, 1),
        (6, 1, (128, 128), 32, 2),
        (6, 2, (64, 64), 32, 2),
        (6, 1, (128, 64), 128, 2),
        (1, 1, (64, 128), 64, 2),
        (6, 1, (128, 32), 32, 1),
        (6, 2, (64, 32), 32, 2),
        (6, 1, (128, 32), 32, 2),
    ],
)
def test_warp_groups_compute_the_same(
    name: str,
    products: int,
    split: int,
    tile: tuple[int, int],
    run: int,
    group: int,
    tmp_path: Path,
) -> None:
    it = case(name)
    (want,) = in_float64(name)
    change = {"tile_m": tile[0], "tile_n": tile[1], "stages": 3 + group, "run": run}
    change |= {"products": products, "split": split, "group": group}
    wide = with_tiles(it, **GROUPS | change)
    (got,) = emulated(it, wide, tmp_path)
    if products == 6 and run == 32:
        assert relative(got, want) < 2 * relative(it.want[0], want) + 1e-7
    elif products == 6:
        assert relative(got, want) < 2e-6  # a short sum that is cut off all the way
    else:
        assert relative(got, want) < 1e-3


@pytest.mark.parametrize("name", ["heads inside", "patches", "padded, then padded again"])
@pytest.mark.parametrize("group", [1, 2])
def test_warp_groups_read_operands_where_they_are(name: str, group: int, tmp_path: Path) -> None:
    it = case(name)
    (want,) = in_float64(name)
    change = {"tile_n": 128, "stages": 3 + group, "run": 32, "group": group}
    (got,) = emulated(it, with_tiles(it, **GROUPS | change), tmp_path)
    assert relative(got, want) < 2 * relative(it.want[0], want) + 1e-7


@pytest.mark.parametrize("group", [1, 2])
def test_shares_without_terms_leave_nothing_open(group: int, tmp_path: Path) -> None:
    it = case("convolution")  # 72 terms: three turns for four shares
    (want,) = in_float64("convolution")
    change = {"tile_m": 128, "tile_n": 64, "stages": 3 + group, "split": 4, "group": group}
    (got,) = emulated(it, with_tiles(it, **GROUPS | change), tmp_path)
    assert relative(got, want) < 1e-6


@pytest.mark.parametrize("name", ["product", "both transposed", "long sums", "convolution"])
@pytest.mark.parametrize(
    ("tile", "depth", "run", "sharing", "split"),
    [
        ((32, 32, 32, 32), 64, 16, 4, 1),
        ((16, 32, 16, 16), 64, 16, 4, 2),
        ((32, 16, 16, 16), 128, 32, 2, 1),
        ((32, 32, 32, 16), 64, 128, 2, 1),
        ((16, 16, 16, 16), 128, 16, 8, 1),
    ],
)
def test_warps_that_share_the_terms_of_a_stage_compute_the_same(
    name: str, tile: tuple[int, ...], depth: int, run: int, sharing: int, split: int, tmp_path: Path
) -> None:
    it = case(name)
    (want,) = in_float64(name)
    change = dict(zip(("tile_m", "tile_n", "warp_m", "warp_n"), tile, strict=True))
    change |= {"depth": depth, "run": run, "warps_k": sharing, "split": split, "stages": 2}
    (got,) = emulated(it, with_tiles(it, **change), tmp_path)
    assert relative(got, want) < 2 * relative(it.want[0], want) + 3e-7


@pytest.mark.parametrize(("rows", "columns"), [(20, 3000), (3000, 20), (9, 3000)])
def test_few_rows_or_columns_are_tried_with_warps_that_share_terms(rows: int, columns: int) -> None:
    it = sample(F.linear, randn(rows, 1000), randn(columns, 1000), target="cuda")
    offered = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE, 8)
    tiles = [read_tiles(s.parameters(0)) for s in offered]
    assert tiles[0].warps_k > 1 and len({t.warps_k for t in tiles}) > 1
    few = {min(t.tile_m, t.tile_n) for t in tiles if t.warps_k > 1}
    assert few == {16 if min(rows, columns) <= 16 else 32}


def test_neighbouring_threads_store_what_lies_next_to_each_other() -> None:
    def output(name: str) -> Output:
        it = case(name)
        return output_of(it.analysis.kernels[0], first(it))

    assert output("product") == Output(by_rows=False, vector=2)
    assert output("convolution, bias and ReLU") == Output(by_rows=True, vector=4)
    # phases of one channel are pairs of columns, the next pair is the next row's
    assert output("transposed, stride 2, one more") == Output(by_rows=False, vector=2, across=2)
    # every second element, by rows; the next channel is far away
    assert output("transposed, each phase by itself") == Output(by_rows=True, vector=1)


def test_phases_with_the_same_taps_become_tiles_of_their_own() -> None:
    it = case(
        "transposed, phases with the same taps"
    )  # the first four of eight have two of three taps, so do the others
    kernel, found = with_taps_apart(it.analysis.kernels[0])
    assert found is not None and [n for _, n in found.columns] == [2, 6, 4]
    taps = filter_taps_of(found)
    assert taps is not None and taps.of_tiles(24) == [(0, 1), (1, 2)]
    assert output_of(kernel, found) == Output(by_rows=False, vector=4, across=4)


@pytest.mark.parametrize(
    ("name", "size", "present"),
    [
        ("transposed, stride 2, one more", 20, [2, 4]),  # of four taps, by the row's phase
        ("transposed, stride 2, one more", 40, [4]),
        ("transposed, fewer taps than phases", 8, [1, 1, 1, 0]),
        ("transposed, stride 2", 16, None),  # all phases have all taps
        ("convolution", 16, None),
    ],
)
def test_a_block_leaves_out_taps_that_none_of_its_columns_has(
    name: str, size: int, present: list[int] | None
) -> None:
    found = filter_taps_of(first(case(name)))
    counts = None if found is None else [len(tile) for tile in found.of_tiles(size)]
    assert counts == present


def test_no_share_that_is_offered_is_empty() -> None:
    it = sample(lambda a, b: a @ b, randn(128, 288), randn(288, 128))
    offered = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE, 40)
    splits = {s.parameters(0)["split"] for s in offered if s.parameters(0)["depth"] == 32}
    assert 3 in splits and 4 not in splits  # nine turns


def test_long_sums_that_move_on_after_a_run_are_more_accurate(tmp_path: Path) -> None:
    it = case("long sums")
    (want,) = in_float64("long sums")
    moving, staying = (
        relative(emulated(it, with_tiles(it, run=run), tmp_path)[0], want) for run in (64, 0)
    )
    assert moving < 0.1 * staying


@pytest.mark.parametrize("change", [{}, {**GROUPS, "run": 32, "group": 2}])
def test_sums_that_cancel_are_as_accurate_as_eagers(change: dict[str, Any], tmp_path: Path) -> None:
    step = torch.arange(512)
    line = (1 - 2 * (step % 2)) * (1 + step / 512 * 7)
    a, b = 0.01 * randn(64, 512) + line, 0.01 * randn(512, 64) + line[:64]
    it = sample(lambda a, b: a @ b, a, b, target="cuda")
    want = a.double() @ b.double()
    (got,) = emulated(it, with_tiles(it, **change), tmp_path)
    one_by_one = torch.zeros(64, 64)
    for k in range(512):
        one_by_one = (one_by_one.double() + a[:, k, None].double() * b[k].double()).float()
    assert relative(got, want) < relative(one_by_one, want)


def test_one_product_is_as_accurate_as_tf32_and_tried_where_that_is_allowed(tmp_path: Path) -> None:
    it = case("bias and GELU")
    (want,) = in_float64("bias and GELU")
    (got,) = emulated(it, with_tiles(it, products=1), tmp_path)
    assert 1e-5 < relative(got, want) < 1e-3
    for allowed in ((), ("matmul",)):
        device = cuda.DeviceFacts(tf32=allowed)
        found = cuda.schedules(it.analysis.region, it.analysis.kernels, device)
        assert {s.parameters(0)["products"] for s in found} == ({1, 6} if allowed else {6})


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan, 3e38, 3.4e38])
def test_what_is_not_finite_is_as_in_eager(special: float, split: int, tmp_path: Path) -> None:
    a, b = randn(40, 70), randn(70, 36)
    a[3, 5], b[69, 7] = special, special
    a[9] = 0.0
    it = sample(lambda a, b: a @ b, a, b, target="cuda")
    (got,) = emulated(it, with_tiles(it, split=split), tmp_path)
    torch.testing.assert_close(got, it.want[0], equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("where", ["image", "weight"])
@pytest.mark.parametrize("special", [math.inf, math.nan])
@pytest.mark.parametrize(
    ("function", "size"),
    [
        (lambda x, w: F.conv2d(x, w, padding=1), 3),
        (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1), 3),
        (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), 4),
        (lambda x, w: F.conv_transpose2d(x, w, padding=1), 3),
        (lambda x, w: F.conv_transpose2d(x, w, stride=4), 3),
    ],
)
def test_infinities_spread_as_far_as_in_eager(
    function: Callable[..., Tensor], size: int, special: float, where: str, tmp_path: Path
) -> None:
    x, w = randn(2, 8, 6, 5), randn(8, 8, size, size)
    (x if where == "image" else w)[1, 2, 0, 1] = special
    it = sample(function, x, w, target="cuda")
    (got,) = emulated(it, with_tiles(it), tmp_path)
    want = function(
        x.double(), w.double()
    ).float()  # in float32 eager leaves out the zeros beside an image
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_more_batches_than_a_grid_has_are_left_to_another_sketch() -> None:
    it = sample(torch.bmm, randn(66000, 8, 64), randn(66000, 64, 8), target="cuda")
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    assert {s.parameters(0)["sketch"] for s in found} == {"row"}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("product", (1, 61, 50, 70)),
        ("batches", (5, 33, 41, 64)),
        ("convolution", (1, 286, 20, 72)),
        ("groups", (2, 162, 12, 72)),
    ],
)
def test_products_and_convolutions_are_recognised(
    name: str, sizes: tuple[int, int, int, int]
) -> None:
    c = first(case(name))
    assert (c.batches, *sorted((c.m, c.n)), c.k) == (sizes[0], *sorted(sizes[1:3]), sizes[3])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda a, b: (a @ b).softmax(-1), [True, False]),  # what is no tail is another kernel
        (lambda a, b: (a.unsqueeze(2) + b).sum(1), [False]),
        (lambda a, b: (a.unsqueeze(2) * b).amax(1), [False]),
    ],
)
def test_nothing_else_is_taken_for_one(function: Callable[..., Any], expected: list[bool]) -> None:
    it = sample(function, randn(40, 30), randn(30, 20), target="cuda")
    assert [gemm_of(kernel) is not None for kernel in it.analysis.kernels] == expected


def test_indices_are_as_wide_as_memory_needs_not_as_the_number_of_terms() -> None:
    it = sample(lambda a, b: a @ b, randn(2048, 1024), randn(1024, 2048), target="cuda")
    source, _ = cuda.emit(it.analysis.region, it.analysis.kernels, with_tiles(it), DEVICE)
    assert "int64_t" not in source[source.index('extern "C"') :]


def test_copies_are_as_wide_as_memory_allows() -> None:
    def vectors(name: str) -> tuple[int, int]:
        it = case(name)
        kernel = it.analysis.kernels[0]
        w = GemmWriter(kernel, first(it), it.analysis.region, read_tiles(TILES), "k", DEVICE)
        return w.left.vector, w.right.vector

    assert vectors("channels last") == (4, 4)
    assert vectors("pointwise convolution") == (4, 4)
    assert vectors("product") == (2, 2)
    assert vectors("convolution")[0] == 1  # what lies beside the image is masked one by one


@pytest.mark.parametrize(
    ("name", "taps"),
    [
        ("convolution", [9]),
        ("convolution 3D", [27]),
        ("transposed, stride 2", [4]),
        ("transposed, cut off", [2, 2]),  # weights are masked too
        ("channels last", []),
        ("product", []),
    ],
)
def test_what_is_copied_one_by_one_has_its_places_worked_out_once(
    name: str, taps: list[int]
) -> None:
    it = case(name)
    w = GemmWriter(
        it.analysis.kernels[0], first(it), it.analysis.region, read_tiles(TILES), "k", DEVICE
    )
    found = [g for g in map(gather_of, (w.left, w.right)) if g is not None and g.taps]
    assert [points(g.taps) for g in found] == taps


@pytest.mark.parametrize(
    "change",
    [
        {"tile_m": 40}, {"warp_m": 24}, {"depth": 12}, {"stages": 1}, {"split": 0}, {"split": 100}, {"run": 40},
        {"tile_m": 1024, "tile_n": 1024}, {"stages": 60}, {"products": 3}, {"run": -16}, {"run": 8},
        {"depth": 24, "run": 48},
        {"group": 3}, {"group": 1}, {**GROUPS, "run": 0}, {**GROUPS, "run": 48},
        {**GROUPS, "stages": 2}, {**GROUPS, "group": 2, "stages": 3}, {**GROUPS, "group": 2, "tile_m": 192},
        {**GROUPS, "tile_n": 48}, {"warps_k": 3}, {"warps_k": 2}, {**GROUPS, "warps_k": 2}, {"speed": 1},
        {"depth": "deep"},
    ],
)  # fmt: skip
def test_tiles_that_do_not_fit_are_unsupported_with_a_reason(change: dict[str, Any]) -> None:
    it = case("product")
    with pytest.raises(Unsupported, match=r".+"):
        cuda.emit(it.analysis.region, it.analysis.kernels, Schedule.of({**TILES, **change}), DEVICE)


@pytest.mark.parametrize("sketch", ["contract", "small", "direct", "short", "halo", "phases"])
def test_a_sketch_of_products_is_told_that_there_is_none(sketch: str) -> None:
    it = sample(lambda x: x.softmax(-1), randn(40, 30), target="cuda")
    schedule = Schedule.of({**TILES, "sketch": sketch})
    with pytest.raises(Unsupported, match="no matrix product"):
        cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)


LARGE: dict[str, Case] = {
    "product": (lambda *a: F.gelu(F.linear(*a)), (randn(512, 1024), randn(768, 1024), randn(768))),
    "convolution": (
        lambda *a: F.relu(F.conv2d(*a, padding=1)), (randn(2, 64, 56, 56), randn(128, 64, 3, 3), randn(128)),
    ),
    "channels last": (
        lambda *a: F.relu(F.conv2d(*a, padding=1)),
        (last(randn(2, 64, 56, 56)), last(randn(128, 64, 3, 3)), randn(128)),
    ),
}  # fmt: skip


LARGEST = {"tile_m": 128, "tile_n": 128, "warp_m": 64, "warp_n": 32, "run": 256, "stages": 4}
SMALLER = {"tile_m": 64, "tile_n": 64, "depth": 32, "warp_m": 32, "warp_n": 32, "stages": 4}
FEWER = {
    "tile_m": 32,
    "tile_n": 64,
    "depth": 64,
    "warp_m": 32,
    "warp_n": 32,
    "warps_k": 4,
    "stages": 4,
}
WIDEST = {**GROUPS, "tile_n": 128, "run": 32}
DIRECT = {**WIDEST, "group": 2, "stages": 5}


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize(
    ("name", "tiles"),
    [
        *((name, LARGEST) for name in LARGE),
        *((name, tiles) for name in LARGE for tiles in (WIDEST, DIRECT)),
        ("product", {**WIDEST, "products": 1}),
        ("product", {**DIRECT, "products": 1, "run": 128}),
        ("convolution", {**DIRECT, "tile_n": 64}),
        ("convolution", {**DIRECT, "tile_m": 64}),
        ("convolution", {**DIRECT, "tile_m": 64, "tile_n": 64}),
        ("convolution", SMALLER),
        ("convolution", {**DIRECT, "tile_n": 32}),
        ("product", {**DIRECT, "tile_n": 32, "products": 1, "run": 128}),
        ("product", FEWER),
        ("product", {**FEWER, "warp_m": 16}),
    ],
)
def test_the_largest_tiles_compile_without_spilling(
    name: str, tiles: dict[str, int], tmp_path: Path
) -> None:
    function, inputs = LARGE[name]
    it = sample(function, *inputs, target="cuda")
    schedule = with_tiles(it, **tiles)
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    built = compile_candidate(
        Candidate("cuda", "cuda", source, plan, "sketch"), tmp_path, "sm_90a", 120
    )
    assert isinstance(built, Compiled), built
    assert all(kernel["spill_store_bytes"] == 0 for kernel in built.facts.values())


def loops(name: str) -> tuple[list[int], ...]:
    """Sizes of a case's loops over batches, rows, columns and terms, as its operands have them."""
    it = case(name)
    (kernel,) = it.analysis.kernels
    _, found = with_taps_apart(kernel)
    assert found is not None
    parts = (found.batch, found.rows, found.columns, found.inner)
    return tuple([n for _, n in dims] for dims in parts)


def test_operands_that_were_to_be_copied_first_are_read_where_they_are() -> None:
    assert loops("heads inside") == ([3, 4], [35], [37], [16])
    assert loops("channels to the end") == ([], [3, 180], [20], [13])
    assert loops("patches") == ([], [2, 4, 5], [24], [3, 8, 8])
    assert loops("keys shared by heads") == ([6], [4, 33], [50], [16])  # heads of a group are rows
    assert loops("tokens shared by experts") == ([], [34], [3, 24], [40])
    assert loops("a copy times itself") == ([], [20], [20], [3, 36])
    assert loops("heads to the inside") == ([3, 4], [33], [16], [40])


@pytest.mark.parametrize(
    ("name", "vectors"),
    [("heads inside", (4, 4)), ("channels to the end", (4, 4)), ("patches", (4, 4))],
)
def test_operands_that_were_to_be_copied_first_are_read_in_whole_vectors(
    name: str, vectors: tuple[int, int]
) -> None:
    _, found = with_taps_apart(case(name).analysis.kernels[0])
    assert found is not None
    assert tuple(side.vector for side in sides_of(found)) == vectors


def test_an_image_padded_twice_has_one_mask() -> None:
    mask = first(case("padded, then padded again")).left.mask
    assert mask is not None and mask.instructions[-1].op == "and_"


@pytest.mark.parametrize("columns", [20, 39, 48])
def test_a_tile_may_be_as_wide_as_all_columns(columns: int, tmp_path: Path) -> None:
    it = sample(torch.mm, randn(150, 96), randn(96, columns), target="cuda")
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    wide = [s for s in found if s.parameters(0)["tile_n"] == -(-columns // 8) * 8]
    assert wide
    (got,) = emulated(it, wide[0], tmp_path)
    want = it.inputs[0].double() @ it.inputs[1].double()
    assert relative(got, want) < 2 * relative(it.want[0], want) + 1e-7


@pytest.mark.parametrize(("few", "most"), [(20, 132), (9, 20)])
def test_few_rows_are_shared_evenly_by_all_multiprocessors(
    few: int, most: int, tmp_path: Path
) -> None:
    device = cuda.DeviceFacts(sm_count=most)
    it = sample(F.linear, randn(few, 300), randn(40 * most - 9, 300), target="cuda")
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, device)
    even = [s for s in found if s.parameters(0)["depth"] == 128 and s.parameters(0)["tile_n"] == 40]
    assert [s.parameters(0)["split"] for s in even] == [1]
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, even[0], device)
    assert plan.steps[0].grid[0] == most
    if most == 20:
        (got,) = cuda_emulator.run(source, plan, it.inputs, tmp_path)
        torch.testing.assert_close(got, it.want[0], rtol=1e-5, atol=4e-5)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda a, w: a.repeat_interleave(4, 0) @ w, ((64, 96), (96, 80))),
        (lambda a, w: a.repeat(4, 1) @ w, ((64, 96), (96, 80))),
        (lambda a, w: a @ w.repeat_interleave(4, 1), ((64, 96), (96, 40))),
    ],
)
def test_operands_whose_elements_are_repeated_are_still_factors(
    function: Callable[..., Any], shapes: tuple[tuple[int, int], ...]
) -> None:
    it = sample(function, *(randn(*shape) for shape in shapes), target="cuda")
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    assert found[0].parameters(0)["sketch"] == "contract"


def test_products_are_tried_in_tf32_only_where_eager_computes_their_like_so() -> None:
    """As torch starts, convolutions are and matrix products are not: of these TF32 would be refused each time."""
    as_torch_starts = cuda.DeviceFacts(tf32=("conv", "rnn"))
    for name, tried in (("product", {6}), ("convolution", {1, 3, 6})):
        found = case(name).analysis.schedules(as_torch_starts)
        assert {s.parameters(0).get("products", 6) for s in found} == tried
    found = case("convolution").analysis.schedules(as_torch_starts)
    products = [s.parameters(0)["products"] for s in found if "products" in s.parameters(0)]
    assert products[0] == 1 and products.count(1) > products.count(6) > 0
