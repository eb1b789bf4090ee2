"""From an operating system's or SQLite's error to a value with a reason and a remedy."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from kernel_cache.values import CacheUnavailable, Fault


class IndexMalformed(Exception):
    """The index holds what this package never writes. `text`: the offending value, for people."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.text = text


class IndexBusy(Exception):
    """Another process held the index for longer than the time allowed."""


class OtherFormat(Exception):
    """The folder was written in another version of the format."""


# What a guarded call turns into a value. All else is a bug and is raised.
EXPECTED = (OSError, sqlite3.DatabaseError, IndexMalformed, IndexBusy, OtherFormat)

_REMEDIES = {
    Fault.NOT_A_FOLDER: "choose a folder for the kernel cache, or move that file away",
    Fault.NO_ACCESS: "give this user read and write permission, or choose another folder",
    Fault.READ_ONLY: "make it writable, or choose another folder for the kernel cache",
    Fault.FULL: "free some space or raise the quota, or run the cache's gc with a lower limit",
    Fault.BUSY: "wait for the other process, or end it if it hangs",
    Fault.CORRUPT_INDEX: "run the cache's repair, which rebuilds the index from the record files",
    Fault.OTHER_FORMAT: "use the version that wrote it, or choose another folder",
    Fault.INPUT_OUTPUT: "check that disk's space and health, or choose another folder",
}

_BY_ERRNO = {
    errno.ENOENT: Fault.NOT_A_FOLDER,
    errno.ENOTDIR: Fault.NOT_A_FOLDER,
    errno.EEXIST: Fault.NOT_A_FOLDER,
    errno.EACCES: Fault.NO_ACCESS,
    errno.EPERM: Fault.NO_ACCESS,
    errno.EROFS: Fault.READ_ONLY,
    errno.ENOSPC: Fault.FULL,
    errno.EDQUOT: Fault.FULL,
    errno.EFBIG: Fault.FULL,
}

_BY_SQLITE_NAME = (
    ("SQLITE_FULL", Fault.FULL),
    ("SQLITE_READONLY", Fault.READ_ONLY),
    ("SQLITE_CANTOPEN", Fault.NO_ACCESS),
    ("SQLITE_PERM", Fault.NO_ACCESS),
    ("SQLITE_AUTH", Fault.NO_ACCESS),
    ("SQLITE_BUSY", Fault.BUSY),
    ("SQLITE_LOCKED", Fault.BUSY),
    ("SQLITE_CORRUPT", Fault.CORRUPT_INDEX),
    ("SQLITE_NOTADB", Fault.CORRUPT_INDEX),
    ("SQLITE_IOERR", Fault.INPUT_OUTPUT),
)


def unavailable(folder: Path, error: BaseException) -> CacheUnavailable:
    """The value for `error`, seen while `folder` was in use."""
    cause = first_cause(error)
    fault = fault_of(cause)
    reason = f"kernel cache {folder}: {fault.value}: {cause}"
    return CacheUnavailable(fault=fault, reason=reason, remedy=_REMEDIES[fault])


def fault_of(error: BaseException) -> Fault:
    """The kind of fault that `error` stands for."""
    if isinstance(error, OtherFormat):
        return Fault.OTHER_FORMAT
    if isinstance(error, IndexBusy):
        return Fault.BUSY
    if isinstance(error, OSError):
        return _BY_ERRNO.get(error.errno or 0, Fault.INPUT_OUTPUT)
    if isinstance(error, sqlite3.OperationalError):
        return _fault_of_sqlite(error)
    return Fault.CORRUPT_INDEX


def first_cause(error: BaseException) -> BaseException:
    """The first expected error of the chain: a failed rollback hides what made it necessary."""
    cause = error
    following: BaseException | None = error
    while following is not None:
        if isinstance(following, EXPECTED):
            cause = following
        following = following.__cause__ or following.__context__
    return cause


def _fault_of_sqlite(error: sqlite3.OperationalError) -> Fault:
    name = getattr(error, "sqlite_errorname", "") or ""
    for prefix, fault in _BY_SQLITE_NAME:
        if name.startswith(prefix):
            return fault
    # "no such table" and the like: a database, yet not one that this package made.
    return Fault.CORRUPT_INDEX
