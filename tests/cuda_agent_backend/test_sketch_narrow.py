"""Integers in kernels: which are 32 bits wide, and that results stay the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import sympy
import torch
from sketch_kit import Sample, sample
from torch._inductor import config as inductor_config

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.common.narrow_integers import narrow_integers
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.printer import Printer, exceeds
from cuda_agent_backend.codegen.ir.ssa import (
    PLACE,
    PLACE_EXPR,
    Body,
    Instruction,
    Value,
    place_symbol,
)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


IMAGE = randn(2, 5, 11, 17)


def between(size: int, wanted: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two neighbours and the weight of the second for every place of a line of another length."""
    at = ((torch.arange(wanted) + 0.5) * (size / wanted) - 0.5).clamp(min=0)
    low = at.long()
    return low, (low + 1).clamp(max=size - 1), at - low


def bilinear(x: torch.Tensor) -> torch.Tensor:
    (top, bottom, down), (left, right, across) = between(11, 29), between(17, 23)
    rows = [
        torch.lerp(
            pick(x, [None, None, y[:, None], left]),
            pick(x, [None, None, y[:, None], right]),
            across,
        )
        for y in (top, bottom)
    ]
    return rows[0] + (rows[1] - rows[0]) * down[:, None]


pick = torch.ops.aten._unsafe_index
Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
CASES: dict[str, Case] = {
    "bilinear": (bilinear, (IMAGE,)),
    "checked, from the end": (lambda x: x[:, :, torch.arange(11) - 11, 2:3] * 2, (IMAGE,)),
    "positions": (lambda x: x + torch.arange(17) // 3 * 2 - torch.arange(11)[:, None] % 4, (IMAGE,)),
    "large positions": (lambda x: x + torch.arange(17) * 600_000_000 % 7, (IMAGE,)),
    "positions that are results": (lambda x: (torch.arange(17) * 3 - 5, x.sin()), (IMAGE,)),
    "sums of positions": (lambda x: (torch.arange(40).unflatten(0, (8, 5)) * 2).sum(1) + x.amax().long(), (IMAGE,)),
    "the greatest is where": (lambda x: (x * torch.arange(17)).argmax(-1) + torch.arange(11), (IMAGE,)),
}  # fmt: skip


def for_cuda(function: Callable[..., Any], *inputs: torch.Tensor) -> Sample:
    it = sample(function, *inputs)
    return dataclasses.replace(it, task=dataclasses.replace(it.task, target="cuda"))


def instructions(
    function: Callable[..., Any], *inputs: torch.Tensor, wide: bool = False
) -> list[Instruction]:
    kernels = for_cuda(function, *inputs).analysis.kernels
    return [i for k in kernels for s in narrow_integers(k, wide).stages for i in s.body.walk()]


@pytest.mark.parametrize("name", CASES)
def test_narrow_integers_give_what_eager_gives(name: str, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    with inductor_config.patch(comprehensive_padding=False):
        it = for_cuda(function, *inputs)
    region, kernels = it.analysis.region, it.analysis.kernels
    for schedule in cuda.schedules(region, kernels, cuda.DeviceFacts())[:2]:
        source, plan = cuda.emit(region, kernels, schedule, cuda.DeviceFacts())
        outputs = cuda_emulator.run(source, plan, it.inputs, tmp_path)
        for got, want in zip(outputs, it.want, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_places_of_an_interpolation_are_narrow_and_need_no_check() -> None:
    found = instructions(CASES["bilinear"][0], IMAGE)
    assert not any(i.dtype == torch.int64 for i in found)
    places = [i for i in found if i.op == PLACE]
    assert places and all(
        i.dtype == torch.int32 and i.operands[2:] == (False, False) for i in places
    )


def test_places_stay_wide_where_indices_are() -> None:
    places = [i for i in instructions(CASES["bilinear"][0], IMAGE, wide=True) if i.op == PLACE]
    assert places and all(i.dtype is None for i in places)


def test_a_place_as_a_number_may_exceed_32_bits() -> None:
    printer = Printer(None, str, str, lambda _: torch.float32, narrow_places={"v0"})
    number = Instruction(
        Value(1), PLACE_EXPR, (Value(0),), torch.int64, index=place_symbol(0) * 2**31
    )
    assert "int64_t>(v0)" in printer.lines(Body([number]))[0]


def test_what_does_not_fit_stays_wide() -> None:
    products = instructions(CASES["large positions"][0], IMAGE)
    assert any(i.op == "index_expr" and i.dtype == torch.int64 for i in products)


def test_terms_larger_than_their_sum_are_64_bits_wide() -> None:
    it = sample(lambda x: x.permute(0, 2, 3, 1).contiguous(), randn(3, 5, 7, 6))
    region, kernels, device = it.analysis.region, it.analysis.kernels, DeviceFacts()
    source, _ = cuda.emit(region, kernels, cuda.schedules(region, kernels, device)[0], device)
    loads = [line for line in source.splitlines() if "s0v0 = ca::load" in line]
    assert len(loads) == 1 and loads[0].count("int64_t(") > 1
    j, s = sympy.symbols("j s", integer=True)
    assert exceeds(25500 * j - 3314999 * s) and not exceeds(j - 300 * s) and not exceeds(7 * j + s)


def test_places_among_terms_larger_than_their_sum_are_64_bits_wide() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(13) * 4 // 13
        picked = pick(x, [None, None, rows[:, None], torch.arange(7)])
        return picked.permute(0, 2, 3, 1).contiguous()

    it = sample(function, randn(1, 25, 4, 7))
    region, kernels, device = it.analysis.region, it.analysis.kernels, DeviceFacts()
    source, _ = cuda.emit(region, kernels, cuda.schedules(region, kernels, device)[0], device)
    (line,) = [line for line in source.splitlines() if "= ca::gather<L>" in line]
    assert line.count("int64_t(") > 2 and "iota<L>(int64_t(j))" in line
