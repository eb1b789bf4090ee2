"""Acceptance of large graphs: what is compared is there when it is needed, under a lease on the device's memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from cuda_agent_backend.acceptance.accuracy import less_accurate, less_accurate_in_pieces
from cuda_agent_backend.acceptance.process import with_memory
from cuda_agent_backend.acceptance.rule import Acceptance
from cuda_agent_backend.acceptance.trial import Trial
from sandbox.accuracy.pieces import Cut, Piece
from sandbox.memory.device import Room
from sandbox.memory.leases import SPARE_BYTES, Leases
from sandbox.task.specs import TensorSpec
from sandbox.task.task import InputRef, Node, NodeRef, Task
from sandbox.timing.device_lock import DeviceLock

ROWS, COLUMNS = 96, 40


def pieces_of(oracle: Sequence[torch.Tensor]) -> Iterator[Piece]:
    for start in range(0, ROWS, 10):
        cut = Cut(0, start, min(start + 10, ROWS))
        for number, whole in enumerate(oracle):
            yield Piece(number, whole[cut.start : cut.stop], None, cut)


def drawn() -> dict[str, list[torch.Tensor]]:
    """A value and its sign, and others' results: eager's, one as good, one that is a little off."""
    exact = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)).double().exp()
    noise = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1)).double()

    def off(by: float) -> list[torch.Tensor]:
        value = (exact * (1 + by * noise)).float()
        return [value, value > 1]

    wrong = off(1e-7)
    wrong[1] = ~wrong[1]
    return {
        "oracle": [exact, exact > 1],
        "eager": off(1e-7),
        "good": off(1.5e-7),
        "off": off(1e-4),
        "other flags": wrong,
    }


@pytest.mark.parametrize("ours", ["eager", "good", "off", "other flags"])
@pytest.mark.parametrize("theirs", ["good", "off", "other flags"])
def test_in_pieces_the_same_is_said_as_of_the_whole(ours: str, theirs: str) -> None:
    made = drawn()
    oracle, eager = made["oracle"], made["eager"]

    def nearby() -> Iterator[Any]:
        yield eager, oracle

    whole = less_accurate(made[ours], made[theirs], eager, oracle, nearby)
    found = less_accurate_in_pieces(
        made[ours], lambda: made[theirs], lambda: eager, lambda: pieces_of(oracle), nearby
    )
    assert bool(found[0]) == bool(whole[0]) and found[0][:9] == whole[0][:9]
    assert found[1] == pytest.approx(whole[1])
    assert bool(whole[0]) == (ours in ("off", "other flags") and ours != theirs)


def test_inductors_outputs_are_not_made_where_nobody_needs_them() -> None:
    made = drawn()

    def never() -> list[torch.Tensor]:
        raise AssertionError("eager's outputs say enough")

    oracle = made["oracle"]
    found = less_accurate_in_pieces(
        made["eager"], never, lambda: made["eager"], lambda: pieces_of(oracle)
    )
    assert found[0] == ""


def graph() -> Task:
    x = TensorSpec("float32", (ROWS, COLUMNS), (COLUMNS, 1))
    nodes = (
        Node("aten.sigmoid.default", {"self": InputRef(0)}),
        Node("aten.mul.Tensor", {"self": InputRef(0), "other": NodeRef(0)}),
    )
    return Task("cpu", (x,), nodes, (NodeRef(1),), (x,))


def test_a_large_graph_is_compared_in_pieces(tmp_path: Path) -> None:
    trial = Trial(graph(), {}, 0, DeviceLock(None), frugal_from=0)
    (ground,) = trial.grounds
    assert (ground.eager, ground.oracle, ground.reference) == ((), (), ())
    wrong, worst = trial._less_accurate(trial.plain, ground)
    assert wrong == "" and worst < 3
    wrong, _ = trial._less_accurate(lambda inputs: [trial.plain(inputs)[0] + 1e-3], ground)
    assert wrong.startswith("output 0")


class Device:
    """One with room for so many bytes."""

    def __init__(self, free: int) -> None:
        self.free = free + SPARE_BYTES

    def room(self) -> Room:
        return Room(80 << 30, self.free)


def soon() -> float:
    return time.monotonic() + 60


def test_a_graph_is_measured_under_a_lease(tmp_path: Path) -> None:
    lock, seen = DeviceLock(tmp_path / "lock"), list[str]()
    device = Device(40 << 30)

    def measure() -> Acceptance:
        seen.extend(lease.what for lease in Leases(lock.path, device).known())
        return Acceptance(())

    notes: list[Any] = []
    found = with_memory(graph(), lock, soon(), measure, device, notes.append)
    assert found == Acceptance(()) and seen == ["acceptance"]
    assert notes[0]["acceptance"]["asked"] <= notes[0]["acceptance"]["allowed"]


@pytest.mark.parametrize(
    "full",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"),
        RuntimeError("cuda_agent: CUDA out of memory: no 21474836480 bytes for a tensor"),
    ],
    ids=["torch", "operator"],
)
def test_a_graph_that_ran_out_of_memory_is_measured_again_with_all_of_it(
    tmp_path: Path, full: RuntimeError
) -> None:
    lock, seen = DeviceLock(tmp_path / "lock"), list[int]()
    device = Device(40 << 30)

    def measure() -> Acceptance:
        seen.extend(lease.bytes for lease in Leases(lock.path, device).known())
        if len(seen) == 1:
            raise full
        return Acceptance(())

    assert with_memory(graph(), lock, soon(), measure, device) == Acceptance(())
    assert seen[0] < 1 << 30 and seen[1] == 40 << 30
    with pytest.raises(torch.OutOfMemoryError):
        with_memory(graph(), lock, soon(), out_of_memory, device)


def test_what_a_graph_waits_for_its_lease_counts_as_waiting_for_others(tmp_path: Path) -> None:
    lock, device = DeviceLock(tmp_path / "lock"), Device(4 << 30)
    other, began = Leases(lock.path, device), threading.Event()

    def hold() -> None:
        with other.lease(4 << 30, "race"):
            began.set()
            end = time.monotonic() + 60  # what is imported before the wait may take seconds
            while lock.waited_s <= 0.15 and time.monotonic() < end:
                time.sleep(0.01)

    thread = threading.Thread(target=hold)
    thread.start()
    began.wait(60.0)
    assert with_memory(graph(), lock, soon(), lambda: Acceptance(()), device) == Acceptance(())
    thread.join()
    assert lock.waited_s > 0.1


def test_another_error_of_a_graph_is_not_tried_again(tmp_path: Path) -> None:
    calls = list[int]()

    def measure() -> Acceptance:
        calls.append(1)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        with_memory(graph(), DeviceLock(tmp_path / "lock"), soon(), measure, Device(40 << 30))
    assert len(calls) == 1


def out_of_memory() -> Acceptance:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")


def test_a_graph_for_which_there_is_no_room_is_told_so_with_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandbox.failures import passing_words
    from sandbox.memory import leases

    monkeypatch.setattr(leases, "GRACE_S", 0.0)
    found = with_memory(graph(), DeviceLock(tmp_path / "lock"), soon(), out_of_memory, Device(100))
    assert isinstance(found, str) and "bytes of the device's memory" in found
    assert passing_words(found) == found
