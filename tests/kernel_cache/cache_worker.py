"""The child processes of the kernel cache's tests: `cache_worker.py COMMAND FOLDER ...`."""

from __future__ import annotations

import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cache_examples import binary, key, negative, opened, record, task

from kernel_cache import CacheUnavailable, KernelCache, NegativeRecord, Record, Stored


def put_forever(folder: Path) -> None:
    """Put for ever, announcing each number before and after; the parent kills it."""
    cache = opened(folder)
    for number in range(1_000_000):
        print("try", number, flush=True)
        assert isinstance(cache.put(record(number), binary(number)), Stored)
        print("put", number, flush=True)


def churn(folder: Path, seed: str, rounds: str) -> None:
    """Put, remove, look up and collect at random; whatever is read must be whole."""
    cache, chance, changes = opened(folder), random.Random(int(seed)), 0
    for _ in range(int(rounds)):
        number = chance.randrange(4)
        action = chance.choice(["put", "remove", "get", "get", "negative", "gc"])
        if action == "put":
            stored = cache.put(record(number, created=chance.random()), binary(number))
            assert isinstance(stored, Stored), stored
            changes += 1
        elif action == "remove":
            removed = cache.remove(key(number))
            assert isinstance(removed, bool), removed
            changes += removed
        elif action == "negative":
            now = time.time()
            assert cache.put_negative(negative(number, created=now)) is None
        elif action == "gc":
            assert not isinstance(cache.gc(), CacheUnavailable)
        else:
            _expect_whole(cache, number)
    print(changes)


def _expect_whole(cache: KernelCache, number: int) -> None:
    found = cache.get(key(number))
    if isinstance(found, Record):
        assert found.key == key(number) and found.source == f"// kernel {number}"
    else:
        assert isinstance(found, NegativeRecord) or type(found).__name__ == "Miss", found


def open_and_count(folder: Path) -> None:
    """Open a perhaps new folder at once with others; its identity must be one."""
    cache = opened(folder)
    print(cache.identity())


def take_all(folder: Path, owner: str) -> None:
    """Claim and finish tasks until none is left; print what was done."""
    cache = opened(folder)
    while claimed := cache.claim(owner):
        assert not isinstance(claimed, CacheUnavailable), claimed
        assert cache.done(claimed) is True
        print(claimed.task, flush=True)


def claim_and_hang(folder: Path) -> None:
    """Claim a task with a short lease and never finish it."""
    claimed = opened(folder).claim("dying", lease_s=0.2)
    assert claimed, claimed
    print("claimed", flush=True)
    time.sleep(600)


def put_with_limit(folder: Path, limit: str) -> None:
    """Put a binary larger than this process may write to any file."""
    cache = opened(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    code = b"x" * (2 * int(limit))
    answer = cache.put(record(7, code=code), code)
    assert isinstance(answer, CacheUnavailable), answer
    print(answer.fault.name)


def enqueue(folder: Path, count: str) -> None:
    """Ask for the same searches as the other processes."""
    cache = opened(folder)
    print(sum(cache.enqueue(key(n), task(n)) is True for n in range(int(count))))


COMMANDS: dict[str, Callable[..., None]] = {
    "put_forever": put_forever,
    "churn": churn,
    "open_and_count": open_and_count,
    "take_all": take_all,
    "claim_and_hang": claim_and_hang,
    "put_with_limit": put_with_limit,
    "enqueue": enqueue,
}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
