"""Attention on cuda: recognised, written, and right, as an emulator on the CPU runs it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from cuda_agent_backend.codegen.api import analyse, generate, schedules
from cuda_agent_backend.codegen.cuda.attention.float32.writer import CudaAttention
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.graph.canonical import Canonical, canonical
from sandbox.accuracy.oracle import run_oracle
from sandbox.accuracy.rule import Draw, compare, compare_draws
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.graph.build import build_graph
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task

ATTENTION = torch.ops.aten._scaled_dot_product_efficient_attention.default
DEVICE = DeviceFacts()
INFINITY, NAN = float("inf"), float("nan")
Case = tuple[tuple[Tensor, ...], dict[str, Any]]


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def heads(batches: int, length: int, count: int, size: int, parts: int = 3) -> tuple[Tensor, ...]:
    """Q, K and V as views of one projection, as models make them."""
    return randn(batches, length, parts, count, size).permute(2, 0, 3, 1, 4).unbind(0)


def traced(*inputs: Tensor, outputs: int = 1, **how: Any) -> Task:
    """The task of an attention. Torch has no such kernel for CPU tensors, so that it is only traced."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *bias: Tensor) -> Any:
        return ATTENTION(q, k, v, bias[0] if bias else None, outputs > 1, **how)[:outputs]

    module = make_fx(attend, tracing_mode="fake")(*inputs)
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    found = canonical(nodes, nodes[1 : 1 + outputs], "cuda")
    assert isinstance(found, Canonical), found
    return found.task


def analysed(*inputs: Tensor, **how: Any) -> CudaAttention:
    found = analyse(traced(*inputs, **how))
    assert isinstance(found, CudaAttention), found
    return found


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *bias: Tensor,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """In the precision of its arguments; 0 where all keys are masked, as torch's kernel has it."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    score = q @ k.transpose(-1, -2) * (scale if scale is not None else q.shape[-1] ** -0.5)
    if bias:
        score = score + bias[0]
    if is_causal:
        hidden = torch.ones(score.shape[-2:], dtype=torch.bool).triu(1)
        score = score.masked_fill(hidden, -math.inf)
    weight = score.softmax(-1)
    return weight.masked_fill((score == -math.inf).all(-1, keepdim=True), 0.0) @ v


def emulated(analysis: CudaAttention, schedule: Schedule, folder: Path, *inputs: Tensor) -> Tensor:
    source, plan = analysis.emit(schedule, DEVICE)
    distinct = list({id(x): x for x in inputs}.values())
    (found,) = cuda_emulator.run(source, plan, distinct, folder)
    return found


def wide(inputs: tuple[Tensor, ...], how: dict[str, Any]) -> Tensor:
    """As the judge's oracle has it."""
    task = traced(*inputs, **how)
    distinct = list({id(x): x for x in inputs}.values())
    found = run_oracle(task, build_graph(task), distinct)
    assert not found.narrow
    return found.outputs[0]


def masked(*shape: int) -> Tensor:
    bias = randn(*shape)
    return bias.masked_fill(bias > 0.8, -INFINITY)


QKV = heads(2, 45, 3, 16)
# sizes that are no multiple of a tile, so that tails of queries and keys and padding of heads are all met
CASES: dict[str, Case] = {
    "plain": (QKV, {}),
    "causal": (QKV, {"is_causal": True}),
    "contiguous": (tuple(x.contiguous() for x in QKV), {}),
    "heads of 8": (heads(1, 33, 2, 8), {"is_causal": True}),
    "heads of 40": (heads(1, 70, 2, 40), {}),
    "heads of 64": (heads(1, 197, 1, 64), {}),
    "heads of 64, causal": (heads(1, 133, 1, 64), {"is_causal": True}),
    "heads of 72": (heads(1, 70, 1, 72), {"is_causal": True}),
    "heads of 128": (heads(1, 70, 1, 128), {}),
    "heads of 192": (heads(1, 70, 1, 192), {}),
    "heads of 256": (heads(1, 70, 1, 256), {"is_causal": True}),
    "another scale": (QKV, {"scale": 0.3}),
    "more keys": ((randn(2, 3, 19, 16), *heads(2, 45, 3, 16, 2)), {}),
    "more keys, causal": ((randn(2, 3, 19, 16), *heads(2, 45, 3, 16, 2)), {"is_causal": True}),
    "fewer keys, causal": ((randn(2, 3, 45, 16), *heads(2, 19, 3, 16, 2)), {"is_causal": True}),
    "one query": ((randn(2, 3, 1, 16), *heads(2, 45, 3, 16, 2)), {}),
    "one key": ((randn(2, 3, 45, 16), *heads(2, 1, 3, 16, 2)), {}),
    "expanded heads": (
        (randn(2, 3, 45, 16), *(x.expand(2, 3, 45, 16) for x in heads(2, 45, 1, 16, 2))),
        {},
    ),
    "rows that are not aligned": (tuple(randn(1, 2, 40, 17)[..., :16] for _ in range(3)), {}),
    "bias": ((*QKV, masked(45, 45).expand(2, 3, 45, 45)), {}),
    "bias for each head": ((*QKV, masked(2, 3, 45, 45)), {"scale": 0.2}),
    "bias of keys": ((*QKV, masked(2, 1, 1, 45).expand(2, 3, 45, 45)), {}),
    "aligned bias": ((*QKV, randn(2, 1, 45, 48)[..., :45].expand(2, 3, 45, 45)), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_is_as_accurate_as_in_float32(name: str, tmp_path: Path) -> None:
    inputs, how = CASES[name]
    analysis = analysed(*inputs, **how)
    got = emulated(analysis, schedules(analysis, DEVICE)[0], tmp_path, *inputs)
    report = compare([got], [reference(*inputs, **how)], [wide(inputs, how)])
    assert report.passes, report.reason
    assert got.stride() == analysis.task.output_specs[0].stride


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize(
    ("size", "how"),
    [(64, {"is_causal": True}), (40, {}), (72, {"is_causal": True}), (128, {}), (192, {})],
)
def test_all_schedules_compute_the_same(
    size: int, how: dict[str, Any], number: int, tmp_path: Path
) -> None:
    inputs = heads(1, 133, 1, size)
    analysis = analysed(*inputs, **how)
    found = schedules(analysis, DEVICE)
    if number >= len(found):
        pytest.skip("there are fewer")
    got = emulated(analysis, found[number], tmp_path, *inputs)
    report = compare([got], [reference(*inputs, **how)], [wide(inputs, how)])
    assert report.passes, report.reason


@pytest.mark.parametrize("how", [{}, {"is_causal": True}], ids=["all keys", "causal"])
def test_what_is_not_finite_is_as_in_torch(how: dict[str, Any], tmp_path: Path) -> None:
    q, k, v = (x.clone() for x in heads(1, 100, 4, 16))
    q[0, 0, 5, 2], k[0, 1, 6, 0], v[0, 2, 90, 4], v[0, 3, 7, 5] = NAN, INFINITY, INFINITY, NAN
    q[0, 3, 11], k[0, 3, 50, 3] = 3e38, 3.4e38
    analysis = analysed(q, k, v, **how)
    got = emulated(analysis, schedules(analysis, DEVICE)[0], tmp_path, q, k, v)
    want = reference(q, k, v, **how)
    if how:  # torch does not look at keys beyond the last of a block of 64 queries
        want[0, 2, :64] = reference(q, k, v.nan_to_num(0, 0, 0), **how)[0, 2, :64]
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=2e-6)


def by_parts(q: Tensor, k: Tensor, v: Tensor, rows: int = 64) -> Tensor:
    """As torch's kernel on Hopper, causal: a number is the sum of parts in TF32, which of an infinity are NaN, and a
    block of queries multiplies V by 0 up to its last query."""
    q, k, v = (x.where(x.isfinite(), NAN) for x in (q, k, v))
    score = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    score.masked_fill_(torch.ones_like(score, dtype=torch.bool).triu(1), -INFINITY)
    weight = score.softmax(-1)
    blocks = range(0, q.shape[2], rows)
    return torch.cat(
        [weight[:, :, b : b + rows, : b + rows] @ v[:, :, : b + rows] for b in blocks], 2
    )


@pytest.mark.parametrize("size", [64, 72])
def test_a_number_is_right_where_eager_has_nan_of_what_a_query_does_not_see(
    size: int, tmp_path: Path
) -> None:
    """A query that sees an infinite key is NaN in eager. In truth that key is nothing to it where their score is minus
    infinity, and what V holds beyond the last key that it sees is nothing to any query."""
    q, k, v = (x.clone() for x in heads(1, 150, 1, size))
    k[0, 0, 60, 3], v[0, 0, 140, 5], v[0, 0, 63, 7] = INFINITY, NAN, -INFINITY
    analysis = analysed(q, k, v, is_causal=True)
    got = emulated(analysis, schedules(analysis, DEVICE)[0], tmp_path, q, k, v)
    eager, exact = by_parts(q, k, v), wide((q, k, v), {"is_causal": True})
    better = got.isfinite() & ~eager.isfinite()
    assert better[0, 0, 60:128, 5].any() and not (eager.isfinite() & ~got.isfinite()).any()

    def judged(found: Tensor) -> str:
        return compare_draws([Draw([found], [eager], [exact], beyond=True)]).reason

    assert judged(got) == ""
    assert "not finite in other places" in judged(got.nan_to_num()), "what is seen still counts"
    assert judged(got.where(~better, 9.0)) != "", "a number of its own"


def test_a_row_of_masked_keys_is_zero(tmp_path: Path) -> None:
    inputs = (*heads(1, 70, 2, 16), torch.zeros(1, 2, 70, 70))
    inputs[3][:, 1, 3], inputs[3][..., 40:] = -INFINITY, -INFINITY
    analysis = analysed(*inputs)
    got = emulated(analysis, schedules(analysis, DEVICE)[0], tmp_path, *inputs)
    torch.testing.assert_close(got, reference(*inputs), rtol=1e-5, atol=2e-6)
    assert got[0, 1, 3].eq(0).all()


def test_first_keys_that_are_masked_leave_no_trace(tmp_path: Path) -> None:
    inputs = (*heads(1, 70, 1, 16), torch.zeros(1, 1, 70, 70))
    inputs[3][..., :66] = -INFINITY
    analysis = analysed(*inputs)
    got = emulated(analysis, schedules(analysis, DEVICE)[0], tmp_path, *inputs)
    torch.testing.assert_close(got, reference(*inputs), rtol=1e-5, atol=2e-6)


def test_large_scores_are_as_accurate_as_in_float32(tmp_path: Path) -> None:
    q, k, v = heads(1, 133, 1, 64)
    inputs = (8 * q, 4 * k, v + 3)
    analysis = analysed(*inputs)
    got = emulated(analysis, schedules(analysis, DEVICE)[0], tmp_path, *inputs)
    report = compare([got], [reference(*inputs)], [wide(inputs, {})])
    assert report.passes, report.reason


def reason(*inputs: Tensor, **how: Any) -> str:
    found = analyse(traced(*inputs, **how))
    assert isinstance(found, NotCovered), found
    return found.reason


def test_what_is_not_covered_says_why() -> None:
    q, k, v = QKV
    assert "mask beside" in reason(q, k, v, randn(2, 3, 45, 45), is_causal=True)
    assert "scale" in reason(q, k, v, scale=-1.0)
    assert "12 elements" in reason(*heads(1, 20, 1, 12))
    assert "264 elements" in reason(*heads(1, 20, 1, 264))
    assert "values" in reason(q, k, randn(2, 3, 45, 24))
    assert "float64" in reason(q.double(), k.double(), v.double())
    assert "dropout" in reason(q, k, v, dropout_p=0.1)
    assert "logarithms" in reason(q, k, v, outputs=2)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 96}, {"warp": 48}, {"keys": 24}, {"stages": 0}, {"kept": 1}, {"split": 0}, {"stages": 3},
        {"rows": 192}, {"rows": 0}, {"relay": 3}, {"speed": 1}, {"keys": 224},
        {"relay": 0, "rows": 96}, {"relay": 0, "warp": 48}, {"relay": 0, "keys": 24}, {"relay": 0, "stages": 1},
        {"relay": 0, "kept": 2}, {"relay": 0, "split": 2}, {"relay": 0, "stages": 60}, {"relay": 0, "rows": 1024},
    ],
)  # fmt: skip
def test_a_schedule_that_does_not_fit_is_refused(change: dict[str, int]) -> None:
    analysis = analysed(*QKV)
    first = schedules(analysis, DEVICE)[0].parameters(0)
    assert isinstance(generate(analysis, Schedule.of(first), DEVICE), Candidate)
    assert isinstance(generate(analysis, Schedule.of({**first, **change}), DEVICE), NotCovered)


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("size", [64, 72, 128, 192, 256])
def test_all_schedules_compile_without_spilling(size: int, number: int, tmp_path: Path) -> None:
    analysis = analysed(*(randn(1, 2, 300, size) for _ in range(3)), is_causal=True)
    found = schedules(analysis, DEVICE)
    if number >= len(found):
        pytest.skip("there are fewer")
    candidate = generate(analysis, found[number], DEVICE)
    assert isinstance(candidate, Candidate), candidate
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    assert all(kernel["spill_store_bytes"] == 0 for kernel in built.facts.values())


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("keys", [160, 192])
def test_the_widest_tiles_of_warp_groups_compile(keys: int, tmp_path: Path) -> None:
    """Products of so many sums are there for other sketches, too."""
    analysis = analysed(*(randn(1, 2, 300, 16) for _ in range(3)))
    few = {"rows": 64, "warp": 16, "keys": keys, "stages": 1, "kept": 0, "split": 1, "relay": 1}
    candidate = generate(analysis, Schedule.of(few), DEVICE)
    assert isinstance(candidate, Candidate), candidate
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
