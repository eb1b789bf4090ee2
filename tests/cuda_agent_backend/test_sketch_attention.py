"""Attention on the cpu: right for every size, layout and mask, as accurate as torch's, NaN where torch has NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sketch_kit import KEY, Sample, sample
from torch import Tensor

from cuda_agent_backend.codegen.api import analyse, generate, schedules
from cuda_agent_backend.codegen.cpu.attention import CpuAttention
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox import launcher
from sandbox.accuracy.inputs import make_inputs
from sandbox.accuracy.oracle import run_eager, run_oracle
from sandbox.accuracy.rule import compare
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.graph.build import build_graph
from sandbox.plan.candidate import Candidate

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
    for number, schedule in enumerate(schedules(case.analysis)[: 2 if "long" in name else 1]):
        got = run(case, schedule, tmp_path / str(number), *case.inputs)
        torch.testing.assert_close(got, case.want[0], rtol=1e-5, atol=2e-6)
        assert got.stride() == case.want[0].stride()


@pytest.mark.parametrize("how", [{}, {"is_causal": True}], ids=["all keys", "causal"])
def test_errors_and_infinities_are_those_of_torch(how: dict[str, Any], tmp_path: Path) -> None:
    case = traced(*heads(2, 530, 2, 40), **how)
    module = build_graph(case.task)
    for distribution in ("normal", "uniform", "large", "edges", "offset", "constant"):
        inputs = make_inputs(case.task.inputs, 3, distribution)
        got = run(case, schedules(case.analysis)[0], tmp_path / distribution, *inputs)
        wide = run_oracle(case.task, module, inputs)
        assert not wide.narrow
        report = compare([got], run_eager(module, inputs), wide.outputs)
        assert report.passes, f"{distribution}: {report.reason}"


def test_a_row_of_masked_keys_is_zero_and_nan_stays_where_torch_has_it(tmp_path: Path) -> None:
    q, k, v = (x.clone() for x in heads(1, 40, 2, 16))
    mask = torch.zeros(40, 40)
    mask[3], mask[:, 7] = -INFINITY, -INFINITY
    q[0, 0, 5, 2], k[0, 1, 6, 0], v[0, 0, 9, 4], v[0, 0, 7, 5] = NAN, INFINITY, INFINITY, NAN
    case = traced(q, k, v, mask)
    got = run(case, schedules(case.analysis)[0], tmp_path, *case.inputs)
    torch.testing.assert_close(got, case.want[0], equal_nan=True, rtol=1e-5, atol=2e-6)
    assert got[0, 1, 3].eq(0).all() and got[0, 0, 5].isnan().all()


def test_keys_that_a_causal_mask_hides_spoil_what_they_spoil_in_torch(tmp_path: Path) -> None:
    """Torch multiplies V of hidden keys by zero, up to the end of its block of keys."""
    q, k, v = (x.clone() for x in heads(1, 700, 1, 16))
    v[0, 0, 500, 3], v[0, 0, 690, 4], k[0, 0, 690] = INFINITY, NAN, NAN
    case = traced(q, k, v, is_causal=True)
    for number, schedule in enumerate(schedules(case.analysis)):
        got = run(case, schedule, tmp_path / str(number), *case.inputs)
        torch.testing.assert_close(got, case.want[0], equal_nan=True, rtol=1e-5, atol=2e-6)


def test_long_sequences_go_block_by_block_of_keys() -> None:
    first = schedules(traced(*heads(1, 1030, 1, 64)).analysis)[0].parameters(0)
    assert int(first["keys"]) * 4 < 1030


def reason(*inputs: Tensor, **how: Any) -> str:
    found = analyse(traced(*inputs, **how).task)
    assert isinstance(found, NotCovered)
    return found.reason


def test_what_is_not_covered_says_why() -> None:
    q, k, v = QKV
    assert "mask beside" in reason(q, k, v, masked(45, 45), is_causal=True)
    assert "scale" in reason(q, k, v, scale=-1.0)
    assert "12 elements" in reason(*heads(1, 20, 1, 12))
    assert "float64" in reason(q.double(), k.double(), v.double())
    both = analyse(sample(lambda *x: ATTENTION(*x)[:2], q, k, v).task)
    assert isinstance(both, NotCovered) and "logarithms" in both.reason


def test_a_schedule_that_does_not_fit_is_refused() -> None:
    analysis = traced(*QKV).analysis
    for rows, keys in ((100, 256), (1024, 256), (128, 0)):
        made = generate(analysis, Schedule.of({"rows": rows, "keys": keys, "width": 8}))
        assert isinstance(made, NotCovered), (rows, keys)
    large = traced(*heads(1, 600, 1, 256)).analysis
    found = schedules(large)
    assert found and all(isinstance(generate(large, s), Candidate) for s in found)
    made = generate(large, Schedule.of({"rows": 256, "keys": 512, "width": 8}))
    assert isinstance(made, NotCovered) and "core" in made.reason
