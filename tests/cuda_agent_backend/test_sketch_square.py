"""Sums that read one operand along the rows and another across them: squares of a thread, turned in registers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, on_cuda, sample

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.compile.disassembly import count_instructions
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate

DEVICE = cuda.DeviceFacts()
SQUARE = {"sketch": "row", "lanes": "outer", "vector": 4, "across": 8, "team": 8, "keep": "none"}
SQUARE |= {"exchange": "block", "segments": 1, "unroll": 1, "square": 1}


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def dots(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a * b.mT).sum(-1)


def both(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    difference = a.exp() - b.mT
    return difference.abs().sum(-1), difference.amax(-1)


def differences(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    difference = a - b.mT
    return difference.abs().sum(-1), difference.amax(-1)


def lines(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Rows of several lines each: a[i, c, k], b[c, k, i], w[k]."""
    return (a * b.permute(2, 0, 1) * w).sum((1, 2)) * 2 + 1


def masked(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(b.mT > 0, a, -1.0).sum(-1)


def in_single(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return dots(a.float(), b.float())


def shifted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return dots(a[:, 2:, 1:-3], b[:, 1:-3, 2:])


Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...], dict[str, Any]]
TALL, WIDE = randn(2, 40, 260), randn(2, 260, 40)
CASES: dict[str, Case] = {
    "row dots": (dots, (TALL, WIDE), {}),
    "in runs": (dots, (TALL, randn(2, 260, 40)), {"team": 4, "across": 32, "unroll": 4}),
    "lines in runs": (dots, (randn(1, 8, 2200), randn(1, 2200, 8)), {"team": 4}),
    "rows cut in two": (dots, (TALL, WIDE), {"exchange": "split", "segments": 2}),
    "rows cut unevenly": (dots, (TALL, WIDE), {"exchange": "split", "segments": 7, "team": 4}),
    "rows of a cluster": (dots, (TALL, WIDE), {"exchange": "cluster", "segments": 4}),
    "squares of two": (dots, (randn(2, 38, 262), randn(2, 262, 38)), {"vector": 2, "across": 16}),
    "single elements": (
        dots,
        (randn(2, 37, 133), randn(2, 133, 37)),
        {"vector": 1, "team": 32, "unroll": 4, "square": 0},
    ),
    "several reductions": (both, (TALL[0], WIDE[0]), {}),
    "several lines": (lines, (randn(24, 3, 72), randn(3, 72, 24), randn(72)), {}),
    "a mask": (masked, (TALL, WIDE), {}),
    "places that are not aligned": (shifted, (randn(2, 42, 264), randn(2, 264, 42)), {}),
    "half precision": (in_single, (TALL.bfloat16(), WIDE.bfloat16()), {}),
}
LARGE: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "row dots": (dots, (randn(4, 120, 700), randn(4, 700, 120))),
    "squares of two": (dots, (randn(4, 118, 702), randn(4, 702, 118))),
    "single elements": (dots, (randn(4, 117, 701), randn(4, 701, 117))),
    "many rows": (dots, (randn(20, 1200, 44), randn(20, 44, 1200))),
    "several reductions": (differences, (randn(700, 700), randn(700, 700))),
    "several lines": (lines, (randn(240, 30, 72), randn(30, 72, 240), randn(72))),
    "a mask": (masked, (randn(4, 120, 700), randn(4, 700, 120))),
    "places that are not aligned": (shifted, (randn(4, 122, 703), randn(4, 703, 122))),
    "half precision": (in_single, (randn(4, 120, 704).half(), randn(4, 704, 120).half())),
}
"""Of which squares are offered, for those that run on a GPU."""


def emitted(it: Sample, **changed: Any) -> tuple[str, Any]:
    way = Schedule.of({**SQUARE, **changed})
    return cuda.emit(it.analysis.region, it.analysis.kernels, way, DEVICE)


def proposals(it: Sample) -> list[dict[str, Any]]:
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    return [dict(s.parameters(0)) for s in found]


@pytest.mark.parametrize("name", CASES)
def test_results_are_eagers(name: str, tmp_path: Path) -> None:
    function, inputs, changed = CASES[name]
    it = sample(function, *inputs)
    source, plan = emitted(it, **changed)
    for got, want in zip(
        cuda_emulator.run(source, plan, it.inputs, tmp_path), it.want, strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_what_lies_along_the_row_is_read_by_vectors_along_it() -> None:
    source, _ = emitted(sample(dots, TALL, WIDE))
    kernel = source.partition('extern "C"')[2]
    assert "turned0.set(i, ca::load_once<L>(at0 + int64_t(260) * i));" in kernel
    assert len(re.findall(r"ca::load_once<L>\(m_arg1", kernel)) == 1
    assert "load_strided" not in kernel


@pytest.mark.parametrize(
    ("rows", "inner", "vector"), [(1200, 1500, 4), (1197, 1500, 1), (1202, 1500, 2)]
)
def test_squares_are_as_large_as_rows_and_lines_allow(rows: int, inner: int, vector: int) -> None:
    it = sample(dots, torch.empty(10, rows, inner), torch.empty(10, inner, rows))
    first = proposals(it)[0]
    assert (first["lanes"], first["vector"]) == ("outer", vector)
    assert first.get("square", 0) == (vector > 1)
    assert first["across"] * first["team"] == 256


def test_few_rows_are_cut_so_that_all_multiprocessors_have_blocks() -> None:
    it = sample(dots, torch.empty(1200, 1500), torch.empty(1500, 1200))
    first = proposals(it)[0]
    assert first["exchange"] == "split"
    assert first["segments"] * 1200 / (first["across"] * 4) >= 2 * DEVICE.sm_count


@pytest.mark.parametrize(
    "function",
    [lambda a, b: (a * b[:, :40].mT[:, :, :40]).sum(-1), lambda a, b: (a * a).sum(-1)],
)
def test_other_sums_are_laid_out_as_before(function: Callable[..., Any]) -> None:
    small = sample(function, randn(2, 40, 40), WIDE)
    assert not any(p.get("square") for p in proposals(small))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"lanes": "inner"}, "squares of what is kept, or of single elements"),
        ({"vector": 1}, "squares of what is kept, or of single elements"),
        ({"square": 2}, "squares of what is kept, or of single elements"),
        ({"keep": "shared"}, "squares of what is kept, or of single elements"),
        ({"vector": 8}, "a square across the end of a row"),
    ],
)
def test_squares_that_do_not_fit_are_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        emitted(sample(dots, TALL, WIDE), **changed)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda a, b: torch.softmax(a * b.mT, -1), "no reductions"),
        (lambda a, b: (a * b.mT).argmax(-1), "no reductions"),
    ],
)
def test_squares_are_for_reductions_to_values(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        emitted(sample(function, TALL, WIDE))


@pytest.mark.parametrize("name", LARGE)
def test_it_is_offered_first_where_a_sum_is_large(name: str) -> None:
    function, inputs = LARGE[name]
    assert proposals(sample(function, *inputs))[0]["lanes"] == "outer"


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
def test_it_reads_by_vectors_alone_and_all_blocks_fit_at_once(tmp_path: Path) -> None:
    it = on_cuda(dots, torch.empty(10, 1200, 1500), torch.empty(10, 1500, 1200))
    region, kernels = it.analysis.region, it.analysis.kernels
    schedule = cuda.schedules(region, kernels, DEVICE)[0]
    candidate = Candidate("cuda", "cuda", *cuda.emit(region, kernels, schedule, DEVICE), "sketch")
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    (facts,) = built.facts.values()
    assert facts["spill_store_bytes"] == 0 and facts["registers"] <= 64
    counts = count_instructions(next(tmp_path.glob("*.cubin")), "cuda")
    assert not isinstance(counts, Missing)
    (found,) = counts.values()
    assert {n for n in found if n.startswith("global loads")} == {"global loads, 128 bits"}
