from __future__ import annotations

import json
from pathlib import Path

import pytest
from cache_examples import finish, key, opened, start, task

from kernel_cache import KernelCache, QueuedTask


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(tmp_path: Path, clock: Clock) -> KernelCache:
    cache = KernelCache.open(tmp_path / "cache", clock=clock)
    assert isinstance(cache, KernelCache)
    return cache


def claimed(cache: KernelCache, owner: str = "me", **options: float) -> QueuedTask:
    taken = cache.claim(owner, **options)  # type: ignore[arg-type]
    assert isinstance(taken, QueuedTask)
    return taken


def test_a_task_waits_once_however_often_it_is_asked_for(queue: KernelCache) -> None:
    assert queue.enqueue(key(), task(), {"model": "a"}) is True
    assert queue.enqueue(key(), task(), {"model": "b"}) is False
    (waiting,) = queue.pending()  # type: ignore[misc]
    assert (waiting.key, waiting.task, waiting.meta) == (key(), task(), {"model": "a"})


def test_the_oldest_task_is_claimed_first_and_by_one_only(queue: KernelCache, clock: Clock) -> None:
    queue.enqueue(key(1), task(1))
    clock.now += 1
    queue.enqueue(key(0), task(0))
    assert claimed(queue).key == key(1)
    assert claimed(queue).key == key(0)
    assert queue.claim("me") is None and len(queue.pending()) == 2  # type: ignore[arg-type]


def test_a_done_task_is_gone_and_may_be_asked_for_again(queue: KernelCache) -> None:
    queue.enqueue(key(), task())
    assert queue.done(claimed(queue)) is True
    assert queue.pending() == [] and queue.enqueue(key(), task()) is True


def test_a_lease_that_runs_out_is_lost_to_the_next_owner(queue: KernelCache, clock: Clock) -> None:
    queue.enqueue(key(), task())
    first = claimed(queue, lease_s=10.0)
    clock.now += 10.0
    second = claimed(queue, "other")
    assert (second.attempts, second.owner) == (2, "other")
    assert queue.done(first) is False and queue.renew(first) is None
    assert queue.release(first) is False and queue.done(second) is True


def test_a_renewed_lease_is_kept(queue: KernelCache, clock: Clock) -> None:
    queue.enqueue(key(), task())
    first = claimed(queue, lease_s=10.0)
    clock.now += 9.0
    assert isinstance(queue.renew(first, lease_s=10.0), QueuedTask)
    clock.now += 9.0
    assert queue.claim("other") is None and queue.done(first) is True


def test_a_released_task_is_free_at_once_and_its_attempt_is_not_counted(
    queue: KernelCache,
) -> None:
    queue.enqueue(key(), task())
    assert queue.release(claimed(queue)) is True
    assert claimed(queue).attempts == 1


def test_a_task_that_ends_every_search_is_not_claimed_for_ever(
    queue: KernelCache, clock: Clock
) -> None:
    queue.enqueue(key(), task())
    for _ in range(3):
        claimed(queue, lease_s=1.0)
        clock.now += 1.0
    assert queue.claim("me") is None and len(queue.pending()) == 1  # type: ignore[arg-type]
    assert queue.drop_task(key()) is True and queue.drop_task(key()) is False


def test_a_task_that_ended_its_searches_is_tried_again_after_ever_longer_waits(
    queue: KernelCache, clock: Clock
) -> None:
    queue.enqueue(key(), task())
    for _ in range(3):
        claimed(queue, lease_s=1.0)
        clock.now += 1.0
    for wait_s in (600.0, 2400.0):
        clock.now += wait_s - 1.0
        assert queue.claim("me") is None
        clock.now += 1.0
        claimed(queue, lease_s=1.0)
        clock.now += 1.0


@pytest.mark.parametrize("jump_s", [-10 * 86400.0, 10 * 86400.0])
def test_a_clock_that_jumps_leaves_no_task_held_for_ever(
    queue: KernelCache, clock: Clock, jump_s: float
) -> None:
    queue.enqueue(key(), task())
    claimed(queue)
    clock.now += jump_s
    assert claimed(queue, "other").attempts == 2


def test_a_task_that_nobody_claimed_cannot_be_done(queue: KernelCache) -> None:
    queue.enqueue(key(), task())
    (waiting,) = queue.pending()  # type: ignore[misc]
    assert queue.done(waiting) is False


def test_processes_that_ask_for_the_same_tasks_add_each_once(tmp_path: Path) -> None:
    children = [start("enqueue", tmp_path, 12) for _ in range(3)]
    assert sum(int(output) for output in finish(*children)) == 12


def test_processes_that_share_a_queue_do_each_task_once(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    for number in range(20):
        cache.enqueue(key(number), task(number))
    outputs = finish(*(start("take_all", tmp_path, f"owner {n}") for n in range(3)))
    done = [json.loads(line)["number"] for output in outputs for line in output.splitlines()]
    assert sorted(done) == list(range(20)) and cache.pending() == []


def test_a_task_whose_searcher_was_killed_is_taken_by_another(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.enqueue(key(), task())
    child = start("claim_and_hang", tmp_path)
    assert child.stdout and child.stdout.readline() == "claimed\n"
    child.kill()
    child.communicate()
    (held,) = cache.pending()  # type: ignore[misc]
    later = KernelCache.open(tmp_path, clock=lambda: held.lease_until)
    assert isinstance(later, KernelCache)
    assert claimed(later).attempts == 2
