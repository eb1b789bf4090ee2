from __future__ import annotations

import os
import pickle
import threading
import time
from pathlib import Path

import pytest
from cache_examples import DAY, binary, key, negative, opened, record

from kernel_cache import Corrupt, Json, KernelCache, Miss, NegativeRecord, Record, Stored
from kernel_cache.index import Index
from kernel_cache.retention import Use, choose_evictions


def test_an_unknown_key_is_a_miss(cache: KernelCache) -> None:
    assert cache.get(key()) == Miss()
    assert cache.get_by_op_key(key().op_key) == Miss()


def test_a_put_record_comes_back_in_another_opening_with_its_binary(cache: KernelCache) -> None:
    assert isinstance(cache.put(record(), binary()), Stored)
    other = opened(cache.path)
    assert other.get(key()) == record()
    assert other.get_by_op_key(key().op_key) == record()
    assert other.read_binary(record()) == binary()
    path = other.binary_path(record())
    assert isinstance(path, Path) and path.read_bytes() == binary()
    assert other.get(key(1)) == Miss()


def test_rows_name_every_record_and_a_peek_needs_no_binary(cache: KernelCache) -> None:
    cache.put(record(0), binary(0))
    cache.put(record(1), binary(1))
    rows = cache.rows()
    assert isinstance(rows, dict) and rows.keys() == {key(0).digest, key(1).digest}
    path = cache.binary_path(record(0))
    assert isinstance(path, Path)
    path.unlink()
    assert cache.peek(key(0).digest) == record(0) and isinstance(cache.get(key(0)), Corrupt)
    assert cache.peek(key(2).digest) == Miss()


def test_a_peek_at_a_damaged_record_says_so(cache: KernelCache) -> None:
    cache.put(record(), binary())
    (file,) = (cache.path / "records").rglob("*.json")
    file.write_bytes(b"{}")
    found = cache.peek(key().digest)
    assert isinstance(found, Corrupt) and found.path == str(file)


def test_a_binary_that_is_not_the_records_is_an_error_of_the_caller(cache: KernelCache) -> None:
    with pytest.raises(ValueError, match="binary_digest"):
        cache.put(record(0), binary(1))
    assert cache.get(key()) == Miss()


def test_a_second_put_replaces_the_first_and_leaves_no_file_behind(cache: KernelCache) -> None:
    cache.put(record(), binary())
    code = b"better"
    cache.put(record(code=code), code)
    found = cache.get(key())
    assert isinstance(found, Record) and cache.read_binary(found) == code
    assert cache.audit() == []


def test_putting_the_same_record_again_keeps_it(cache: KernelCache) -> None:
    cache.put(record(), binary())
    cache.put(record(), binary())
    assert cache.get(key()) == record() and cache.audit() == []


def test_a_removed_record_is_gone_with_its_files(cache: KernelCache) -> None:
    cache.put(record(), binary())
    assert cache.remove(key()) is True
    assert cache.get(key()) == Miss() and cache.get_by_op_key(key().op_key) == Miss()
    assert cache.remove(key()) is False
    assert list(cache.path.rglob("*.bin")) == []
    assert list(cache.path.rglob("*.json")) == []


def test_a_binary_shared_by_two_records_outlives_one_of_them(cache: KernelCache) -> None:
    cache.put(record(0, code=b"shared"), b"shared")
    cache.put(record(1, code=b"shared"), b"shared")
    cache.remove(key(0))
    assert isinstance(cache.get(key(1)), Record)


def test_remove_takes_a_digest_and_refuses_what_is_none(cache: KernelCache) -> None:
    cache.put(record(), binary())
    assert cache.remove(key().digest) is True
    with pytest.raises(ValueError, match="digest"):
        cache.remove("../../x")


def test_a_failed_search_is_remembered_until_it_expires(tmp_path: Path) -> None:
    now = [1000.0]
    cache = KernelCache.open(tmp_path, clock=lambda: now[0])
    assert isinstance(cache, KernelCache)
    assert cache.put_negative(negative()) is None
    assert cache.get(key()) == negative() and cache.list() == [negative()]
    now[0] += DAY
    expired = cache.get(key())
    assert isinstance(expired, Miss) and "expired" in expired.reason and cache.list() == []


def test_a_kernel_outranks_a_failed_search_and_ends_it(tmp_path: Path) -> None:
    cache = KernelCache.open(tmp_path, clock=lambda: 1000.0)
    assert isinstance(cache, KernelCache)
    cache.put_negative(negative())
    cache.put(record(), binary())
    assert cache.get(key()) == record()
    cache.put_negative(negative())
    assert cache.get(key()) == record()


def test_list_gives_every_entry(tmp_path: Path) -> None:
    cache = KernelCache.open(tmp_path, clock=lambda: 1000.0)
    assert isinstance(cache, KernelCache)
    for number in range(3):
        cache.put(record(number), binary(number))
    cache.put_negative(negative(3))
    entries = cache.list()
    assert isinstance(entries, list)
    kernels = {entry.key for entry in entries if isinstance(entry, Record)}
    assert kernels == {key(0), key(1), key(2)}
    assert [entry for entry in entries if isinstance(entry, NegativeRecord)] == [negative(3)]


def test_what_compiled_code_may_depend_on_and_nothing_else_advances_the_generation(
    cache: KernelCache,
) -> None:
    assert cache.generation() == 0
    assert cache.put(record(), binary()) == Stored(1)
    assert cache.put(record(), binary()) == Stored(2)
    cache.put_negative(negative(1))
    cache.get(key())
    assert cache.generation() == 2
    cache.remove(key())
    cache.remove(key())
    assert cache.generation() == 3 == opened(cache.path).generation()
    for accepted in (True, True, False):
        cache.put_acceptance("graph", "set", {"accepted": accepted})
    assert cache.generation() == 5
    before = cache.fingerprint()
    assert cache.outdate() == 6 == cache.generation()
    assert cache.fingerprint() != before


def test_the_identity_is_the_folders_own_and_lasts(tmp_path: Path) -> None:
    one, other = opened(tmp_path / "a"), opened(tmp_path / "b")
    assert one.identity() != other.identity()
    assert opened(tmp_path / "a").identity() == one.identity()


def test_a_fingerprint_waits_for_nobody_who_writes(cache: KernelCache) -> None:
    before = cache.fingerprint()
    other = Index.open(cache._index.folder, 0.1)
    with other.transaction():
        other.set("something", 1)
        assert cache.fingerprint() == before


def test_the_fingerprint_follows_changes_made_through_any_opening(cache: KernelCache) -> None:
    other = opened(cache.path)
    empty = cache.fingerprint()
    assert empty == other.fingerprint() == cache.fingerprint()
    other.put(record(), binary())
    assert cache.fingerprint() == other.fingerprint() != empty
    other.remove(key())
    assert cache.fingerprint() not in (empty, "")


def test_an_acceptance_comes_back_as_it_was_put(cache: KernelCache) -> None:
    decision: dict[str, Json] = {
        "accepted": True,
        "speedup": {"median": 1.25},
        "samples": [1, 2.5, None],
    }
    assert cache.get_acceptance("graph", "set") is None
    cache.put_acceptance("graph", "set", decision)
    assert opened(cache.path).get_acceptance("graph", "set") == decision
    assert cache.get_acceptance("graph", "other") is None


def test_an_acceptance_that_is_not_json_is_an_error_of_the_caller(cache: KernelCache) -> None:
    with pytest.raises(ValueError, match="JSON"):
        cache.put_acceptance("graph", "set", {"speedup": float("nan")})


def test_threads_share_one_cache(cache: KernelCache) -> None:
    answers: list[object] = []

    def work(number: int) -> None:
        answers.append(cache.put(record(number), binary(number)))
        answers.append(cache.get(key(number)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(answer, Stored) for answer in answers) == 6
    assert sum(isinstance(answer, Record) for answer in answers) == 6
    assert cache.generation() == 6


def test_a_forked_child_may_use_the_cache_that_its_parent_opened(cache: KernelCache) -> None:
    cache.put(record(), binary())
    child = os.fork()
    if child == 0:
        ok = cache.get(key()) == record()
        ok = ok and isinstance(cache.put(record(1), binary(1)), Stored)
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert cache.get(key(1)) == record(1) and cache.generation() == 2


def test_nothing_is_ever_pickled(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("pickle was used")

    for name in ("dump", "dumps", "load", "loads"):
        monkeypatch.setattr(pickle, name, refuse)
    other = opened(cache.path)
    other.put(record(), binary())
    other.put_negative(negative(1))
    other.put_acceptance("graph", "set", {"accepted": True})
    other.enqueue(key(2), "{}")
    assert other.claim("me") and other.get(key()) == record() and other.audit() == []


# gc


def use(number: int, last_used: float, size: int = 10) -> Use:
    return Use(f"{number:064x}", last_used, size)


def test_without_limits_nothing_is_evicted() -> None:
    assert choose_evictions([use(0, 0.0)], 1e9, None, None) == []


def test_the_least_recently_used_go_first_until_the_rest_fits() -> None:
    uses = [use(0, 30.0), use(1, 10.0), use(2, 20.0)]
    assert choose_evictions(uses, 40.0, 10, None) == [uses[1], uses[2]]
    assert choose_evictions(uses, 40.0, 0, None) == [uses[1], uses[2], uses[0]]
    assert choose_evictions(uses, 40.0, 30, None) == []


def test_what_was_not_used_for_too_long_goes_whatever_its_size() -> None:
    uses = [use(0, 30.0), use(1, 10.0)]
    assert choose_evictions(uses, 40.0, 1000, 15.0) == [uses[1]]


def record_file(cache: KernelCache, number: int) -> Path:
    text = record(number).to_json()
    return next(path for path in cache.path.rglob("*.json") if path.read_text() == text)


def test_gc_removes_kernels_over_the_limits_and_counts_as_a_change(cache: KernelCache) -> None:
    for number in range(3):
        cache.put(record(number), binary(number))
        os.utime(record_file(cache, number), times=(0, time.time() - DAY * (3 - number)))
    before = cache.generation()
    report = cache.gc(max_age_s=2.5 * DAY)
    assert report.kernels == 1 and report.bytes_freed > 0  # type: ignore[union-attr]
    assert isinstance(cache.get(key(0)), Miss) and isinstance(cache.get(key(1)), Record)
    assert cache.generation() == before + 1  # type: ignore[operator]
    report = cache.gc(max_bytes=0)
    assert (report.kernels, report.bytes_left) == (2, 0)  # type: ignore[union-attr]
    assert cache.list() == [] and not list(cache.path.rglob("*.bin"))


def test_using_a_kernel_keeps_it_young(cache: KernelCache) -> None:
    cache.put(record(), binary())
    os.utime(record_file(cache, 0), times=(0, 0))
    assert cache.get(key()) == record()
    assert cache.gc(max_age_s=DAY).kernels == 0  # type: ignore[union-attr]


def test_gc_drops_expired_failures_old_acceptances_and_old_tasks(tmp_path: Path) -> None:
    now = [1000.0]
    cache = KernelCache.open(tmp_path, clock=lambda: now[0])
    assert isinstance(cache, KernelCache)
    cache.put_negative(negative(0, lasts=5.0))
    cache.put_negative(negative(1, lasts=10 * DAY))
    cache.put_acceptance("graph", "set", {"accepted": True})
    cache.enqueue(key(2), "{}")
    now[0] += 2 * DAY
    assert cache.gc().rows == 1  # type: ignore[union-attr]
    assert cache.get_acceptance("graph", "set") is not None
    assert cache.gc(max_age_s=DAY).rows == 1  # type: ignore[union-attr]
    assert cache.get_acceptance("graph", "set") is None and cache.pending() == []
    assert isinstance(cache.get(key(1)), NegativeRecord)


def test_gc_removes_what_dead_writers_left_and_spares_living_ones(cache: KernelCache) -> None:
    cache.put(record(), binary())
    old, young = cache.path / "aside" / "old", cache.path / "aside" / "young"
    old.write_bytes(b"half"), young.write_bytes(b"half")
    os.utime(old, times=(0, 0))
    orphan = cache.path / "blobs" / "ab" / ("c" * 62 + ".bin")
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"nobody's")
    assert cache.gc().files == 2  # type: ignore[union-attr]
    assert young.exists() and not old.exists() and not orphan.exists()
    assert not isinstance(cache.get(key()), Corrupt)
