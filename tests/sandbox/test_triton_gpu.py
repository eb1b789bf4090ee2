"""Triton candidates through the judge on a device: right ones, wrong ones, and those that cannot be launched."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from judge_kit import silu_bias, spec
from triton_kit import (
    DESCRIBED,
    SOURCE,
    candidate,
    changed,
    document,
    needs_isolation,
    needs_triton,
    pointwise,
    reduction,
)

from cuda_agent_backend.runtime.machine import arch_of
from sandbox.failures import Crashed
from sandbox.judge import Judge
from sandbox.judge.settings import JudgeSettings, Timeouts
from sandbox.plan.candidate import Candidate
from sandbox.task.task import InputRef, Node, NodeRef, Task
from sandbox.verdict import Correct, Wrong

pytestmark = [pytest.mark.gpu, pytest.mark.alone, needs_triton, needs_isolation]

TASK = dataclasses.replace(silu_bias(2048, 4096), target="cuda")
SUMS = Task(
    target="cuda",
    inputs=(spec(2048, 3000),),
    nodes=(Node("aten.sum.dim_IntList", {"self": InputRef(0), "dim": (1,)}),),
    outputs=(NodeRef(0),),
    output_specs=(spec(2048),),
)


@pytest.fixture(scope="module")
def gpu_judge(tmp_path_factory: pytest.TempPathFactory, native_dir: Path) -> Iterator[Judge]:
    folder = tmp_path_factory.mktemp("judge")
    arch, timeouts = arch_of("cuda"), Timeouts(run=10.0)
    with Judge(
        JudgeSettings(
            "cuda", scratch_dir=folder, native_dir=native_dir, arch=arch, timeouts=timeouts
        )
    ) as made:
        yield made


def silu() -> Candidate:
    return candidate(document(TASK, pointwise(TASK)))


def sums(source: str = SOURCE) -> Candidate:
    return candidate(document(SUMS, reduction(SUMS, 4096, num_warps=8)), source)


def test_a_pointwise_kernel_and_a_reduction_are_correct(gpu_judge: Judge) -> None:
    for task, made in ((TASK, silu()), (SUMS, sums())):
        found = gpu_judge.verify(task, made, thorough=True)
        assert isinstance(found, Correct), found


def test_a_kernel_that_asks_for_scratch_memory_gets_it(gpu_judge: Judge) -> None:
    if not gpu_judge.settings.arch.startswith("sm_9"):
        pytest.skip("descriptors of tensors lie in scratch memory on sm_90")
    even = dataclasses.replace(SUMS, inputs=(spec(2048, 4096),))
    step = reduction(even, 4096, num_warps=8)
    found = gpu_judge.verify(even, candidate(document(even, step), DESCRIBED))
    assert isinstance(found, Correct), found


def test_a_cluster_of_blocks_is_launched(gpu_judge: Judge) -> None:
    if gpu_judge.settings.arch < "sm_90":
        pytest.skip("clusters need sm_90")
    found = gpu_judge.verify(TASK, candidate(document(TASK, pointwise(TASK, num_ctas=2))))
    assert isinstance(found, Correct), found


def test_what_is_wrong_is_found(gpu_judge: Judge) -> None:
    wrong = changed(sums(), "i < columns, other", "i < columns - 3, other")
    assert isinstance(gpu_judge.verify(SUMS, wrong), Wrong)
    far = changed(silu(), "tl.store(y + i", "tl.store(y + i + (1 << 40)")
    assert isinstance(gpu_judge.verify(TASK, far), Crashed)


def test_the_full_judgement_ends_with_a_verdict_on_speed(gpu_judge: Judge) -> None:
    verdict = gpu_judge.judge(TASK, silu())
    assert verdict.status in ("wins", "too_slow", "noisy"), verdict.reason
    assert verdict.accuracy is not None
    assert verdict.evidence["toolchain"].startswith("triton ")
    assert verdict.evidence["written_plan"]["steps"][0]["kind"] == "triton"
    if verdict.status == "wins":
        assert {r["status"] for r in verdict.evidence["sanitizer"]} <= {"clean", "not run"}
