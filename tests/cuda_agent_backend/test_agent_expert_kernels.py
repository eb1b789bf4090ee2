"""The expert's kernels on small tasks, thread by thread on the CPU: as in float64, and with what is not finite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sketch_kit import sample
from torch import Tensor
from torch._inductor import config as inductor_config

from benchmarks.agent_expert.plays import PLAYS
from sandbox.plan.plan import Plan
from sandbox.task.task import Task
from tests import cuda_emulator

Case = tuple[Callable[..., Tensor], tuple[Tensor, ...]]


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def convolved(x: Tensor, w: Tensor, bias: Tensor | None = None, stride: int = 1) -> Tensor:
    """A filter for each channel; what lies beside the input is no term, as in torch's own kernels for it."""
    rank, many = x.dim() - 2, w.shape[0] // x.shape[1]
    pads = [k // 2 for k in w.shape[2:]]
    around = [p for pad in reversed(pads) for p in (pad, pad)]
    wide = F.pad(x, around).repeat_interleave(many, 1)
    inside = F.pad(torch.ones_like(x, dtype=torch.bool), around).repeat_interleave(many, 1)
    total: Any = 0.0
    for place in torch.cartesian_prod(*map(torch.arange, w.shape[2:])).reshape(-1, rank).tolist():
        cut = (
            slice(None),
            slice(None),
            *(slice(at, at + n) for at, n in zip(place, x.shape[2:], strict=True)),
        )
        weight = w[(slice(None), 0, *place)].reshape(-1, *[1] * rank)
        total = total + torch.where(inside[cut], wide[cut] * weight, 0.0)
    steps = (slice(None), slice(None), *[slice(None, None, stride)] * rank)
    return total[steps] if bias is None else total[steps] + bias.reshape(-1, *[1] * rank)


def by_two(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return convolved(x, w, b, 2)


CASES: dict[str, Case] = {
    "diagonal_from_the_right": (lambda x, s: x @ torch.diag(s), (randn(9, 300), randn(300))),
    "avg_pool2d_box_filter": (
        lambda x: F.avg_pool2d(x, 7, stride=1, padding=3, count_include_pad=False),
        (randn(1, 1, 50, 22),),
    ),
    "conv3d_depthwise": (convolved, (randn(1, 2, 6, 20, 8), randn(2, 1, 5, 3, 3), randn(2))),
    "conv1d_depthwise_long_filter": (convolved, (randn(1, 2, 4100), randn(2, 1, 31))),
    "conv2d_depthwise_wide_kernel": (convolved, (randn(1, 2, 47, 14), randn(2, 1, 9, 9), randn(2))),
    "running_maximum": (lambda x: torch.cummax(x, 1).values, (randn(2, 2100),)),
    "max_pool3d_overlapping": (
        lambda x: F.max_pool3d(x, 3, stride=2, padding=1),
        (randn(1, 2, 12, 14, 20),),
    ),
    "avg_pool3d_uneven": (
        lambda x: F.avg_pool3d(x, (4, 3, 3), stride=(2, 3, 3)),
        (randn(1, 2, 16, 15, 32),),
    ),
    "conv2d_depthwise_strided": (by_two, (randn(1, 2, 34, 10), randn(4, 1, 5, 5), randn(4))),
    "cumsum_long_rows": (lambda x: torch.cumsum(x, 1), (randn(1, 20_000),)),
    "bmm_tiny_odd": (torch.bmm, (randn(16, 17, 23), randn(16, 23, 19))),
    "avg_pool1d_overlapping": (
        lambda x: F.avg_pool1d(x, 11, stride=2, padding=5),
        (randn(2, 3, 88),),
    ),
}
STRANGE = torch.tensor([torch.nan, torch.inf, -torch.inf, 2e17, -0.0])


def plain(name: str) -> Callable[..., Tensor]:
    """What the task consists of: torch's convolution where the case tells what it does beside the input."""
    function, inputs = CASES[name]
    if function not in (convolved, by_two):
        return function
    rank = inputs[0].dim() - 2
    convolution = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]

    def run(x: Tensor, w: Tensor, *bias: Tensor) -> Tensor:
        pads = tuple(k // 2 for k in w.shape[2:])
        stride = 2 if function is by_two else 1
        return convolution(x, w, *(bias or (None,)), stride, pads, groups=x.shape[1])

    return run


def small(name: str) -> tuple[Task, tuple[Tensor, ...]]:
    """The task of a case, and its inputs in the task's order, in its shapes."""
    with inductor_config.patch(comprehensive_padding=False):
        found = sample(plain(name), *CASES[name][1])
    return replace(found.task, target="cuda"), found.inputs


def strewn(x: Tensor) -> Tensor:
    """With a few values that are not finite, or huge."""
    places = torch.arange(min(3, x.numel() - 1), x.numel(), max(1, x.numel() // 7))
    flat = x.reshape(-1).clone()
    flat[places] = STRANGE[torch.arange(len(places)) % len(STRANGE)]
    return flat.reshape(x.shape)


def check(name: str, versions: slice, inputs: tuple[Tensor, ...], folder: Path) -> None:
    """Versions of a play give what float64 does, on inputs in the shapes of the case."""
    task, _ = small(name)
    want = CASES[name][0](*(x.double() for x in inputs)).reshape(task.output_specs[0].shape)
    shaped = tuple(x.reshape(s.shape) for x, s in zip(inputs, task.inputs, strict=True))
    finite = want.isfinite()
    for version in PLAYS[f"single/{name}"].versions(task)[versions]:
        plan = Plan.from_json(version.plan)
        assert plan.input_specs == task.inputs and plan.output_specs == task.output_specs
        (got,) = cuda_emulator.run(version.source, plan, shaped, folder)
        for kind in (torch.isnan, torch.isposinf, torch.isneginf):
            assert bool((kind(got) == kind(want)).all()), version.say
        scale = float(want[finite].abs().max()) if finite.any() else 0.0
        loose = (
            1e-5 if scale < 1e6 else 1.0
        )  # beside huge numbers only what is not finite is looked at
        torch.testing.assert_close(
            got.double()[finite], want[finite], rtol=1e-5, atol=loose * max(scale, 1.0)
        )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where kernels are compiled once for all tests here."""
    return tmp_path_factory.mktemp("expert")


@pytest.mark.parametrize("name", CASES)
def test_first_versions_compute_what_float64_does(name: str, built: Path) -> None:
    check(name, slice(2), CASES[name][1], built)


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_finite_stays_where_it_belongs(name: str, built: Path) -> None:
    given = CASES[name][1]
    for chosen in range(len(given)):
        check(
            name,
            slice(2),
            tuple(strewn(x) if n == chosen else x for n, x in enumerate(given)),
            built,
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_further_versions_compute_what_float64_does(name: str, built: Path) -> None:
    check(name, slice(2, None), CASES[name][1], built)


def test_every_play_in_cuda_is_tested_small() -> None:
    tried = {name for name in PLAYS if "cross_entropy" not in name}
    assert {f"single/{name}" for name in CASES} == tried
