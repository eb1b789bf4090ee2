"""Constants that scale operands of matrix products: one region, and kernels that scale sums, in an emulator."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from kit.compare import relative
from sketch_kit import Sample, on_cuda, sample
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.partition.regions import partition

pytestmark = pytest.mark.usefixtures("plain_layouts")

DEVICE = cuda.DeviceFacts()
TILES = {"sketch": "contract", "tile_m": 32, "tile_n": 32, "depth": 32, "warp_m": 16, "warp_n": 16, "stages": 3,
         "run": 16, "split": 1}  # fmt: skip
WAYS = {
    "warps": TILES,
    "shared sums": {**TILES, "split": 2},
    "aligned copies, warp groups": {
        **TILES,
        "tile_m": 128,
        "tile_n": 64,
        "stages": 5,
        "run": 32,
        "group": 2,
        "aligned": 1,
    },
}
MINUS_HALF, TENTH, TWO = -0.5, 0.1, 2.0


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def right(by: float) -> Callable[..., Tensor]:
    return lambda x, w: torch.relu(x @ (w.t() * by))


def left(by: float) -> Callable[..., Tensor]:
    return lambda x, w: torch.relu((x * by) @ w.t())


def both(one: float, other: float) -> Callable[..., Tensor]:
    return lambda x, w: (one * x) @ (other * w).t()


def with_bias(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.addmm(b, x * TENTH, w.t())


def by_heads(q: Tensor, k: Tensor) -> Tensor:
    """Tokens by heads that lie inside, copied for the library."""
    one = (q.transpose(1, 2) * 0.125).reshape(-1, q.shape[1], q.shape[3])
    return torch.bmm(one, k.permute(0, 2, 3, 1).reshape(one.shape[0], q.shape[3], -1))


CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "left, below one": (left(TENTH), (randn(33, 80), randn(48, 80))),
    "left, above one": (left(-3.7), (randn(33, 80), randn(48, 80))),
    "right, odd": (right(MINUS_HALF), (randn(37, 71), randn(53, 71))),
    "both": (both(TWO, 0.3), (randn(33, 80), randn(48, 80))),
    "both below one": (both(-0.01, 0.3), (randn(33, 71), randn(48, 71))),
    "a bias": (with_bias, (randn(33, 96), randn(44, 96), randn(44))),
    "heads": (by_heads, (randn(2, 33, 3, 32), randn(2, 40, 3, 32))),
}


def emulated(it: Sample, parameters: Any, folder: Path) -> list[Tensor]:
    region, kernels = it.analysis.region, it.analysis.kernels
    source, plan = cuda.emit(region, kernels, Schedule.of(*parameters), DEVICE)
    return cuda_emulator.run(source, plan, it.inputs, folder)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *itertools.product(CASES, ["warps", "shared sums"]),
        ("right, odd", "aligned copies, warp groups"),
        ("both below one", "aligned copies, warp groups"),
    ],
)
def test_scaled_products_are_as_accurate_as_eagers(name: str, way: str, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    it = sample(function, *inputs, target="cuda")
    want = function(*(x.double() for x in inputs))
    (got,) = emulated(it, [WAYS[way]], tmp_path)
    assert relative(got, want) < 2 * relative(it.want[0], want) + 1e-7


def of_sketch(it: Sample, sketch: str) -> list[dict[str, Any]]:
    """The first schedule's parameters in which a kernel is of a sketch."""
    region, kernels = it.analysis.region, it.analysis.kernels
    for schedule in cuda.schedules(region, kernels, DEVICE):
        found = [dict(schedule.parameters(n)) for n in range(len(kernels))]
        if any(p.get("sketch") == sketch for p in found):
            return found
    raise AssertionError(f"no schedule of {sketch}")


def softmax_sums(x: Tensor, w: Tensor) -> Tensor:
    return torch.logsumexp((x * MINUS_HALF) @ w, 1)


def nearest(x: Tensor, w: Tensor) -> Tensor:
    return (w.square().sum(0) - TWO * x @ w).amin(1)


REDUCED = {
    "below one, by rows": softmax_sums,
    "above one, by rows": nearest,
    "below one, by columns": lambda x, w: torch.logsumexp(x @ (w * TENTH), 0),
    "kept": lambda x, w: ((x * TENTH) @ w, ((x * TENTH) @ w).amax(1)),
}


@pytest.mark.parametrize("name", REDUCED)
def test_scaled_products_are_reduced_in_their_tiles(name: str, tmp_path: Path) -> None:
    x, w = randn(70, 40), randn(40, 132)
    x[3, 5], x[4, 0] = float("inf"), float("nan")
    x[6], w[:, 100] = 1e20, 1e17
    it = on_cuda(REDUCED[name], x, w)
    got = emulated(it, of_sketch(it, "contract_reduce"), tmp_path)
    for one, want in zip(got, it.want, strict=True):
        torch.testing.assert_close(one, want, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by", [0.125, 3.0])
def test_small_products_are_scaled(by: float, tmp_path: Path) -> None:
    x, w = randn(600, 12, 16), randn(600, 16, 12)
    x[3, 5, 0], x[4, 0, 0], x[5, 1] = float("inf"), float("nan"), 1e20
    w[5, :, 2] = 1e18
    it = sample(lambda x, w: torch.bmm(x * by, w), x, w, target="cuda")
    (got,) = emulated(it, of_sketch(it, "small"), tmp_path)
    torch.testing.assert_close(got, it.want[0], equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("by", [0.125, 3.0])
def test_products_of_few_terms_are_scaled(by: float, tmp_path: Path) -> None:
    x, w = randn(70, 20), randn(20, 140)
    x[3, 5], x[4, 0], x[5] = float("inf"), float("nan"), 1e20
    w[:, 2] = 1e18
    it = sample(lambda x, w: (x * by) @ w, x, w, target="cuda")
    parameters = {"sketch": "short", "lanes": 32, "threads": 256, "turns": 1}
    (got,) = emulated(it, [parameters], tmp_path)
    torch.testing.assert_close(got, it.want[0], equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", ["warps", "shared sums"])
@pytest.mark.parametrize("by", [2.0**-20, 0.1, 2.0, 2.0**20])
def test_what_is_not_finite_is_as_in_eager(by: float, way: str, tmp_path: Path) -> None:
    """And what is finite stays so, where without a small constant it were not."""
    x, w = randn(41, 71), randn(71, 36)
    x[3, 70], x[4, 0], x[5, 1], x[8] = float("inf"), float("nan"), float("-inf"), 0.0
    x[6], x[7, 3], w[:, 9] = 1e20, 3e38, 3e18
    w[3, 11], w[4, 12] = 0.0, float("inf")
    it = sample(lambda x, w: (x * by) @ w, x, w, target="cuda")
    (got,) = emulated(it, [WAYS[way]], tmp_path)
    want = (x.double() * by) @ w.double()
    finite = want.abs() < 1e38
    assert by > 1 or (torch.isfinite(it.want[0][6, 9]) == finite[6, 9])
    assert not by < 1 or finite[6, 9] == (by < 0.01)
    torch.testing.assert_close(got[finite], want.float()[finite], rtol=1e-5, atol=1e-4 * by)
    # beyond the largest number as in eager, or as it is in double
    want = torch.where(torch.isnan(it.want[0]) & torch.isnan(want), torch.nan, want).float()
    same = (
        (got == it.want[0])
        | torch.isclose(got, want, rtol=1e-5)
        | (torch.isnan(got) & torch.isnan(it.want[0]))
    )
    assert (same | finite).all()


# --- regions ---


def operators(
    function: Callable[..., Any], *inputs: Tensor, device: str = "cuda"
) -> list[list[str]]:
    """Of the regions of a graph on a GPU that need not be there."""
    with FakeTensorMode():
        fake = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device) for x in inputs
        ]
        traced = make_fx(function, decomposition_table=select_decomp_table())(*fake)
    return [
        [n.target._schema.name.partition("::")[2] for n in r.nodes if not isinstance(n.target, str)]
        for r in partition(traced.graph)
    ]


X, W, Q = torch.empty(128, 256), torch.empty(256, 192), torch.empty(4, 128, 8, 64)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, w: (2 * x) @ w, (X, W)),
        (lambda x, w: x @ (w * -0.1), (X, W)),
        (lambda x, w: (2 * x) @ (w * -0.1), (X, W)),
        (lambda x, w: x.square().sum(1, keepdim=True) - (2 * x) @ w, (X, W)),
        (lambda x, w: torch.addmm(x.narrow(1, 0, 192), 2 * x, w), (X, W)),
        (by_heads, (Q, Q)),
    ],
)
def test_constants_on_operands_belong_to_the_products_region(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    found = operators(function, *inputs)
    (own,) = (names for names in found if {"mm", "addmm", "bmm"} & set(names))
    assert "mul" in own and not any("mul" in names for names in found if names is not own)


def test_each_product_of_an_operand_scales_it() -> None:
    def two(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scaled = 2 * x
        return scaled @ w, torch.relu(scaled @ v)

    assert [found.count("mul") for found in operators(two, X, W, W)] == [1, 1]


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, w: (2 * x, (2 * x) @ w), (X, W)),
        (lambda x, w: (2.0**21 * x) @ w, (X, W)),
        (lambda x, w: (0 * x) @ w, (X, W)),
        (lambda x, w: (x.relu() * 2) @ w, (X, W)),
        (lambda x, w: ((x @ w) * 2) @ w.t(), (X, W)),
        (lambda x, w: (x * 2) @ w, (X.half(), W.half())),
        (lambda x, w: (x.narrow(1, 0, 1) * 2).expand(-1, 256) @ w, (X, W)),
    ],
    ids=["needed", "large", "zero", "fused before", "behind a product", "half", "smaller"],
)  # fmt: skip
def test_other_multiplications_stay_as_they_were(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    if isinstance(function(*(x.float() for x in inputs)), tuple):

        def once(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
            scaled = 2 * x
            return scaled, scaled @ w

        function = once
    last = operators(function, *inputs)[-1]
    assert "mul" not in last[: last.index("mm")]


def test_on_the_cpu_regions_stay_as_they_were() -> None:
    found = operators(lambda x, w: torch.relu((2 * x) @ w), X, W, device="cpu")
    assert ["mul" in names and "mm" in names for names in found] == [False, False]
