"""Sums over tokens that a softmax of their scores weighs, on cuda: recognised, and right, as an emulator runs them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import cuda_emulator
import pytest
import torch
from kit.compare import relative
from sketch_kit import Sample
from sketch_kit import on_cuda as made
from torch import Tensor

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.attention.pooling.match import attention_pooling_of
from cuda_agent_backend.codegen.cuda.attention.pooling.schedules import SKETCH
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate

DEVICE = cuda.DeviceFacts()
BLOCKS: dict[str, Parameter] = {"sketch": SKETCH, "threads": 128, "flight": 2, "segments": 3}


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def pooled(x: Tensor, query: Tensor) -> Tensor:
    return (torch.softmax(x @ query, dim=1)[:, :, None] * x).sum(dim=1)


def of_multiples(x: Tensor, query: Tensor, bias: Tensor) -> Tensor:
    scores = torch.tanh(x @ query + bias) * 5.0
    return (torch.softmax(scores, dim=1)[:, :, None] * x).sum(dim=1)


def in_a_product(x: Tensor, query: Tensor) -> Tensor:
    weights = torch.softmax((x * query).sum(-1) / 3.0, dim=1)
    return torch.einsum("bt,btd->bd", weights, x)


def with_tail(x: Tensor, query: Tensor, shift: Tensor) -> Tensor:
    return torch.sigmoid(pooled(x, query) * 2.0 + shift)


def own_query(x: Tensor, query: Tensor) -> Tensor:
    weights = torch.softmax((x * query[:, None, :]).sum(-1), dim=1)
    return (weights[:, :, None] * x).sum(dim=1)


Case = tuple[Callable[..., Tensor], tuple[Tensor, ...]]
CASES: dict[str, Case] = {
    "attention pooling": (pooled, (randn(3, 70, 44), randn(44))),
    "many features": (pooled, (randn(2, 33, 800), randn(800) / 28)),
    "an odd number of features": (pooled, (randn(2, 50, 77), randn(77))),
    "two together": (pooled, (randn(2, 50, 78), randn(78))),
    "few features": (pooled, (randn(5, 90, 12), randn(12))),
    "fewer tokens than threads have": (pooled, (randn(3, 20, 44), randn(44))),
    "scores with a tail": (of_multiples, (randn(3, 70, 44), randn(44), randn(70))),
    "a product of weights": (in_a_product, (randn(3, 70, 44), randn(44))),
    "what is made of sums": (with_tail, (randn(3, 70, 44), randn(44), randn(44))),
    "a query for each batch": (own_query, (randn(3, 70, 44), randn(3, 44))),
}


def emulated(it: Sample, folder: Path, **change: Parameter) -> Tensor:
    schedule = Schedule.of(BLOCKS | change)
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    assert len(plan.steps) == 2
    (got,) = cuda_emulator.run(source, plan, it.inputs, folder)
    return got


@pytest.mark.parametrize("name", CASES)
def test_weighed_sums_are_as_accurate_as_eagers(name: str, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    it = made(function, *inputs)
    change: dict[str, Parameter] = {"flight": 1} if name == "an odd number of features" else {}
    got, want = emulated(it, tmp_path, **change), function(*(x.double() for x in inputs))
    assert relative(got, want) < 2 * relative(it.want[0], want) + 1e-7


@pytest.mark.parametrize("size", [1000.0, 0.001])
@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_large_scores_and_tokens_far_from_zero(size: float, shift: float, tmp_path: Path) -> None:
    x, query = CASES["attention pooling"][1]
    inputs = (x * size + shift, query)
    got, want = emulated(made(pooled, *inputs), tmp_path), pooled(*(x.double() for x in inputs))
    assert relative(got, want) < 2 * relative(pooled(*inputs), want) + 1e-6


@pytest.mark.parametrize(
    "change",
    [
        {"segments": 1},
        {"segments": 70},
        {"threads": 512, "flight": 1},
        {"threads": 256, "flight": 8},
    ],
)
def test_other_blocks_give_the_same(change: dict[str, Parameter], tmp_path: Path) -> None:
    it = made(*(CASES["attention pooling"][0], *CASES["attention pooling"][1]))
    torch.testing.assert_close(emulated(it, tmp_path, **change), it.want[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0])
def test_what_is_not_finite_is_as_in_eager(special: float, sign: float, tmp_path: Path) -> None:
    x, query = (one.clone() for one in CASES["attention pooling"][1])
    query[7] = sign
    x[0, 0, 7], x[1, 40, 7], x[1, 0, 7] = special, special, special
    it = made(pooled, x, query)
    got = emulated(it, tmp_path)
    torch.testing.assert_close(got, it.want[0], equal_nan=True, rtol=1e-4, atol=1e-5)


def test_sums_do_not_overflow_where_their_mean_does_not(tmp_path: Path) -> None:
    it = made(pooled, torch.full((3, 70, 44), 2e38), torch.zeros(44))
    torch.testing.assert_close(emulated(it, tmp_path), it.want[0])


def test_tokens_that_are_all_hidden(tmp_path: Path) -> None:
    x, query = (one.clone() for one in CASES["attention pooling"][1])
    query[7] = 1.0
    x[0, :, 7], x[1, :60, 7] = -math.inf, -math.inf
    it = made(pooled, x, query)
    torch.testing.assert_close(
        emulated(it, tmp_path), it.want[0], equal_nan=True, rtol=1e-4, atol=1e-5
    )


def of_two_tokens(x: Tensor, query: Tensor) -> Tensor:
    scores = x @ query
    return (torch.softmax(scores + scores.t(), 1)[:, :, None] * x).sum(1)


def and_weights_added(x: Tensor, query: Tensor) -> Tensor:
    weights = torch.softmax(x @ query, 1)
    return (weights[:, :, None] * x).sum(1) + weights


def and_weights(x: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(x @ query, dim=1)
    return weights, (weights[:, :, None] * x).sum(dim=1)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (and_weights, CASES["attention pooling"][1]),
        (lambda x, q: (torch.softmax(x @ q, 1)[:, :, None] * x.relu()).sum(1), CASES["attention pooling"][1]),
        (lambda x, q: (torch.softmax(x @ q, 1).flip(1)[:, :, None] * x).sum(1), CASES["attention pooling"][1]),
        (lambda x, q: (torch.sigmoid(x @ q)[:, :, None] * x).sum(1), CASES["attention pooling"][1]),
        (lambda x, q: (torch.softmax(x @ q, 0)[:, :, None] * x).sum(1), CASES["attention pooling"][1]),
        (lambda x, q: (torch.softmax(x @ q, 1)[:, :, None] * x.roll(1, 2)).sum(1), CASES["attention pooling"][1]),
        (lambda x, q: (torch.softmax(x @ q, 1)[:, :, None] * x).amax(1), CASES["attention pooling"][1]),
        (pooled, (randn(3, 70, 44).half(), randn(44).half())),
        (of_two_tokens, (randn(48, 48, 44) / 6, randn(44))),
        (and_weights_added, (randn(3, 44, 44), randn(44))),
    ],
)  # fmt: skip
def test_what_is_something_else_is_left_to_others(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...]
) -> None:
    it = made(function, *inputs)
    region, kernels = it.analysis.region, it.analysis.kernels
    for number in range(len(kernels)):
        with pytest.raises(Unsupported):
            attention_pooling_of(region, kernels, number)


@pytest.mark.parametrize(
    "change", [{"threads": 96}, {"flight": 0}, {"flight": 65}, {"segments": 0}, {"vector": 4}]
)
def test_parameters_that_do_not_fit_are_refused(
    change: dict[str, Parameter], tmp_path: Path
) -> None:
    with pytest.raises(Unsupported):
        emulated(made(pooled, *CASES["attention pooling"][1]), tmp_path, **change)


def test_tokens_that_registers_do_not_hold_are_left_to_others() -> None:
    it = made(pooled, torch.empty(4, 100, 2000), torch.empty(2000))
    offered = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    assert all(s.parameters(0)["sketch"] != SKETCH for s in offered)


def test_both_ways_are_offered() -> None:
    it = made(pooled, torch.empty(48, 1500, 800), torch.empty(800))
    region, kernels = it.analysis.region, it.analysis.kernels
    offered = cuda.schedules(region, kernels, DEVICE)
    assert [s.parameters(0)["sketch"] == SKETCH for s in offered][:2] == [True, False]
    for schedule in offered:
        cuda.emit(region, kernels, schedule, DEVICE)


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
def test_no_schedule_spills_registers(tmp_path: Path) -> None:
    it = made(pooled, torch.empty(48, 1500, 800), torch.empty(800))
    region, kernels = it.analysis.region, it.analysis.kernels
    offered = cuda.schedules(region, kernels, DEVICE)
    for number, schedule in enumerate(s for s in offered if s.parameters(0)["sketch"] == SKETCH):
        made_of = cuda.emit(region, kernels, schedule, DEVICE)
        folder = tmp_path / str(number)
        folder.mkdir()
        built = compile_candidate(
            Candidate("cuda", "cuda", *made_of, "sketch"), folder, "sm_90a", 120
        )
        assert isinstance(built, Compiled), built
        assert all(kernel["spill_store_bytes"] == 0 for kernel in built.facts.values())
