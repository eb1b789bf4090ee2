"""What happens to the folder becomes a value with a reason and a remedy."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cache_examples import binary, finish, key, negative, opened, record, refused, start

from kernel_cache import CacheUnavailable, Corrupt, Fault, KernelCache, Miss, Record, Stored
from kernel_cache.faults import fault_of, first_cause
from kernel_cache.index import exclusive, fields_of


def fails(answer: object, fault: Fault) -> CacheUnavailable:
    assert isinstance(answer, CacheUnavailable), answer
    assert answer.fault is fault, answer
    assert answer.reason and answer.remedy and answer.remedy in str(answer)
    return answer


# A folder that cannot be opened. Permissions do not stop root, so folders that no permission can
# open are tested for every user, and permissions in a child process that is not root.


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    fails(refused(tmp_path / "cache"), Fault.NOT_A_FOLDER)


def test_a_file_on_the_way_to_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    fails(refused(tmp_path / "file" / "cache"), Fault.NOT_A_FOLDER)


def test_a_link_to_nowhere_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to(tmp_path / "cache")
    assert refused(tmp_path / "cache").fault in (Fault.NOT_A_FOLDER, Fault.INPUT_OUTPUT)


def test_a_folder_whose_name_would_be_expanded(tmp_path: Path) -> None:
    fails(refused(tmp_path / "$HOME"), Fault.NOT_A_FOLDER)
    assert not (tmp_path / "$HOME" / "index" / "cache.db").exists()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach, which pytest's own temporary folders are not."""
    folder = Path(tempfile.mkdtemp(prefix="kernel-cache-"))
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | stat.S_IRWXU)
    shutil.rmtree(folder)


def as_an_ordinary_user(work: Callable[[], object]) -> str:
    """What `work` answers in a child that has no rights of root: its fault's name, or its type."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            answer = work()
        except BaseException as error:
            answer = error
        is_fault = isinstance(answer, CacheUnavailable)
        os.write(writer, (answer.fault.name if is_fault else repr(answer)).encode())  # type: ignore[attr-defined]
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def change_modes(folder: Path, mode: int) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.chmod(mode if path.is_dir() else mode & 0o666)
    folder.chmod(mode)


def test_a_folder_without_permission_to_enter(open_folder: Path) -> None:
    opened(open_folder / "cache").close()
    (open_folder / "cache").chmod(0o000)
    said = as_an_ordinary_user(lambda: KernelCache.open(open_folder / "cache"))
    assert said == "NO_ACCESS"


def test_a_folder_without_permission_to_write(open_folder: Path) -> None:
    opened(open_folder / "cache").close()
    change_modes(open_folder / "cache", 0o555)
    said = as_an_ordinary_user(lambda: KernelCache.open(open_folder / "cache"))
    assert said in ("NO_ACCESS", "READ_ONLY")


def test_a_folder_that_loses_permission_to_write_after_it_was_opened(open_folder: Path) -> None:
    cache = opened(open_folder / "cache")
    cache.put(record(), binary())
    cache.close()
    change_modes(open_folder / "cache", 0o555)
    said = as_an_ordinary_user(lambda: cache.put(record(1), binary(1)))
    assert said in ("NO_ACCESS", "READ_ONLY")
    said = as_an_ordinary_user(lambda: cache.put_negative(negative(1)))
    assert said in ("NO_ACCESS", "READ_ONLY")


def test_a_read_only_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Patched, because mounting needs rights that a test run does not have.
    real = os.open

    def read_only(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *rest, **more)

    cache = opened(tmp_path / "cache")
    cache.put(record(), binary())
    monkeypatch.setattr(os, "open", read_only)
    fails(KernelCache.open(tmp_path / "cache"), Fault.READ_ONLY)
    fails(cache.put(record(1), binary(1)), Fault.READ_ONLY)
    assert cache.get(key()) == record()


def test_a_folder_in_another_format(tmp_path: Path) -> None:
    cache = opened(tmp_path / "cache")
    with cache._index.transaction():
        cache._index.set("meta/format", 99)
    assert "99" in fails(refused(tmp_path / "cache"), Fault.OTHER_FORMAT).reason


def test_an_index_that_another_process_holds(tmp_path: Path) -> None:
    cache = opened(tmp_path / "cache", timeout_s=0.05)
    cache.put(record(), binary())
    other = sqlite3.connect(tmp_path / "cache" / "index" / "cache.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    fails(cache.put(record(1), binary(1)), Fault.BUSY)
    assert cache.get(key()) == record()
    other.execute("ROLLBACK")
    assert isinstance(cache.put(record(1), binary(1)), Stored)


def test_an_opening_that_hangs_in_another_process(tmp_path: Path) -> None:
    opened(tmp_path / "cache").close()
    with exclusive(tmp_path / "cache" / "index" / "open.lock", 1.0):
        fails(KernelCache.open(tmp_path / "cache", timeout_s=0.05), Fault.BUSY)
    opened(tmp_path / "cache")


# A full disk


def test_a_full_disk_keeps_what_there_was_and_leaves_nothing_half_written(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(record(), binary())
    real = os.write

    def full(descriptor: int, data: Any) -> int:
        if len(data) > 100:
            return real(descriptor, data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    fails(cache.put(record(1), binary(1)), Fault.FULL)
    monkeypatch.undo()
    assert cache.get(key(1)) == Miss() and cache.get(key()) == record()
    assert list((cache.path / "aside").iterdir()) == [] and cache.audit() == []
    assert isinstance(cache.put(record(1), binary(1)), Stored)


def test_a_process_that_reaches_its_limit_on_the_size_of_files(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.put(record(), binary())
    (said,) = finish(start("put_with_limit", tmp_path, 200_000))
    assert said.strip() == "FULL"
    assert cache.get(key()) == record() and cache.get(key(7)) == Miss()
    assert list((tmp_path / "aside").iterdir()) == []


def test_a_disk_that_is_full_for_the_index(cache: KernelCache) -> None:
    cache.put(record(), binary())
    database = cache._index._database
    pages = database._sql("PRAGMA page_count").fetchone()[0]
    database._sql(f"PRAGMA max_page_count = {pages}")
    large = {"samples": ["x" * 200_000]}
    fails(cache.put_acceptance("graph", "set", large), Fault.FULL)
    assert cache.get(key()) == record()
    # The limit was the connection's own: after the fault it is a fresh one.
    assert cache.put_acceptance("graph", "set", large) is None


def test_a_flush_that_fails_is_not_taken_for_a_success(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    fails(cache.put(record(), binary()), Fault.INPUT_OUTPUT)
    monkeypatch.undo()
    assert cache.get(key()) == Miss()


# Damage


def file_of(cache: KernelCache, suffix: str) -> Path:
    (path,) = cache.path.rglob(f"*{suffix}")
    return path


def damaged(answer: object, part: str) -> Corrupt:
    assert isinstance(answer, Corrupt), answer
    assert part in answer.reason and answer.remedy and answer.name in str(answer)
    return answer


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"\n"),
        lambda path: path.write_bytes(b"\x00" + path.read_bytes()[1:]),
        lambda path: path.unlink(),
    ],
    ids=["emptied", "cut", "lengthened", "changed", "missing"],
)
@pytest.mark.parametrize("suffix", [".json", ".bin"])
def test_a_damaged_file_is_reported_repaired_and_replaced(
    cache: KernelCache, suffix: str, damage: Callable[[Path], object]
) -> None:
    cache.put(record(), binary())
    path = file_of(cache, suffix)
    damage(path)
    found = damaged(cache.get(key()), "record" if suffix == ".json" else "binary")
    assert found.path == str(path)
    damaged(cache.get_by_op_key(key().op_key), "")
    assert [type(entry) for entry in cache.list()] == [Corrupt]  # type: ignore[union-attr]
    before = cache.fingerprint()
    assert [finding.kind.value for finding in cache.audit()] == ["damaged kernel"]  # type: ignore[union-attr]
    cache.repair()
    assert cache.get(key()) == Miss() and cache.audit() == []
    assert cache.fingerprint() != before
    assert len(list((cache.path / "quarantine").iterdir())) >= 1
    assert isinstance(cache.put(record(), binary()), Stored) and cache.get(key()) == record()


def test_a_damaged_binary_is_not_handed_out(cache: KernelCache) -> None:
    cache.put(record(), binary())
    file_of(cache, ".bin").write_bytes(b"\x7fELF but not ours")
    damaged(cache.binary_path(record()), "digest")
    damaged(cache.read_binary(record()), "digest")


def test_a_put_heals_a_damaged_file_of_the_same_content(cache: KernelCache) -> None:
    cache.put(record(), binary())
    file_of(cache, ".bin").write_bytes(b"damaged")
    cache.put(record(), binary())
    assert cache.get(key()) == record() and cache.read_binary(record()) == binary()


def test_a_record_of_sound_bytes_in_an_unknown_form_is_damage(cache: KernelCache) -> None:
    cache.put(record(), binary())
    text = record().to_json().replace('"version":1', '"version":2').encode()
    files = cache._layout.records
    staged = files.stage(text)
    files.place(staged)
    name = f"record/{key().digest}"
    with cache._index.transaction():
        cache._index.set(
            name, {"record": staged.digest, "binary": record().binary_digest, "size": 1}
        )
    damaged(cache.get(key()), "version 2")


def test_a_record_under_another_key_is_damage(cache: KernelCache) -> None:
    cache.put(record(), binary())
    with cache._index.transaction():
        row = fields_of("row", cache._index.get(f"record/{key().digest}"))
        cache._index.set(f"record/{key(1).digest}", row)
    damaged(cache.get(key(1)), "not the one")
    cache.repair()
    assert cache.get(key(1)) == Miss() and cache.get(key()) == record()


@pytest.mark.parametrize("value", ["{", "[1]", '{"record":"../../x"}', "NaN", b"\x80\x04.", 7])
@pytest.mark.parametrize("kind", ["record", "negative", "operator", "acceptance"])
def test_a_damaged_row_of_the_index_is_reported_and_repaired(
    cache: KernelCache, kind: str, value: object
) -> None:
    cache.put(record(), binary())
    cache.put(record(1), binary(1))
    now = 2e9
    cache.put_negative(negative(2, created=now))
    cache.put_acceptance("graph", "set", {"accepted": True})
    (name, *_) = cache._index.names(f"{kind}/")
    database = cache._index._database
    database._sql("UPDATE Cache SET value = ? WHERE key = ?", (value, name))
    answers: list[object] = [cache.get(key(n)) for n in range(3)]
    answers += [cache.get_by_op_key(key(n).op_key) for n in range(2)]
    answers += [cache.get_acceptance("graph", "set")]
    assert sum(isinstance(answer, Corrupt) for answer in answers) >= 1
    assert not any(isinstance(answer, CacheUnavailable) for answer in answers)
    assert cache.fingerprint()
    cache.repair()
    harmful = [finding for finding in cache.audit() if not finding.harmless]  # type: ignore[union-attr]
    assert harmful == []
    answers = [*(cache.get(key(n)) for n in range(3))]
    answers += [cache.get_acceptance("graph", "set")]
    assert not any(isinstance(answer, Corrupt) for answer in answers)


def test_a_row_that_says_it_is_pickled_is_never_unpickled(cache: KernelCache) -> None:
    cache.put(record(), binary())
    database = cache._index._database
    payload = b"cos\nsystem\n(S'false'\ntR."
    database._sql("UPDATE Cache SET mode = 4, value = ? WHERE key LIKE 'record/%'", (payload,))
    damaged(cache.get(key()), "not JSON")


def test_a_damaged_task_is_reported_and_repaired(cache: KernelCache) -> None:
    cache.enqueue(key(), "{}")
    cache.enqueue(key(1), "{}")
    index = cache._tasks().index
    with index.transaction():
        index.set(f"task/{key().digest}", {"version": 1})
    fails(cache.pending(), Fault.CORRUPT_INDEX)
    cache.repair()
    (waiting,) = cache.pending()  # type: ignore[misc]
    assert waiting.key == key(1) and cache.audit() == []


def test_a_stray_file_goes_to_quarantine(cache: KernelCache) -> None:
    cache.put(record(), binary())
    (cache.path / "blobs" / "note.txt").write_text("mine")
    assert [finding.kind.value for finding in cache.audit()] == ["stray file"]  # type: ignore[union-attr]
    cache.repair()
    (kept,) = (cache.path / "quarantine").iterdir()
    assert kept.read_text() == "mine" and cache.audit() == []


def spoil(database: Path, how: str) -> None:
    for path in database.parent.glob("cache.db-*"):
        path.unlink()
    data = database.read_bytes()
    spoilt = {"text": b"not a database " * 100, "emptied": b"", "cut": data[: len(data) // 2]}
    middle = data[:4096] + b"\xff" * (len(data) - 4096)
    database.write_bytes({**spoilt, "overwritten": middle}[how])


@pytest.mark.parametrize("how", ["text", "cut", "overwritten", "emptied"])
def test_a_damaged_index_is_reported_and_rebuilt_from_the_records(tmp_path: Path, how: str) -> None:
    cache = opened(tmp_path)
    for number in range(3):
        cache.put(record(number), binary(number))
    identity = cache.identity()
    cache.close()
    spoil(tmp_path / "index" / "cache.db", how)
    answer = KernelCache.open(tmp_path)
    if isinstance(answer, KernelCache):
        answer = answer.get(key())  # type: ignore[assignment]
    assert "repair" in fails(answer, Fault.CORRUPT_INDEX).remedy
    rebuilt = KernelCache.rebuild(tmp_path)
    assert isinstance(rebuilt, KernelCache)
    assert [rebuilt.get(key(number)) for number in range(3)] == [record(n) for n in range(3)]
    assert rebuilt.get_by_op_key(key(1).op_key) == record(1)
    assert rebuilt.audit() == [] and rebuilt.identity() != identity
    assert len(list((tmp_path / "quarantine").iterdir())) == 1


def test_an_index_that_is_damaged_while_it_is_open_is_reported(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.put(record(), binary())
    cache.close()
    spoil(tmp_path / "index" / "cache.db", "text")
    for answer in (cache.get(key()), cache.put(record(1), binary(1)), cache.list()):
        fails(answer, Fault.CORRUPT_INDEX)
    fails(cache.generation(), Fault.CORRUPT_INDEX)
    one, other = cache.fingerprint(), cache.fingerprint()
    assert one.startswith("unavailable") and one != other


def test_an_index_that_was_deleted_is_not_taken_for_a_new_cache(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.put(record(), binary())
    cache.close()
    shutil.rmtree(tmp_path / "index")
    fails(KernelCache.open(tmp_path), Fault.CORRUPT_INDEX)
    rebuilt = KernelCache.rebuild(tmp_path)
    assert isinstance(rebuilt, KernelCache) and rebuilt.get(key()) == record()


def test_a_rebuild_keeps_the_newest_record_of_a_key_and_drops_damaged_ones(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    code = b"newer"
    for made, data in ((record(), binary()), (record(code=code, created=2000.0), code)):
        cache.put(made, data)
    for kind, data in (
        (cache._layout.records, record().to_json().encode()),
        (cache._layout.blobs, binary()),
    ):
        kind.place(kind.stage(data))  # the older one again, as if never swept
    cache.put(record(1), binary(1))
    cache._layout.blobs.path(record(1).binary_digest).write_bytes(b"damaged")
    cache.close()
    rebuilt = KernelCache.rebuild(tmp_path)
    assert isinstance(rebuilt, KernelCache)
    found = rebuilt.get(key())
    assert isinstance(found, Record) and found.created == 2000.0
    assert rebuilt.get(key(1)) == Miss()


def test_a_damaged_queue_does_not_harm_the_kernels(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.put(record(), binary())
    cache.enqueue(key(1), "{}")
    cache._tasks().index.close()
    spoil(tmp_path / "queue" / "cache.db", "text")
    fresh = opened(tmp_path)
    fails(fresh.enqueue(key(2), "{}"), Fault.CORRUPT_INDEX)
    assert fresh.get(key()) == record()
    rebuilt = KernelCache.rebuild(tmp_path)
    assert isinstance(rebuilt, KernelCache)
    assert rebuilt.enqueue(key(2), "{}") is True and rebuilt.get(key()) == record()


# The decision itself


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (errno.ENOSPC, Fault.FULL),
        (errno.EDQUOT, Fault.FULL),
        (errno.EFBIG, Fault.FULL),
        (errno.EROFS, Fault.READ_ONLY),
        (errno.EACCES, Fault.NO_ACCESS),
        (errno.ENOTDIR, Fault.NOT_A_FOLDER),
        (errno.EIO, Fault.INPUT_OUTPUT),
    ],
)
def test_errors_of_the_system_are_told_apart(number: int, fault: Fault) -> None:
    assert fault_of(OSError(number, os.strerror(number))) is fault


def test_the_first_error_counts_and_not_the_rollback_that_failed_after_it() -> None:
    first = sqlite3.OperationalError("database or disk is full")
    later = sqlite3.OperationalError("cannot rollback - no transaction is active")
    later.__context__ = first
    assert first_cause(later) is first
