"""Leases on a device's memory, among processes and on a device that is none."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from sandbox.failures import NoMemory, why_passing
from sandbox.memory.device import Room
from sandbox.memory.leases import GRACE_S, SPARE_BYTES, Leases
from sandbox.verdict import OUT_OF_MEMORY, lacks_memory

GB = 1 << 30


class Simulated:
    """A device of which processes allocate and free bytes."""

    def __init__(self, total: int = 80 * GB + SPARE_BYTES) -> None:
        self.total, self.used = total, 0

    def room(self) -> Room:
        return Room(self.total, self.total - self.used)

    def allocate(self, size: int) -> None:
        """Raises MemoryError where there is no room: the device's out-of-memory."""
        if self.used + size > self.total:
            raise MemoryError(f"{size} bytes")
        self.used += size

    def free(self, size: int) -> None:
        self.used -= size


class Clock:
    """Time that passes while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def device() -> Simulated:
    return Simulated()


def of(tmp_path: Path, device: Simulated, clock: Clock | None = None) -> Leases:
    """The leases of another process."""
    clock = clock or Clock()
    return Leases(tmp_path / "lock", device, clock=clock, sleep=clock.sleep)


def refusal(leases: Leases, size: int | None, patience: int = 3) -> NoMemory | None:
    """What comes of asking so many times."""
    left = iter(range(patience))
    with leases.lease(size, "race", lambda: next(left, None) is not None) as refused:
        return refused


def test_what_fits_beside_others_is_granted_and_seen_by_all(
    tmp_path: Path, device: Simulated
) -> None:
    one, other = of(tmp_path, device), of(tmp_path, device)
    with one.lease(50 * GB, "race") as refused:
        assert refused is None
        (held,) = other.known()
        assert (held.bytes, held.what, held.process) == (50 * GB, "race", os.getpid())
        assert refusal(other, 30 * GB) is None
        assert isinstance(refusal(other, 31 * GB), NoMemory)
    assert other.known() == [] and refusal(other, 80 * GB) is None


def test_what_does_not_fit_waits_for_the_others_end(tmp_path: Path, device: Simulated) -> None:
    one, other = of(tmp_path, device), of(tmp_path, device)
    with ExitStack() as stack:
        assert stack.enter_context(one.lease(50 * GB, "race")) is None
        asked = iter(range(10))

        def go_on() -> bool:
            if next(asked) == 5:
                assert other.waited_s > 0, "it counts while it goes on"
                stack.close()
            return True

        with other.lease(60 * GB, "check", go_on) as refused:
            assert refused is None
    waited_s = other.waited_s
    assert next(asked) == 6 and waited_s > 0 and other.waited_s == waited_s


def test_what_is_more_than_the_device_has_is_refused_at_once_with_the_bytes(
    tmp_path: Path, device: Simulated
) -> None:
    clock = Clock()
    found = refusal(of(tmp_path, device, clock), 81 * GB)
    assert isinstance(found, NoMemory) and not found.ever and clock.now == 0
    assert f"{81 * GB:,} bytes of the device's memory" in found.reason
    assert f"{device.total:,}" in found.reason
    assert why_passing(found) == found.reason, "another device may have room for it"
    assert not OUT_OF_MEMORY.search(found.reason), "it need not be tried again on this one"


def test_a_users_own_model_counts(tmp_path: Path, device: Simulated) -> None:
    device.allocate(40 * GB)
    clock = Clock()
    leases = of(tmp_path, device, clock)
    assert refusal(leases, 40 * GB) is None
    with leases.lease(41 * GB, "race") as refused:
        assert isinstance(refused, NoMemory) and refused.ever
    assert (refused.needed, refused.free) == (41 * GB, 40 * GB)
    assert GRACE_S <= clock.now < GRACE_S + 1
    assert lacks_memory(refused) and why_passing(refused)


def test_a_users_model_that_ends_in_time_leaves_its_room(tmp_path: Path, device: Simulated) -> None:
    device.allocate(40 * GB)
    asked = iter(range(100))

    def go_on() -> bool:
        if next(asked) == 4:
            device.free(40 * GB)
        return True

    with of(tmp_path, device).lease(70 * GB, "race", go_on) as refused:
        assert refused is None


def test_a_lease_that_is_not_filled_yet_counts_whole(tmp_path: Path, device: Simulated) -> None:
    device.allocate(40 * GB)
    one, other = of(tmp_path, device), of(tmp_path, device)
    with one.lease(30 * GB, "race") as refused:
        assert refused is None
        assert isinstance(refusal(other, 20 * GB), NoMemory)
        device.allocate(30 * GB)
        assert isinstance(refusal(other, 20 * GB), NoMemory)
        assert refusal(other, 10 * GB) is None
        device.allocate(5 * GB)
        assert isinstance(refusal(other, 10 * GB), NoMemory), "somebody took that meanwhile"
        device.free(
            70 * GB
        )  # the user's model ended as well: no more than what is used can be without a lease
        assert refusal(other, 45 * GB) is None
        device.allocate(35 * GB)
    device.free(device.used - 40 * GB)
    assert refusal(other, 40 * GB) is None


def test_no_phase_that_has_a_lease_runs_out_of_memory(tmp_path: Path, device: Simulated) -> None:
    """Threads stand for processes: each holds what it has a lease for, and no more."""
    ran, failed = list[int](), list[BaseException]()
    mutex = threading.Lock()

    def search(sizes: list[int]) -> None:
        leases = Leases(tmp_path / "lock", device)
        for size in sizes:
            with leases.lease(size * GB, "race") as refused:
                try:
                    assert refused is None
                    with mutex:
                        device.allocate(size * GB)
                        ran.append(size)
                    with mutex:
                        device.free(size * GB)
                except BaseException as error:
                    failed.append(error)

    device.allocate(10 * GB)
    work = [[30, 5, 60], [20, 70, 1], [40, 40, 3]]
    threads = [threading.Thread(target=search, args=(sizes,)) for sizes in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [] and sorted(ran) == sorted(itertools.chain(*work))


def test_alone_means_beside_no_other_lease(tmp_path: Path, device: Simulated) -> None:
    one, other = of(tmp_path, device), of(tmp_path, device)
    with one.lease(1, "check") as refused:
        assert refused is None
        assert isinstance(refusal(other, None), NoMemory)
    with other.lease(None, "check, again") as refused:
        assert refused is None
        assert isinstance(refusal(one, 1), NoMemory)


def test_a_large_lease_is_not_passed_by_small_ones(tmp_path: Path, device: Simulated) -> None:
    one, large, small = (of(tmp_path, device) for _ in range(3))
    with one.lease(50 * GB, "race") as refused:
        assert refused is None
        asked = iter(range(3))

        def go_on() -> bool:
            return next(asked, None) is not None and isinstance(refusal(small, 1 * GB), NoMemory)

        with large.lease(60 * GB, "race", go_on) as refused:
            assert isinstance(refused, NoMemory)
        assert next(asked, None) is None, "a small one passed"


def test_a_lease_within_one_is_part_of_it(tmp_path: Path, device: Simulated) -> None:
    leases = of(tmp_path, device)
    with leases.lease(70 * GB, "profile") as refused, leases.lease(60 * GB, "check") as inner:
        assert refused is None and inner is None
        assert len(leases.known()) == 1


def test_none_is_asked_for_within_a_turn(tmp_path: Path, device: Simulated) -> None:
    leases = Leases(tmp_path / "lock", device, in_turn=lambda: True)
    with pytest.raises(RuntimeError, match="within a turn"), leases.lease(1, "race"):
        pass


def test_without_a_lock_there_are_none(device: Simulated) -> None:
    leases = Leases(None, device)
    with leases.lease(1 << 60, "race") as refused:
        assert refused is None and leases.known() == []


def hold(path: Path, ready: Event) -> None:
    with Leases(path, Simulated()).lease(60 * GB, "race"):
        ready.set()
        threading.Event().wait()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[multiprocessing.process.BaseProcess]:
    """A process that has a lease."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=hold, args=(tmp_path / "lock", ready))
    process.start()
    assert ready.wait(300)
    yield process
    process.kill()
    process.join()


def test_a_lease_dies_with_its_process(
    tmp_path: Path, device: Simulated, holder: multiprocessing.process.BaseProcess
) -> None:
    leases = of(tmp_path, device)
    assert [lease.process for lease in leases.known()] == [holder.pid]
    assert isinstance(refusal(leases, 30 * GB), NoMemory)
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert refusal(leases, 30 * GB) is None and leases.known() == []


def test_files_that_make_no_sense_are_no_lease_without_a_holder(
    tmp_path: Path, device: Simulated
) -> None:
    leases = of(tmp_path, device)
    assert refusal(leases, GB) is None
    folder = tmp_path / "lock.leases"
    (folder / "1-x.lease").write_bytes(b"\xff{")
    (folder / "book").write_text("[1, 2")
    assert leases.known() == [] and refusal(leases, 80 * GB) is None
    assert not list(folder.glob("*.lease"))


@pytest.mark.gpu
def test_the_driver_counts_what_is_allocated() -> None:
    import torch

    from sandbox.memory.device import CudaMemory

    memory = CudaMemory()
    torch.cuda.empty_cache()
    before = memory.room()
    held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    after = memory.room()
    assert after.total == before.total
    assert before.free - after.free >= held.nbytes
