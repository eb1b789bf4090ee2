"""Attention in half precision that models write by hand: one region, one kernel, at least as accurate as eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_composed_attention import (
    analysed_as,
    attentions,
    beyond_a_bound,
    capped,
    eager,
    heads,
    randn,
    triangle,
    wide,
)
from test_sketch_cuda_attention_half import emulated as emulated_by
from test_sketch_cuda_attention_half import first
from torch import Tensor

from cuda_agent_backend.codegen.api import generate
from cuda_agent_backend.codegen.cuda.attention.half.writer import CudaHalfAttention
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.accuracy.rule import compare
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate

DEVICE = DeviceFacts()
INFINITY, NAN = float("inf"), float("nan")
LEAST = torch.finfo(torch.float16).min
Function = Callable[..., Tensor]


def scored(q: Tensor, k: Tensor) -> Tensor:
    return torch.matmul(q, k.transpose(2, 3)) * 0.125


def plain(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
    return torch.matmul(torch.softmax(sum(mask, scored(q, k)), -1), v)


def wide_softmax(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
    weights = torch.softmax(sum(mask, scored(q, k)), -1, dtype=torch.float32)
    return torch.matmul(weights.to(q.dtype), v)


def wide_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)).float() / 8
    hidden = torch.ones(scores.shape[-2:]).tril() == 0
    return torch.matmul(scores.masked_fill(hidden, -INFINITY).softmax(-1).to(q.dtype), v)


def filling(fill: float, made: Callable[[], Tensor] | None = None) -> Function:
    """Scores of hidden keys filled; made: the mask that hides where it is no input."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *masks: Tensor) -> Tensor:
        hidden, *bias = (made(), *masks) if made else masks
        scores = sum(bias, scored(q, k)).masked_fill(hidden, fill)
        return torch.matmul(torch.softmax(scores, -1), v)

    return attend


def later() -> Tensor:
    return triangle() == 0


def scaled_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(torch.softmax(torch.matmul(q * 0.3, k.transpose(2, 3)), -1), v)


def tokens(length: int, size: int) -> tuple[Tensor, ...]:
    return tuple(randn(2, length, 4, size).add(i).transpose(1, 2) for i in range(3))


Q3 = heads(4, 1, 67, 67, 64)
CASES: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "plain": (plain, Q3),
    "softmax in float32": (wide_softmax, Q3),
    "scores in float32": (wide_scores, Q3),
    "scaled before": (scaled_before, Q3),
    "tokens before heads": (plain, tokens(67, 40)),
    "large heads": (plain, heads(4, 1, 67, 99, 128)),
    "a mask that is added": (wide_softmax, (*Q3, randn(67, 67))),
    "a mask for each head": (plain, (*heads(4, 1, 72, 72, 64), randn(1, 4, 72, 72))),
    "a mask of keys": (plain, (*Q3, randn(1, 1, 1, 67))),
    "scores with a bound": (capped(3.0), Q3),
    "scores with a bound, causal": (capped(3.0, True), Q3),
    "scores with a bound and a mask": (capped(0.5), (*heads(4, 1, 72, 72, 64), randn(72, 72))),
    "scores with a bound, heads of 256": (capped(3.0, True), heads(4, 1, 99, 99, 256)),
    "a triangle": (filling(-INFINITY, later), Q3),
    "a triangle, and a number": (filling(-1e4, later), Q3),
    "a triangle and a bias": (filling(-INFINITY, later), (*Q3, randn(1, 4, 67, 67))),
    "a triangle that is given": (filling(-INFINITY), (*Q3, later())),
    "keys that are hidden": (filling(LEAST), (*Q3, randn(1, 1, 1, 67) > 0.5)),
}
DTYPES = (torch.float16, torch.bfloat16)


def halves(inputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """In that dtype and in their layouts; masks of booleans as they are."""
    return tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


def analysed(function: Function, *inputs: Tensor) -> tuple[CudaHalfAttention, list[Tensor]]:
    return analysed_as(CudaHalfAttention, function, inputs)


def best(analysis: CudaHalfAttention, groups: int) -> Schedule:
    """The best guess of warps, or of warp groups, which all cases have."""
    found = first(analysis, groups)
    assert found.parameters(0)["wide"] == groups
    return found


def emulated(
    analysis: CudaHalfAttention, groups: int, folder: Path, inputs: list[Tensor]
) -> Tensor:
    return emulated_by(analysis, best(analysis, groups), folder, *inputs)


@pytest.mark.parametrize(("dtype", "groups"), [(torch.float16, 1), (torch.bfloat16, 0)])
@pytest.mark.parametrize("name", CASES)
def test_attention_by_hand_is_one_kernel_as_accurate_as_eager(
    name: str, dtype: torch.dtype, groups: int, tmp_path: Path
) -> None:
    function, inputs = CASES[name]
    analysis, own = analysed(function, *halves(inputs, dtype))
    got = emulated(analysis, groups, tmp_path, own)
    report = compare([got], [eager(analysis, own)], [wide(analysis, own)])
    assert report.passes, report.reason
    want = function(*halves(inputs, dtype))
    torch.testing.assert_close(got, want.reshape(got.shape), rtol=0.03, atol=0.03)


@pytest.mark.parametrize("groups", [0, 1])
@pytest.mark.parametrize("fill", [-INFINITY, -1e4, None], ids=["no number", "a number", "added"])
def test_what_is_not_finite_is_as_in_truth(fill: float | None, groups: int, tmp_path: Path) -> None:
    """Values of hidden keys are multiplied by 0 all the same; scores are replaced, or added to, whatever they were."""
    q, k, v = (x.half() for x in heads(4, 1, 67, 67, 64))
    q[0, 0, 5, 2], k[0, 1, 60, 0], v[0, 2, 50, 4], v[0, 3, 7, 5] = NAN, INFINITY, INFINITY, NAN
    mask = (later().half() * -INFINITY).nan_to_num(0.0, neginf=-INFINITY)
    analysis, own = (
        analysed(plain, q, k, v, mask) if fill is None else analysed(filling(fill, later), q, k, v)
    )
    got, want = emulated(analysis, groups, tmp_path, own), wide(analysis, own)
    assert want[2].isnan().any() and want[3].isnan().any() and want[0].isfinite().any()
    assert torch.equal(got.isnan(), want.isnan())
    torch.testing.assert_close(got.double(), want.double(), equal_nan=True, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("groups", [0, 1])
@pytest.mark.parametrize("hidden", [False, True], ids=["all keys", "causal"])
def test_a_bound_holds_where_products_overflow(hidden: bool, groups: int, tmp_path: Path) -> None:
    given = beyond_a_bound(67, 60, 50, torch.bfloat16)
    analysis, own = analysed(capped(3.0, hidden), *given)
    got, want = emulated(analysis, groups, tmp_path, own), wide(analysis, own)
    assert want[:2].isfinite().all() and want[2].isnan().any() and want[3].isinf().any()
    torch.testing.assert_close(got.double(), want.double(), equal_nan=True, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("groups", [0, 1])
@pytest.mark.parametrize("fill", [-INFINITY, LEAST, -1e4])
def test_a_row_of_hidden_keys_is_what_eager_gives(fill: float, groups: int, tmp_path: Path) -> None:
    mask = torch.zeros(67, 67, dtype=torch.bool)
    mask[3], mask[40:, 60:] = True, True
    analysis, own = analysed(filling(fill), *halves((*Q3, mask), torch.float16))
    got, want = emulated(analysis, groups, tmp_path, own), eager(analysis, own)
    assert want[:, 3].isnan().all() == (fill == -INFINITY)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-2, atol=1e-2)


def test_scores_that_are_rounded_between_products_of_float32_stay_so() -> None:
    """Products in float32, and a softmax of what was rounded to half precision: eager's result, and so the user's."""

    def rounded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.matmul(scored(q, k).half().float().softmax(-1), v)

    def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.matmul(scored(q, k).float().softmax(-1), v)

    assert attentions(rounded, *Q3) == []
    q, k, v = Q3
    assert attentions(mixed, q.half(), k.half(), v) == []


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("groups", [0, 1])
@pytest.mark.parametrize(
    "name",
    [
        "a triangle",
        "a triangle that is given",
        "scores with a bound",
        "scores with a bound, heads of 256",
    ],
)
def test_kernels_compile_without_spilling(name: str, groups: int, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    analysis, _ = analysed(function, *halves(inputs, torch.float16))
    candidate = generate(analysis, best(analysis, groups), DEVICE)
    assert isinstance(candidate, Candidate)
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    assert all(kernel["spill_store_bytes"] == 0 for kernel in built.facts.values())


@pytest.mark.parametrize(("narrow", "fill"), [(True, -INFINITY), (False, -1e9)])
def test_what_fills_scores_is_rounded_as_they_are_on_their_way(narrow: bool, fill: float) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (torch.matmul(q, k.transpose(2, 3)).float() / 8).masked_fill(mask, -1e9)
        weights = torch.softmax(scores.half() if narrow else scores, -1, dtype=torch.float32)
        return torch.matmul(weights.half(), v)

    analysis, _ = analysed(attend, *halves((*Q3, later()), torch.float16))
    assert analysis.form.fill == fill
