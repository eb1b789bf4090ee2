"""Large tasks on a CUDA device: they are judged right, and take no more memory than was told."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from judge_kit import silu_bias
from test_judge_gpu import candidate

from cuda_agent_backend.runtime.machine import arch_of
from sandbox.judge import Judge
from sandbox.judge.rounds import Effort
from sandbox.judge.session import Session
from sandbox.judge.settings import JudgeSettings, Timeouts
from sandbox.memory.device import CudaMemory
from sandbox.memory.footprint import CONTEXT_BYTES, CONTEXTS, Phase
from sandbox.verdict import Baselines, Correct, Wrong

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

LARGE = dataclasses.replace(silu_bias(1 << 15, 1 << 14), target="cuda")
"""2 GB in and 2 GB out: one set of inputs, beyond every cache."""
LOOK_S = 0.02


@pytest.fixture(scope="module")
def large_judge(tmp_path_factory: pytest.TempPathFactory, native_dir: Path) -> Iterator[Judge]:
    folder = tmp_path_factory.mktemp("judge")
    settings = JudgeSettings(
        "cuda",
        scratch_dir=folder,
        native_dir=native_dir,
        arch=arch_of("cuda"),
        timeouts=Timeouts(run=20.0),
        device_lock=folder / "lock",
    )
    with Judge(settings) as made:
        yield made


def most_held(work: Callable[[], Any]) -> tuple[Any, int]:
    """What came of it, and the most bytes that the device held more than before."""
    memory, seen, done = CudaMemory(), list[int](), threading.Event()
    before = memory.room().free

    def watch() -> None:
        while not done.wait(LOOK_S):
            seen.append(before - memory.room().free)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        found = work()
    finally:
        done.set()
        thread.join()
    return found, max(seen, default=0)


@pytest.mark.parametrize("phase", ["baselines", "check", "race"])
def test_a_phase_holds_no_more_than_was_told(large_judge: Judge, phase: Phase) -> None:
    good = candidate(task=LARGE)
    work: dict[str, Callable[[], Any]] = {
        "baselines": lambda: large_judge.baselines(LARGE),
        "check": lambda: large_judge.verify(LARGE, good, thorough=True),
        "race": lambda: large_judge.judge(LARGE, good, effort=Effort(12, 24, 5.0)),
    }
    large_judge.rest()
    large_judge.take_notes()
    found, held = most_held(work[phase])
    session = large_judge.sessions.open(LARGE)
    assert isinstance(session, Session) and session.frugal
    told = session.footprint()
    assert held <= told.of(phase) + CONTEXTS * CONTEXT_BYTES, f"{held:,} bytes"
    assert told.of(phase) <= told.allowed
    noted = large_judge.take_notes()[phase]
    assert noted["known"] == noted["leases"] and 0 < noted["of_asked"] <= 1, noted
    good_end = isinstance(found, Baselines | Correct)
    assert good_end or found.status in ("wins", "too_slow", "noisy"), found


def test_after_a_phase_nothing_of_the_task_is_held(large_judge: Judge) -> None:
    memory = CudaMemory()
    large_judge.rest()
    assert isinstance(large_judge.verify(LARGE, candidate(task=LARGE)), Correct)
    before = memory.room().free
    assert isinstance(large_judge.verify(LARGE, candidate(task=LARGE)), Correct)
    assert before - memory.room().free < LARGE.inputs[0].numel  # a quarter of its bytes
    assert large_judge.device.leases.known() == []


@pytest.mark.parametrize("change", ["i < n => i < n - 1", "1.0f + => 1.0001f +"])
def test_a_wrong_kernel_is_wrong_however_large_the_task(large_judge: Judge, change: str) -> None:
    found = large_judge.verify(LARGE, candidate(change, LARGE))
    assert isinstance(found, Wrong), found


def test_beside_a_process_that_holds_most_of_the_device_the_bytes_are_named(
    large_judge: Judge,
) -> None:
    large_judge.rest()
    torch.cuda.empty_cache()
    free = CudaMemory().room().free
    taken = torch.empty(max(0, free - (5 << 30)), dtype=torch.uint8, device="cuda")
    found = large_judge.verify(LARGE, candidate(task=LARGE))
    assert found.status == "no_memory", found
    assert "bytes of the device's memory" in found.reason
    del taken
    torch.cuda.empty_cache()
    assert isinstance(large_judge.verify(LARGE, candidate(task=LARGE)), Correct)
