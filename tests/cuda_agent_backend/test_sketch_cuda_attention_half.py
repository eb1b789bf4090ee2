"""Attention in half precision on cuda: recognised, written, and right, as an emulator on the CPU runs it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from test_sketch_cuda_attention import Case, heads, masked, randn
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from cuda_agent_backend.codegen.api import analyse, generate, schedules
from cuda_agent_backend.codegen.cuda.attention.half.writer import CudaHalfAttention
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

aten = torch.ops.aten
FLASH = aten._scaled_dot_product_flash_attention.default
EFFICIENT = aten._scaled_dot_product_efficient_attention.default
CUDNN = aten._scaled_dot_product_cudnn_attention.default
DEVICE = DeviceFacts()
INFINITY, NAN = float("inf"), float("nan")
DTYPES = (torch.float16, torch.bfloat16)


def traced(*inputs: Tensor, op: Any = EFFICIENT, outputs: int = 1, **how: Any) -> Task:
    """The task of an attention. Torch has no such kernels for CPU tensors, so that it is only traced."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *bias: Tensor) -> Any:
        if op is FLASH:
            return op(q, k, v, **how)[:outputs]
        return op(q, k, v, bias[0] if bias else None, outputs > 1, **how)[:outputs]

    module = make_fx(attend, tracing_mode="fake")(*inputs)
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    found = canonical(nodes, nodes[1 : 1 + outputs], "cuda")
    assert isinstance(found, Canonical), found
    return found.task


def analysed(*inputs: Tensor, **how: Any) -> CudaHalfAttention:
    found = analyse(traced(*inputs, **how))
    assert isinstance(found, CudaHalfAttention), found
    return found


def in_half(case: Case, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The case's inputs in their layouts."""
    inputs, _ = case
    return tuple(
        torch.empty_strided(x.shape, x.stride(), dtype=dtype).copy_(x)
        if 0 not in x.stride()
        else x.to(dtype)
        for x in inputs
    )


def eager(*inputs: Tensor, **how: Any) -> Tensor:
    """As torch's kernels round: scores and sums in float32, weights as they are multiplied in half precision."""
    q, k, v, *bias = (x.float() for x in inputs)
    dtype = inputs[0].dtype
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    score = q @ k.transpose(-1, -2) * how.get("scale", q.shape[-1] ** -0.5)
    if bias:
        score = score + bias[0]
    if how.get("is_causal"):
        score = score.masked_fill(torch.ones(score.shape[-2:]).triu(1).bool(), -INFINITY)
    weight = (score - score.amax(-1, keepdim=True).clamp(min=-1e30)).exp()
    total = weight.sum(-1, keepdim=True)
    return (weight.to(dtype).float() @ v / total.where(total != 0, 1)).to(dtype)


def wide(inputs: tuple[Tensor, ...], how: dict[str, Any]) -> Tensor:
    """As the judge's oracle has it."""
    task = traced(*inputs, **how)
    distinct = list({id(x): x for x in inputs}.values())
    found = run_oracle(task, build_graph(task), distinct)
    assert not found.narrow
    return found.outputs[0]


def emulated(
    analysis: CudaHalfAttention, schedule: Schedule, folder: Path, *inputs: Tensor
) -> Tensor:
    source, plan = analysis.emit(schedule, DEVICE)
    distinct = list({id(x): x for x in inputs}.values())
    (found,) = cuda_emulator.run(source, plan, distinct, folder)
    return found


def assert_as_accurate(got: Tensor, inputs: tuple[Tensor, ...], how: dict[str, Any]) -> None:
    plain = {name: value for name, value in how.items() if name != "op"}
    report = compare([got], [eager(*inputs, **plain)], [wide(inputs, how)])
    assert report.passes, report.reason


def grouped(size: int, length: int = 45, together: int = 3) -> tuple[Tensor, ...]:
    return (randn(2, 2 * together, length, size), *heads(2, length, 2, size, 2))


QKV = heads(2, 45, 3, 16)
CASES: dict[str, Case] = {
    "plain": (QKV, {"op": FLASH}),
    "causal": (QKV, {"op": FLASH, "is_causal": True}),
    "by the third operator": (QKV, {"op": CUDNN, "is_causal": True}),
    "heads of 8": (heads(1, 33, 2, 8), {"is_causal": True}),
    "heads of 40": (heads(1, 70, 2, 40), {"op": FLASH}),
    "heads of 64": (heads(1, 197, 1, 64), {"op": FLASH}),
    "heads of 64, causal": (heads(1, 300, 1, 64), {"op": FLASH, "is_causal": True}),
    "heads of 72": (heads(1, 150, 1, 72), {"op": FLASH, "is_causal": True}),
    "heads of 128": (heads(1, 150, 1, 128), {"op": FLASH}),
    "heads of 192": (heads(1, 130, 1, 192), {"op": FLASH, "is_causal": True}),
    "heads of 256": (heads(1, 150, 1, 256), {"op": FLASH}),
    "heads of 256, bias": ((*heads(1, 72, 1, 256), masked(72, 72).expand(1, 1, 72, 72)), {}),
    "shared heads": (grouped(64), {"op": FLASH}),
    "one shared head, causal": (grouped(16, 70, 6), {"op": FLASH, "is_causal": True}),
    "another scale": (QKV, {"scale": 0.3}),
    "more keys": ((randn(2, 3, 19, 16), *heads(2, 45, 3, 16, 2)), {"op": FLASH}),
    "more keys, causal": ((randn(2, 3, 19, 16), *heads(2, 45, 3, 16, 2)), {"is_causal": True}),
    "fewer keys, causal": ((randn(2, 3, 45, 16), *heads(2, 19, 3, 16, 2)), {"is_causal": True}),
    "one query": ((randn(2, 3, 1, 16), *heads(2, 45, 3, 16, 2)), {"op": FLASH}),
    "one key": ((randn(2, 3, 45, 16), *heads(2, 1, 3, 16, 2)), {"op": FLASH}),
    "rows of 8 bytes": (tuple(randn(1, 2, 40, 20)[..., :16] for _ in range(3)), {"op": FLASH}),
    "rows that are not aligned": (tuple(randn(1, 2, 90, 17)[..., :16] for _ in range(3)), {"op": FLASH}),
    "bias": ((*QKV, masked(45, 45).expand(2, 3, 45, 45)), {}),
    "bias for each head": ((*QKV, masked(2, 3, 45, 45)), {"scale": 0.2}),
    "bias of keys": ((*QKV, masked(2, 1, 1, 45).expand(2, 3, 45, 45)), {}),
    "bias of queries": ((*QKV, randn(2, 1, 45, 1).expand(2, 3, 45, 45)), {}),
    "bias in whole copies": ((*heads(2, 136, 3, 16), masked(1, 3, 136, 136).expand(2, 3, 136, 136)), {}),
    "bias in copies of two": ((*heads(1, 70, 3, 48), masked(1, 1, 70, 70).expand(1, 3, 70, 70)), {}),
    "aligned bias": ((*QKV, randn(2, 1, 45, 48)[..., :45].expand(2, 3, 45, 45)), {}),
    "bias by the third operator": ((*QKV, masked(45, 45).expand(2, 3, 45, 45)), {"op": CUDNN}),
}  # fmt: skip


def first(analysis: CudaHalfAttention, wide: int) -> Schedule:
    """The best guess, of warps or of warp groups; these want rows that are aligned."""
    found = schedules(analysis, DEVICE)
    return next((s for s in found if s.parameters(0)["wide"] == wide), found[0])


@pytest.mark.parametrize(("dtype", "groups"), [(torch.float16, 1), (torch.bfloat16, 0)])
@pytest.mark.parametrize("name", CASES)
def test_attention_is_as_accurate_as_torchs(
    name: str, dtype: torch.dtype, groups: int, tmp_path: Path
) -> None:
    inputs, how = in_half(CASES[name], dtype), CASES[name][1]
    analysis = analysed(*inputs, **how)
    got = emulated(analysis, first(analysis, groups), tmp_path, *inputs)
    assert_as_accurate(got, inputs, how)
    assert got.stride() == analysis.task.output_specs[0].stride


@pytest.mark.parametrize("number", range(1, 10))
@pytest.mark.parametrize(
    ("size", "how"),
    [(64, {"is_causal": True}), (72, {}), (128, {"is_causal": True}), (256, {"is_causal": True})],
)
def test_all_schedules_compute_the_same(
    size: int, how: dict[str, Any], number: int, tmp_path: Path
) -> None:
    inputs = tuple(x.half() for x in heads(1, 150, 1, size))
    analysis = analysed(*inputs, **how)
    found = schedules(analysis, DEVICE)
    if number >= len(found):
        pytest.skip("there are fewer")
    assert_as_accurate(emulated(analysis, found[number], tmp_path, *inputs), inputs, how)


@pytest.mark.parametrize("how", [{}, {"is_causal": True}], ids=["all keys", "causal"])
@pytest.mark.parametrize("groups", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_as_in_truth(
    how: dict[str, Any], dtype: torch.dtype, groups: int, tmp_path: Path
) -> None:
    q, k, v = (x.to(dtype) for x in heads(1, 100, 4, 16))
    q[0, 0, 5, 2], k[0, 1, 6, 0], v[0, 2, 90, 4], v[0, 3, 7, 5] = NAN, INFINITY, INFINITY, NAN
    analysis = analysed(q, k, v, **how)
    got = emulated(analysis, first(analysis, groups), tmp_path, q, k, v)
    want = wide((q, k, v), how)
    assert torch.equal(got.isnan(), want.isnan())
    torch.testing.assert_close(got.double(), want, equal_nan=True, rtol=1e-2, atol=1e-2)


def test_a_number_is_right_where_eager_has_nan_of_what_a_query_does_not_see(tmp_path: Path) -> None:
    q, k, v = (x.half() for x in heads(1, 150, 1, 64))
    v[0, 0, 140, 5], v[0, 0, 63, 7] = NAN, -INFINITY
    how = {"is_causal": True}
    analysis = analysed(q, k, v, **how)
    got = emulated(analysis, schedules(analysis, DEVICE)[0], tmp_path, q, k, v)
    assert got[0, 0, :140, 5].isfinite().all() and got[0, 0, :63, 7].isfinite().all()
    its_own, exact = eager(q, k, v, **how), wide((q, k, v), how)  # with NaN of weights of zero
    assert compare_draws([Draw([got], [its_own], [exact], beyond=True)]).reason == ""


@pytest.mark.parametrize("length", [70, 72])
def test_a_row_of_masked_keys_is_zero(length: int, tmp_path: Path) -> None:
    inputs = (
        *(x.half() for x in heads(1, length, 2, 16)),
        torch.zeros(1, 2, length, length).half(),
    )
    inputs[3][:, 1, 3], inputs[3][..., :66] = -INFINITY, -INFINITY
    analysis = analysed(*inputs)
    got = emulated(analysis, schedules(analysis, DEVICE)[0], tmp_path, *inputs)
    assert_as_accurate(got, inputs, {})
    assert got[0, 1, 3].eq(0).all()


@pytest.mark.parametrize("number", [0, -1])
def test_a_row_masked_with_the_least_number_is_the_mean(number: int, tmp_path: Path) -> None:
    """In bfloat16 that number overflows where it is scaled."""
    inputs = (
        *(x.bfloat16() for x in heads(1, 72, 2, 16)),
        torch.zeros(1, 2, 72, 72).bfloat16(),
    )
    inputs[3][:, 1, 3] = torch.finfo(torch.bfloat16).min
    analysis = analysed(*inputs)
    got = emulated(analysis, schedules(analysis, DEVICE)[number], tmp_path, *inputs)
    torch.testing.assert_close(
        got[0, 1, 3].float(), inputs[2][0, 1].float().mean(0), rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize("largest", [3e4, 7e8, 2e17])
@pytest.mark.parametrize("number", [0, -1])
def test_of_huge_scores_the_largest_has_all_the_weight(
    largest: float, number: int, tmp_path: Path
) -> None:
    q, k, v = (x.bfloat16() for x in heads(1, 96, 1, 64))
    q[..., 0], k[..., 0] = 0.0, 0.0
    q[0, 0, ::3, 0] = largest * torch.linspace(0.5, 1, 32)
    k[0, 0, 5::16, 0] = torch.linspace(-1, 1, 6)
    analysis = analysed(q, k, v)
    got = emulated(analysis, schedules(analysis, DEVICE)[number], tmp_path, q, k, v)
    torch.testing.assert_close(got.double(), wide((q, k, v), {}), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("number", [0, -1])
def test_scores_beyond_what_is_finite_are_found_exactly(number: int, tmp_path: Path) -> None:
    q, k, v = (x.bfloat16() for x in heads(1, 48, 1, 16))
    q[0, 0, 0] = 4e18
    k[0, 0] = (4e18 * torch.linspace(0.3, 1, 48))[:, None].bfloat16()
    how = {"scale": 1.0}
    analysis = analysed(q, k, v, **how)
    got = emulated(analysis, schedules(analysis, DEVICE)[number], tmp_path, q, k, v)
    want = wide((q, k, v), how)
    torch.testing.assert_close(got[0, 0, 0].double(), want[0, 0, 0], rtol=1e-2, atol=1e-2)


def test_large_scores_are_as_accurate_as_torchs(tmp_path: Path) -> None:
    q, k, v = (x.half() for x in heads(1, 133, 1, 64))
    inputs = (30 * q, 20 * k, v + 3)
    analysis = analysed(*inputs, op=FLASH)
    got = emulated(analysis, schedules(analysis, DEVICE)[0], tmp_path, *inputs)
    assert_as_accurate(got, inputs, {"op": FLASH})


def reason(*inputs: Tensor, **how: Any) -> str:
    found = analyse(traced(*inputs, **how))
    assert isinstance(found, NotCovered), found
    return found.reason


def test_what_is_not_covered_says_why() -> None:
    q, k, v = (x.half() for x in QKV)
    more = tuple(x.half() for x in heads(2, 50, 3, 16, 2))
    assert "mask beside" in reason(q, k, v, torch.zeros(2, 3, 45, 45).half(), is_causal=True)
    assert "begins where" in reason(q, *more, op=FLASH, is_causal=True)
    assert "begins where" in reason(q, *more, op=CUDNN, is_causal=True)
    assert "264 elements" in reason(*(x.half() for x in heads(1, 20, 1, 264)))
    assert "dropout" in reason(q, k, v, op=FLASH, dropout_p=0.1)
    assert "logarithms" in reason(q, k, v, op=FLASH, outputs=2)
    assert "float32 in float16" in reason(q, k, v, torch.zeros(2, 3, 45, 45))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 80}, {"rows": 0}, {"warp": 48}, {"keys": 24}, {"stages": 1}, {"kept": 2}, {"stages": 60},
        {"keys": 512}, {"rows": 2048}, {"speed": 1},
        {"wide": 2}, {"wide": 1}, {"wide": 1, "warp": 16, "kept": 0}, {"wide": 1, "warp": 16, "stages": 3},
        {"wide": 1, "warp": 16, "kept": 0, "stages": 3, "keys": 32},
        {"wide": 1, "warp": 16, "kept": 0, "stages": 3, "rows": 96},
    ],
)  # fmt: skip
def test_a_schedule_that_does_not_fit_is_refused(change: dict[str, int]) -> None:
    analysis = analysed(*(x.half() for x in QKV))
    fits = first(analysis, 0).parameters(0)
    assert isinstance(generate(analysis, Schedule.of(fits), DEVICE), Candidate)
    assert isinstance(generate(analysis, Schedule.of({**fits, **change}), DEVICE), NotCovered)


def test_warp_groups_are_for_hopper_and_whole_copies() -> None:
    def offered(analysis: CudaHalfAttention, arch: str = "sm_90a") -> set[Any]:
        found = analysis.schedules(dataclasses.replace(DEVICE, arch=arch))
        return {schedule.parameters(0)["wide"] for schedule in found}

    analysis = analysed(*(x.half() for x in QKV))
    assert offered(analysis) == {0, 1} and offered(analysis, "sm_80") == {0}
    odd = tuple(torch.empty(1, 2, 90, 17).half()[..., :16] for _ in range(3))
    assert offered(analysed(*odd)) == {0}
    assert offered(analysed(*(x.half() for x in heads(1, 70, 1, 256)))) == {0, 1}


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("size", [48, 64, 72, 128, 192, 256])
def test_all_schedules_compile_without_spilling(size: int, number: int, tmp_path: Path) -> None:
    inputs = [randn(1, 2, 304, size).bfloat16() for _ in range(3)]
    bias = [randn(1, 2, 304, 304).bfloat16()] if size in (48, 192) else []
    analysis = analysed(*inputs, *bias, is_causal=not bias)
    found = schedules(analysis, DEVICE)
    if number >= len(found):
        pytest.skip("there are fewer")
    candidate = generate(analysis, found[number], DEVICE)
    assert isinstance(candidate, Candidate), candidate
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    assert all(kernel["spill_store_bytes"] == 0 for kernel in built.facts.values())
    assert "serialized" not in built.log, "products of warp groups that wait for each other"
