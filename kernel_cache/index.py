"""The index: a small transactional map from names to JSON values, shared by processes."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from kernel_cache.canonical import Json
from kernel_cache.disk import LockTimeout, open_diskcache
from kernel_cache.faults import IndexBusy, IndexMalformed, OtherFormat

FORMAT_VERSION = 1
_FORMAT_NAME = "meta/format"


class _Absent:
    pass


ABSENT: Final = _Absent()


class Index:
    """One diskcache database. Every method may raise what `faults.EXPECTED` lists.

    Reads need no lock. Writes belong in `transaction()`, which is exclusive among all processes,
    all or nothing, and short. Safe among threads and across fork.
    """

    def __init__(self, folder: Path, database: Any) -> None:
        self.folder = folder
        self._database = database

    @classmethod
    def open(cls, folder: Path, timeout_s: float) -> Index:
        """Open or make the database in `folder`. Raises OtherFormat if it is not ours."""
        folder.mkdir(parents=True, exist_ok=True)
        # Making tables from two processes at once meets SQLite errors that no timeout covers.
        with exclusive(folder / "open.lock", timeout_s):
            index = cls(folder, open_diskcache(folder, timeout_s))
            with index.transaction():
                version = index.get(_FORMAT_NAME)
                if isinstance(version, _Absent):
                    index.set(_FORMAT_NAME, FORMAT_VERSION)
        if not isinstance(version, _Absent) and version != FORMAT_VERSION:
            index.close()
            raise OtherFormat(f"it has format {version!r}, this version reads {FORMAT_VERSION}")
        return index

    def get(self, name: str) -> Json | _Absent:
        """The value of `name`, or ABSENT. Raises IndexMalformed on a value that is not JSON."""
        value: Json | _Absent = self._database.get(name, default=ABSENT)
        return value

    def set(self, name: str, value: Json) -> None:
        """Set `name`; only within a transaction."""
        self._database.set(name, value)

    def delete(self, name: str) -> bool:
        """Delete `name`; whether it was there. Works on malformed values too."""
        return bool(self._database.delete(name))

    def names(self, prefix: str) -> list[str]:
        """All names that start with `prefix`, sorted. A snapshot only within a transaction."""
        return [name for name in self._database.iterkeys() if name.startswith(prefix)]

    def integrity(self) -> str:
        """SQLite's own finding on the whole file: "ok" or what is wrong."""
        path = self.folder / "cache.db"
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            return "; ".join(str(row[0]) for row in connection.execute("PRAGMA integrity_check(5)"))
        finally:
            connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the index alone: all changes of the block are kept, or none is."""
        begun = False
        try:
            with self._database.transact():
                begun = True
                yield
        except LockTimeout:
            self.close()
            self._raise_why_not_locked()
        except (sqlite3.Error, OSError):
            # A failed COMMIT leaves its connection inside the transaction; a new one is clean.
            self.close()
            raise
        except BaseException:
            if (
                not begun
            ):  # an interrupt as it began: the connection may be inside, and would keep others out
                self.close()
            raise

    def close(self) -> None:
        """Close this thread's connection; the next use opens another."""
        self._database.close()

    def _raise_why_not_locked(self) -> None:
        # diskcache reports every failure to begin as a time-out: ask SQLite itself.
        connection = sqlite3.connect(self.folder / "cache.db", timeout=0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        finally:
            connection.close()
        raise IndexBusy("another process held the index for too long")


@contextmanager
def exclusive(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold an advisory lock on `path`, made if absent; the system frees it when a process dies."""
    deadline = time.monotonic() + timeout_s
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise IndexBusy(f"another process held {path.name} for {timeout_s:g} s")
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def is_absent(value: Json | _Absent) -> bool:
    """Whether a lookup found nothing."""
    return isinstance(value, _Absent)


def fields_of(name: str, value: object) -> dict[str, Json]:
    """`value` as a JSON object. Raises IndexMalformed if it is anything else."""
    if not isinstance(value, dict):
        raise IndexMalformed(f"{name} is not an object", repr(value)[:200])
    return value


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
