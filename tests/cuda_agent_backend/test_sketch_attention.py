"""Attention on the cpu: right for every size, layout and mask, as accurate as torch's, NaN where torch has NaN."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sketch_kit import KEY, Sample, sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.sketch.api import NotCovered, analyse, generate, schedules
from cuda_agent_backend.sketch.cpu_attention import CpuAttention
from cuda_agent_backend.sketch.schedule import Schedule
from sandbox import launcher
from sandbox.accuracy import compare
from sandbox.candidate import Candidate
from sandbox.compile import Compiled, compile_candidate
from sandbox.inputs import make_inputs
from sandbox.oracle import run_eager, run_oracle

ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
INFINITY, NAN = float("inf"), float("nan")


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def heads(batches: int, length: int, count: int, size: int, parts: int = 3) -> tuple[Tensor, ...]:
    """Q, K and V as views of one projection, as models make them."""
    return randn(batches, length, parts, count, size).permute(2, 0, 3, 1, 4).unbind(0)


def attend(*inputs: Tensor, **how: Any) -> Tensor:
    q, k, v, *mask = inputs
    result: Tensor = ATTENTION(q, k, v, attn_mask=mask[0] if mask else None, **how)[0]
    return result


def run(case: Sample, schedule: Schedule, folder: Path, *inputs: Tensor) -> Tensor:
    """The output of the candidate that ``schedule`` stands for, through the launcher."""
    folder.mkdir(exist_ok=True)
    candidate = generate(case.analysis, schedule)
    assert isinstance(candidate, Candidate), candidate
    compiled = compile_candidate(candidate, folder, "native")
    assert isinstance(compiled, Compiled), compiled
    program = launcher.load_program(compiled.path, candidate.plan)
    assert not isinstance(program, launcher.LoadFailed), program
    launcher.define_ops()
    launcher.bind(KEY, program)
    try:
        found: Tensor = launcher.op_for(len(candidate.plan.input_specs), 1)(KEY, *inputs)
        return found
    finally:
        launcher.unbind(KEY)


def traced(*inputs: Tensor, **how: Any) -> Sample:
    return sample(lambda *x: attend(*x, **how), *inputs)


def shared(groups: int) -> tuple[Tensor, ...]:
    return randn(2, 6, 45, 16), randn(2, 6 // groups, 45, 16), randn(2, 6 // groups, 45, 16)


def masked(*shape: int) -> Tensor:
    mask = randn(*shape)
    return mask.masked_fill(mask > 0.8, -INFINITY)


QKV = heads(2, 45, 3, 16)
Case = tuple[tuple[Tensor, ...], dict[str, Any]]
# sizes that are no multiple of a tile, so that tails of queries, keys and columns of heads all run
CASES: dict[str, Case] = {
    "plain": (QKV, {}),
    "causal": (QKV, {"is_causal": True}),
    "contiguous": (tuple(x.contiguous() for x in QKV), {}),
    "small heads": (heads(1, 33, 2, 8), {"is_causal": True}),
    "heads of 64": (heads(2, 197, 2, 64), {}),
    "heads of 80": (heads(1, 70, 2, 80), {"is_causal": True}),
    "heads of 128": (heads(1, 70, 2, 128), {}),
    "heads of 256": (heads(1, 40, 2, 256), {"is_causal": True}),
    "another scale": (QKV, {"scale": 0.3}),
    "more keys": ((randn(2, 3, 19, 16), *heads(2, 45, 3, 16, 2)), {}),
    "more keys, causal": ((randn(2, 3, 19, 16), *heads(2, 45, 3, 16, 2)), {"is_causal": True}),
    "fewer keys, causal": ((randn(2, 3, 45, 16), *heads(2, 19, 3, 16, 2)), {"is_causal": True}),
    "one query": ((randn(2, 3, 1, 16), *heads(2, 45, 3, 16, 2)), {}),
    "shared heads": (shared(3), {"is_causal": True}),
    "one head for all": (shared(6), {}),
    "expanded heads": (
        (randn(2, 3, 45, 16), *(x.expand(2, 3, 45, 16) for x in heads(2, 45, 1, 16, 2))),
        {},
    ),
    "mask": ((*QKV, masked(45, 45)), {}),
    "mask for each head": ((*QKV, masked(2, 3, 45, 45)), {"scale": 0.2}),
    "mask of keys": ((*QKV, masked(2, 1, 1, 45)), {}),
    "mask of expanded keys": ((*QKV, masked(2, 1, 1, 45).expand(2, 1, 45, 45)), {}),
    "mask of queries": ((*QKV, randn(1, 1, 45, 1)), {}),
    "one tensor": ((QKV[0],) * 3, {}),
    "long": (heads(1, 600, 2, 16), {}),
    "long, causal": (heads(1, 1050, 1, 16), {"is_causal": True}),
    "long, mask": ((*heads(1, 600, 1, 16), masked(600, 600)), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_equals_torch(name: str, tmp_path: Path) -> None:
    inputs, how = CASES[name]
    case = traced(*inputs, **how)
    assert isinstance(case.analysis, CpuAttention)
    for number, schedule in enumerate(schedules(case.analysis)[:2]):
        got = run(case, schedule, tmp_path / str(number), *case.inputs)
        torch.testing.assert_close(got, case.want[0], rtol=1e-5, atol=2e-6)
        assert got.stride() == case.want[0].stride()
