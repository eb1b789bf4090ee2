"""Memory made known to the driver, with a driver that only keeps count."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sandbox.judge.session import Session
from sandbox.task.specs import TensorSpec
from sandbox.workers import page_locked as pagelocked
from sandbox.workers.page_locked import LEAST_BYTES
from sandbox.workers.shared_memory import Segment


class Driver:
    """Keeps what is locked, by address."""

    def __init__(self, answer: int = 0) -> None:
        self.answer, self.locked = answer, dict[int, int]()

    def cuMemHostRegister_v2(self, address: Any, size: Any, flags: int) -> int:  # noqa: N802
        if self.answer == 0:
            self.locked[address.value] = size.value
        return self.answer

    def cuMemHostUnregister(self, address: Any) -> int:  # noqa: N802
        del self.locked[address.value]
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(pagelocked, "_driver", lambda: made)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


def test_a_segment_is_locked_once_and_until_it_is_closed(driver: Driver) -> None:
    segment = Segment.create(LEAST_BYTES)
    segment.lock_pages()
    segment.lock_pages()
    assert driver.locked == {segment.bytes().data_ptr(): LEAST_BYTES}
    segment.close()
    segment.close()
    assert driver.locked == {}


def test_the_lock_goes_with_the_segment(driver: Driver) -> None:
    segment = Segment.create(LEAST_BYTES)
    segment.lock_pages()
    assert driver.locked
    del segment
    gc.collect()
    assert driver.locked == {}


def test_small_memory_and_machines_that_refuse_are_left_as_they_are(driver: Driver) -> None:
    small = Segment.create(LEAST_BYTES // 2)
    small.lock_pages()
    driver.answer = 801  # CUDA_ERROR_NOT_SUPPORTED
    refused = Segment.create(LEAST_BYTES)
    refused.lock_pages()
    assert driver.locked == {}
    refused.close()
    small.close()
    assert refused.fd == small.fd == -1


def test_without_a_device_nothing_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert pagelocked.lock(1 << 20, LEAST_BYTES) is None


def test_outputs_that_were_shared_before_the_judge_used_the_device_are_locked_for_their_copy(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a fifth of the speed, copies of large outputs are the longest part of a check."""
    used = False
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    spec = TensorSpec("uint8", (LEAST_BYTES,), (1,))
    segment = Segment.create(LEAST_BYTES)
    segment.lock_pages()
    assert driver.locked == {}
    used = True
    task = SimpleNamespace(output_specs=[spec], target="cuda")
    session: Any = SimpleNamespace(
        _outputs={"candidate": segment}, task=task, output_offsets=[0], frugal=True
    )
    worker: Any = SimpleNamespace(settings=SimpleNamespace(role="candidate"))
    (output,) = Session._copy_outputs(session, worker)
    assert driver.locked == {output.data_ptr(): LEAST_BYTES}
    segment.close()


@pytest.mark.gpu
def test_locked_memory_is_known_to_the_device_and_copies_are_right() -> None:
    torch.zeros(1, device="cuda")
    segment = Segment.create(1 << 26)
    segment.lock_pages()
    assert segment._locked is not None
    assert segment.bytes().is_pinned()
    values = torch.randint(0, 256, (1 << 26,), dtype=torch.uint8, device="cuda")
    segment.bytes().copy_(values)
    assert torch.equal(segment.bytes().to("cuda"), values)
    segment.close()
    torch.cuda.synchronize()  # and no error is left behind
    assert int(values.sum()) > 0
