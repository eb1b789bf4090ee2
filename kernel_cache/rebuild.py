"""A new index from the record files, when the old one is damaged beyond reading."""

from __future__ import annotations

import sqlite3

from kernel_cache import layout
from kernel_cache.audit import quarantine
from kernel_cache.faults import EXPECTED
from kernel_cache.fields import RecordError
from kernel_cache.files import BadFile
from kernel_cache.index import Index, exclusive
from kernel_cache.layout import Layout, RecordRow
from kernel_cache.record import Record
from kernel_cache.state import bump_generation, make_identity


def rebuild_index(places: Layout, timeout_s: float) -> Index:
    """Move the old index to quarantine/ and index every sound record anew.

    Of several records of one key the newest wins. The folder gets a new identity. A queue that
    cannot be read goes to quarantine/ as well. May raise `faults.EXPECTED`.
    """
    with exclusive(places.root / "rebuild.lock", timeout_s):
        quarantine(places, places.index)
        if not _readable(places, timeout_s):
            quarantine(places, places.queue)
        index = Index.open(places.index, timeout_s)
        newest = _newest(_sound_records(places))
        with index.transaction():  # with the identity: half a rebuild is not taken for a cache
            make_identity(index)
            for record, row in newest.values():
                set_kernel(index, record.key.digest, record.key.op_key, row)
            bump_generation(index)
    return index


def set_kernel(index: Index, key_digest: str, op_key: int, row: RecordRow) -> None:
    """Write a key's rows and forget its failed search; only in a transaction."""
    index.set(layout.record_name(key_digest), row.to_fields())
    index.set(layout.operator_name(op_key), key_digest)
    index.delete(layout.negative_name(key_digest))


def _sound_records(places: Layout) -> list[tuple[Record, RecordRow]]:
    sound = []
    for digest in list(places.records.digests()):
        text = places.records.read(digest)
        read = text if isinstance(text, BadFile) else _parse(text)
        if isinstance(read, Record):
            binary = places.blobs.read(read.binary_digest)
            if not isinstance(binary, BadFile):
                size = len(text) + len(binary) if isinstance(text, bytes) else 0
                sound.append((read, RecordRow(digest, read.binary_digest, size)))
                continue
            quarantine(places, binary.path)
        quarantine(places, places.records.path(digest))
    return sound


def _parse(text: bytes) -> Record | None:
    try:
        return Record.from_json(text)
    except RecordError:
        return None


def _newest(
    sound: list[tuple[Record, RecordRow]],
) -> dict[str, tuple[Record, RecordRow]]:
    ordered = sorted(sound, key=lambda entry: (entry[0].created, entry[1].record))
    return {record.key.digest: (record, row) for record, row in ordered}


def _readable(places: Layout, timeout_s: float) -> bool:
    if not places.queue.exists():
        return True
    try:
        queue = Index.open(places.queue, timeout_s)
        queue.names("")
        sound = queue.integrity() == "ok"
        queue.close()
    except (*EXPECTED, sqlite3.Error):
        return False
    return sound
