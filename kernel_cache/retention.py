"""Removing kernels and files: on request, by age and by size, never what another record needs.

A row goes first, in one transaction, and its files after it, in another: a process killed between
the two leaves files that nobody names, never a name without its file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_cache import layout
from kernel_cache.faults import IndexMalformed
from kernel_cache.fields import RecordError
from kernel_cache.files import leftovers
from kernel_cache.index import Index, fields_of, is_absent
from kernel_cache.key import op_key_of
from kernel_cache.layout import Layout, RecordRow
from kernel_cache.lookup import read_row
from kernel_cache.record import NegativeRecord
from kernel_cache.state import bump_generation

LEFTOVER_AGE_S = 3600.0


@dataclass(frozen=True)
class Use:
    """One kernel in the eyes of gc. last_used: seconds since 1970. size: bytes of its files."""

    key_digest: str
    last_used: float
    size: int


@dataclass(frozen=True)
class GcReport:
    """What gc removed: kernels, other rows, files; bytes freed on disk; bytes of kernels left."""

    kernels: int
    rows: int
    files: int
    bytes_freed: int
    bytes_left: int


def choose_evictions(
    uses: Sequence[Use], now: float, max_bytes: int | None, max_age_s: float | None
) -> list[Use]:
    """What to remove so that all that stays is young enough and small enough together."""
    by_age = sorted(uses, key=lambda use: (use.last_used, use.key_digest))
    left = sum(use.size for use in by_age)
    evicted = []
    for use in by_age:
        too_old = max_age_s is not None and now - use.last_used > max_age_s
        too_big = max_bytes is not None and left > max_bytes
        if too_old or too_big:
            evicted.append(use)
            left -= use.size
    return evicted


def collect(
    index: Index, places: Layout, now: float, max_bytes: int | None, max_age_s: float | None
) -> GcReport:
    """Remove what is expired, over the limits, or left over. May raise `faults.EXPECTED`."""
    rows = _drop_stale_rows(index, now, max_age_s)
    with index.transaction():
        uses = _uses(index, places)
        evicted = choose_evictions(uses, now, max_bytes, max_age_s)
        for use in evicted:
            delete_kernel(index, use.key_digest)
        if evicted:
            bump_generation(index)
    files, freed = _remove_orphans(index, places)
    for path in leftovers(places.aside, LEFTOVER_AGE_S):
        freed += path.stat().st_size
        path.unlink(missing_ok=True)
        files += 1
    left = sum(use.size for use in uses) - sum(use.size for use in evicted)
    return GcReport(len(evicted), rows, files, freed, left)


def delete_kernel(index: Index, key_digest: str) -> tuple[bool, RecordRow | None]:
    """Delete a key's rows, in a transaction: whether it had any, and what its row said."""
    name = layout.record_name(key_digest)
    try:
        row = read_row(index, name)
    except IndexMalformed:
        row = None
    index.delete(layout.operator_name(op_key_of(key_digest)))
    return index.delete(name), row


def sweep(index: Index, places: Layout, row: RecordRow) -> None:
    """Remove the files of a row that is gone, unless another row shares them."""
    with index.transaction():
        referenced = referenced_digests(index)
        if referenced is None:
            return
        if row.record not in referenced:
            places.records.remove(row.record)
        if row.binary not in referenced:
            places.blobs.remove(row.binary)


def referenced_digests(index: Index) -> set[str] | None:
    """The digests that the index names; None if a damaged row may name more."""
    referenced: set[str] = set()
    for name in index.names(layout.RECORD):
        try:
            row = read_row(index, name)
        except IndexMalformed:
            return None
        if row is not None:
            referenced |= {row.record, row.binary}
    return referenced


def _uses(index: Index, places: Layout) -> list[Use]:
    uses = []
    for name in index.names(layout.RECORD):
        with contextlib.suppress(IndexMalformed):
            row = read_row(index, name)
            if row is not None:
                used = _modified(places.records.path(row.record))
                uses.append(Use(name.removeprefix(layout.RECORD), used, row.size))
    return uses


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _remove_orphans(index: Index, places: Layout) -> tuple[int, int]:
    files = freed = 0
    with index.transaction():
        referenced = referenced_digests(index)
        if referenced is None:
            return 0, 0
        for kind in (places.records, places.blobs):
            for digest in kind.digests():
                if digest not in referenced:
                    freed += kind.remove(digest)
                    files += 1
    return files, freed


def _drop_stale_rows(index: Index, now: float, max_age_s: float | None) -> int:
    dropped = 0
    with index.transaction():
        for name in (*index.names(layout.NEGATIVE), *index.names(layout.ACCEPTANCE)):
            # What cannot be read is not dropped here: repair keeps a copy in quarantine/.
            with contextlib.suppress(IndexMalformed, RecordError):
                if _stale(index, name, now, max_age_s):
                    dropped += index.delete(name)
    return dropped


def _stale(index: Index, name: str, now: float, max_age_s: float | None) -> bool:
    value = index.get(name)
    if is_absent(value):
        return False
    if name.startswith(layout.NEGATIVE):
        return NegativeRecord.from_fields(fields_of(name, value)).expired(now)
    return max_age_s is not None and now - layout.Acceptance.from_value(name, value).created > (
        max_age_s
    )
