"""What loops over a row repeat is worked out once and kept, in the place of what it is made of."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.rows.facts import row_facts
from cuda_agent_backend.codegen.cuda.rows.prepare.common_values import store_common_values
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate

DEVICE = cuda.DeviceFacts()


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def entropy(x: Tensor, t: Tensor) -> Tensor:
    log_p = F.log_softmax(x / t, dim=1)
    return -(log_p.exp() * log_p).sum(dim=1)


def norm_of_activation(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x + r), (x.shape[-1],), w)


def masked_weights(x: Tensor, y: Tensor) -> Tensor:
    z = torch.where(y > 0, (x + y).exp(), x)
    return z / z.amax(1, keepdim=True) - z.sum(1, keepdim=True)


def moments_beside(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sigmoid()
    return y - y.mean(-1, keepdim=True), (y - y.amax(-1, keepdim=True)).square().sum(-1)


Case = tuple[Callable[..., Any], tuple[Tensor, ...], str]
"""A function, its inputs, and what is called once for each element where it was called more often."""
CASES: dict[str, Case] = {
    "a temperature": (entropy, (randn(30, 1500), torch.tensor(1.3)), "divide_row"),
    "a temperature for each row": (entropy, (randn(7, 1001), 1 + randn(7, 1).abs()), "divide_row"),
    "an activation": (norm_of_activation, (randn(13, 700), randn(13, 700), randn(700)), "erf"),
    "an activation along rows whose deviations take a second loop": (
        norm_of_activation,
        (randn(13, 1500), randn(13, 1500), randn(1500)),
        "erf",
    ),
    "in half precision": (
        norm_of_activation,
        (randn(13, 768).bfloat16(), randn(13, 768).bfloat16(), randn(768).bfloat16()),
        "erf",
    ),
    "a choice": (masked_weights, (randn(20, 520), randn(20, 520)), "exp"),
    "several results": (moments_beside, (randn(3, 5, 640),), "sigmoid"),
}


def case(name: str) -> Sample:
    function, inputs, _ = CASES[name]
    return sample(function, *inputs)


def emitted(it: Sample, schedule: Schedule) -> tuple[str, Any]:
    return cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)


def own_text(source: str) -> str:
    """The kernels, without what all sources begin with."""
    return source[source.index('extern "C"') :]


def schedules(it: Sample) -> list[Schedule]:
    return cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)


def keeps(schedule: Schedule) -> set[str]:
    return {str(schedule.parameters(n).get("keep")) for n in range(len(schedule.kernels))}


def first_of_each_kind(it: Sample) -> list[Schedule]:
    """Schedules that differ in how they keep a row or what its threads exchange."""
    found: dict[tuple[object, ...], Schedule] = {}
    for schedule in schedules(it):
        own = [schedule.parameters(n) for n in range(len(schedule.kernels))]
        found.setdefault(
            tuple((p.get("keep"), p.get("exchange"), p.get("stages")) for p in own), schedule
        )
    return list(found.values())


@pytest.mark.parametrize("name", CASES)
def test_results_are_eagers_under_each_kind_of_schedule(name: str, tmp_path: Path) -> None:
    it = case(name)
    loose = 1e-2 if it.inputs[0].dtype == torch.bfloat16 else 2e-6
    found = first_of_each_kind(it)
    assert {"registers", "shared"} <= {way for schedule in found for way in keeps(schedule)}
    for number, schedule in enumerate(found):
        source, plan = emitted(it, schedule)
        folder = tmp_path / str(number)
        folder.mkdir()
        for got, want in zip(
            cuda_emulator.run(source, plan, it.inputs, folder), it.want, strict=True
        ):
            torch.testing.assert_close(got, want, rtol=loose, atol=loose)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", ["registers", "shared", "none"])
def test_what_takes_long_is_worked_out_once_where_the_row_stays(name: str, way: str) -> None:
    it, called = case(name), re.compile(rf"\bca::{CASES[name][2]}\(")
    texts = [own_text(emitted(it, s)[0]) for s in schedules(it) if keeps(s) == {way}]
    if not texts:
        pytest.skip("no schedule of this task keeps rows so")
    for text in texts:
        calls = len(called.findall(text))
        assert calls > 1 if way == "none" else calls == 1, text


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("name", ["a temperature", "an activation"])
def test_it_compiles_and_spills_nothing(name: str, tmp_path: Path) -> None:
    it = case(name)
    for number, schedule in enumerate(schedules(it)[:3]):
        source, plan = emitted(it, schedule)
        candidate = Candidate("cuda", "cuda", source, plan, "sketch", "")
        found = compile_candidate(candidate, tmp_path / str(number), "sm_90a", 120.0)
        assert isinstance(found, Compiled), found
        assert not any(facts["spill_store_bytes"] for facts in found.facts.values())


def two_of_one(x: Tensor) -> Tensor:
    """Two values of one load, which take more room than it."""
    up, down = x.exp(), x.sigmoid()
    return (up + down.amax(1, keepdim=True)) / up.sum(1, keepdim=True) + down


def by_their_sum(x: Tensor, y: Tensor) -> Tensor:
    """Neighbours of a sum of products are added first, so that the product has to be seen."""
    product = F.gelu(x + y)
    return product * product.sum(1, keepdim=True)


def cheap(x: Tensor) -> Tensor:
    y = x * 2 + 1
    return y - y.mean(1, keepdim=True) * y.amax(1, keepdim=True)


def running(x: Tensor) -> Tensor:
    y = x.exp()
    return y.cumsum(1) / y.sum(1, keepdim=True)


def once(x: Tensor) -> Tensor:
    return x.exp().sum(1)


def test_a_sum_of_products_stays_one() -> None:
    it = sample(by_their_sum, randn(20, 600), randn(20, 600))
    kept = [s for s in schedules(it) if keeps(s) == {"registers"}]
    text = own_text(emitted(it, kept[0])[0])
    assert text.count("ca::erf(") == 1 and text.count("update_together(") == 1


def test_a_row_that_one_pass_reads_is_not_kept_for_what_its_stages_share() -> None:
    def sums(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        y = x / t
        return y.sum(1), y.square().sum(1)

    it = sample(sums, randn(20, 600), torch.tensor(1.3))
    (kernel,) = it.analysis.kernels
    _, names = store_common_values(kernel, 600, it.analysis.region)
    facts = row_facts(kernel, it.analysis.region)
    assert names and (facts.passes, facts.arrays, facts.again, facts.streams) == (1, 0, 0, 1)


@pytest.mark.parametrize("function", [two_of_one, cheap, running, once])
def test_nothing_else_changes(function: Callable[..., Any]) -> None:
    it = sample(function, randn(20, 600))
    for kernel in it.analysis.kernels:
        assert store_common_values(kernel, 600, it.analysis.region) == (kernel, frozenset())
