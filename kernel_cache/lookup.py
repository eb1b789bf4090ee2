"""From a key's digest to a verified record, while other processes put and remove."""

from __future__ import annotations

import contextlib
import os
import time

from kernel_cache import layout
from kernel_cache.faults import IndexBusy, IndexMalformed
from kernel_cache.fields import RecordError
from kernel_cache.files import BadFile
from kernel_cache.index import Index, is_absent
from kernel_cache.layout import Layout, RecordRow
from kernel_cache.record import Record
from kernel_cache.values import Corrupt, Miss, corrupt

_ATTEMPTS = 100


def lookup(index: Index, places: Layout, key_digest: str) -> Record | Miss | Corrupt:
    """The record of a key with both of its files verified. May raise `faults.EXPECTED`.

    A file may vanish between the look at the index and the look at the file, when another process
    replaces or removes the record: it is damage only if the index still names it afterwards.
    """
    name = layout.record_name(key_digest)
    for _ in range(_ATTEMPTS):
        try:
            row = read_row(index, name)
            if row is None:
                return Miss()
            found = _verified(places, key_digest, row)
            if isinstance(found, Record) or row == read_row(index, name):
                return found
        except IndexMalformed as error:
            return corrupt(name, error.reason)
    raise IndexBusy(f"{name} changed {_ATTEMPTS} times while it was read")


def read_row(index: Index, name: str) -> RecordRow | None:
    """What the index says of a key. Raises IndexMalformed."""
    value = index.get(name)
    return None if is_absent(value) else RecordRow.from_value(name, value)


def mark_used(places: Layout, row_digest: str, resolution_s: float = 3600.0) -> None:
    """Note the use of a record as its file's time, at most once in `resolution_s`."""
    path = places.records.path(row_digest)
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > resolution_s:
            os.utime(path)


def peek(index: Index, places: Layout, key_digest: str) -> Record | Miss | Corrupt:
    """The record of a key with its own file verified and its binary left alone. May raise `faults.EXPECTED`."""
    name = layout.record_name(key_digest)
    try:
        row = read_row(index, name)
    except IndexMalformed as error:
        return corrupt(name, error.reason)
    return Miss() if row is None else _parsed(places, key_digest, row)


def _verified(places: Layout, key_digest: str, row: RecordRow) -> Record | Corrupt:
    record = _parsed(places, key_digest, row)
    if isinstance(record, Corrupt):
        return record
    binary = places.blobs.read(row.binary)
    if isinstance(binary, BadFile):
        name = layout.record_name(key_digest)
        return corrupt(name, f"binary: {binary.reason}", binary.path)
    mark_used(places, row.record)
    return record


def _parsed(places: Layout, key_digest: str, row: RecordRow) -> Record | Corrupt:
    name = layout.record_name(key_digest)
    text = places.records.read(row.record)
    if isinstance(text, BadFile):
        return corrupt(name, f"record: {text.reason}", text.path)
    path = places.records.path(row.record)
    try:
        record = Record.from_json(text)
    except RecordError as error:
        return corrupt(name, str(error), path)
    if record.key.digest != key_digest or record.binary_digest != row.binary:
        return corrupt(name, "the record is not the one that the index describes", path)
    return record
