"""diskcache without pickle: string keys, JSON values, all inside SQLite.

diskcache pickles whatever it has no native column for and unpickles whatever a row says is
pickled, so a writable database would be a way to run code. This `Disk` refuses both directions.
Its settings are plain numbers and strings in SQLite columns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import diskcache

from kernel_cache.canonical import dumps, loads
from kernel_cache.faults import IndexMalformed

_INLINE = 1  # diskcache's mode for a value kept in its SQLite column

# Nothing is ever culled behind our back; gc decides, with the files in view. FULL synchronous:
# a put that returned survives a power cut. No mmap: a truncated file would kill the process by
# SIGBUS where a read gives an error.
_SETTINGS: dict[str, str | int] = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 2**62,
    "statistics": 0,
    "tag_index": 0,
    "sqlite_synchronous": 2,
    "sqlite_mmap_size": 0,
    "disk_pickle_protocol": 0,
}


class JsonDisk(diskcache.Disk):  # type: ignore[misc]
    """Keys are strings and values are canonical JSON text; anything else is `IndexMalformed`."""

    def put(self, key: Any) -> tuple[str, bool]:
        if not isinstance(key, str):
            raise TypeError(f"index keys are strings, not {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: Any) -> str:
        if not raw or not isinstance(key, str):
            raise IndexMalformed("a key of the index is not plain text", repr(key)[:200])
        return key

    def store(self, value: Any, read: bool, key: Any = None) -> tuple[int, int, None, str]:
        if read:
            raise TypeError("index values are JSON, not files")
        return 0, _INLINE, None, dumps(value)

    def fetch(self, mode: Any, filename: Any, value: Any, read: bool) -> Any:
        if read or mode != _INLINE or filename is not None or not isinstance(value, str):
            raise IndexMalformed("a value of the index is not JSON text", repr(value)[:200])
        try:
            return loads(value)
        except (json.JSONDecodeError, ValueError, RecursionError) as error:
            raise IndexMalformed(f"a value of the index is not JSON: {error}", value) from None


def open_diskcache(folder: Path, timeout_s: float) -> Any:
    """The `diskcache.Cache` in `folder`, made if absent. Raises OSError and sqlite3.Error."""
    # diskcache expands "$NAME" in folder names, which would read the environment.
    if "$" in str(folder):
        raise NotADirectoryError(20, "a folder name with '$' cannot be used", str(folder))
    return diskcache.Cache(str(folder), timeout=timeout_s, disk=JsonDisk, **_SETTINGS)


LockTimeout: type[Exception] = diskcache.Timeout
