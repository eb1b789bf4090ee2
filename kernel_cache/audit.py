"""The store examines itself, and moves what is damaged out of the way."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kernel_cache import layout
from kernel_cache.faults import IndexMalformed
from kernel_cache.fields import RecordError
from kernel_cache.files import ContentFiles, leftovers
from kernel_cache.index import Index, fields_of, is_absent
from kernel_cache.key import op_key_of
from kernel_cache.layout import Acceptance, Layout
from kernel_cache.lookup import lookup
from kernel_cache.queue import TASK, QueuedTask
from kernel_cache.record import NegativeRecord
from kernel_cache.retention import LEFTOVER_AGE_S, delete_kernel, referenced_digests
from kernel_cache.state import bump_generation
from kernel_cache.values import Corrupt


class Kind(Enum):
    """What is wrong, and so what `fix` does about it."""

    DAMAGED_INDEX = "damaged index"  # nothing here: a rebuild is needed
    DAMAGED_KERNEL = "damaged kernel"  # files to quarantine/, rows deleted
    DAMAGED_ROW = "damaged row"  # its text to quarantine/, row deleted
    OPERATOR_ROW = "wrong operator row"  # written anew
    STRAY_FILE = "stray file"  # to quarantine/
    ORPHAN_FILE = "orphan file"  # harmless, left to gc
    LEFTOVER_FILE = "leftover file"  # harmless, left to gc


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. name: of the index's row, or ""; path: of the file, or ""."""

    kind: Kind
    name: str
    reason: str
    path: str = ""

    @property
    def harmless(self) -> bool:
        """Whether no read can be wrong for it: what a killed writer leaves behind."""
        return self.kind in (Kind.ORPHAN_FILE, Kind.LEFTOVER_FILE)


def find(index: Index, queue: Index, places: Layout) -> list[Finding]:
    """Everything that is wrong. Reads every file; changes nothing. May raise `faults.EXPECTED`."""
    return [
        *_index_findings("index", index),
        *_index_findings("queue", queue),
        *_kernel_findings(index, places),
        *_operator_findings(index),
        *_row_findings(index, layout.NEGATIVE, _parse_negative),
        *_row_findings(index, layout.ACCEPTANCE, Acceptance.from_value),
        *_row_findings(queue, TASK, _parse_task),
        *_file_findings(index, places),
    ]


def fix(index: Index, queue: Index, places: Layout, findings: list[Finding]) -> None:
    """Move to quarantine/ and forget what `findings` lists. May raise `faults.EXPECTED`."""
    places.quarantine.mkdir(parents=True, exist_ok=True)
    for finding in findings:
        if finding.kind is Kind.DAMAGED_KERNEL:
            _fix_kernel(index, places, finding.name.removeprefix(layout.RECORD))
        elif finding.kind is Kind.DAMAGED_ROW:
            _fix_row(queue if finding.name.startswith(TASK) else index, places, finding.name)
        elif finding.kind is Kind.OPERATOR_ROW:
            _fix_operator(index, finding.name)
        elif finding.kind is Kind.STRAY_FILE:
            quarantine(places, Path(finding.path))


def quarantine(places: Layout, path: Path) -> None:
    """Move a file or folder to quarantine/, under a name that tells when and what it was."""
    places.quarantine.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    name = f"{stamp}-{uuid.uuid4().hex[:8]}-{path.parent.name}{path.name}"
    if path.exists():
        path.replace(places.quarantine / name)


def _index_findings(what: str, index: Index) -> Iterator[Finding]:
    said = index.integrity()
    if said != "ok":
        yield Finding(Kind.DAMAGED_INDEX, what, said, str(index.folder))


def _kernel_findings(index: Index, places: Layout) -> Iterator[Finding]:
    for name in index.names(layout.RECORD):
        found = lookup(index, places, name.removeprefix(layout.RECORD))
        if isinstance(found, Corrupt):
            yield Finding(Kind.DAMAGED_KERNEL, name, found.reason, found.path)


def _operator_findings(index: Index) -> Iterator[Finding]:
    with index.transaction():
        expected = _expected_operators(index)
        for name in sorted({*expected, *index.names(layout.OPERATOR)}):
            if _value(index, name) != expected.get(name):
                yield Finding(Kind.OPERATOR_ROW, name, "it does not name the kernel that it should")


def _expected_operators(index: Index) -> dict[str, str]:
    digests = [name.removeprefix(layout.RECORD) for name in index.names(layout.RECORD)]
    return {layout.operator_name(op_key_of(digest)): digest for digest in digests}


def _row_findings(
    index: Index, prefix: str, parse: Callable[[str, object], object]
) -> Iterator[Finding]:
    for name in index.names(prefix):
        try:
            value = index.get(name)
            if not is_absent(value):
                parse(name, value)
        except (IndexMalformed, RecordError) as error:
            yield Finding(Kind.DAMAGED_ROW, name, str(error))


def _parse_negative(name: str, value: object) -> NegativeRecord:
    return NegativeRecord.from_fields(fields_of(name, value))


def _parse_task(name: str, value: object) -> QueuedTask:
    return QueuedTask.from_fields(fields_of(name, value))


def _file_findings(index: Index, places: Layout) -> Iterator[Finding]:
    with index.transaction():  # a put in progress must not look like an orphan
        referenced = referenced_digests(index) or set()
        for kind in (places.records, places.blobs):
            yield from _stray_findings(kind)
            for digest in kind.digests():
                if digest not in referenced:
                    file = kind.path(digest)
                    yield Finding(Kind.ORPHAN_FILE, "", "no record names it", str(file))
    for path in leftovers(places.aside, LEFTOVER_AGE_S):
        yield Finding(Kind.LEFTOVER_FILE, "", "a writer died before it was done", str(path))


def _stray_findings(kind: ContentFiles) -> Iterator[Finding]:
    known = {kind.path(digest) for digest in kind.digests()}
    for path in sorted(kind.root.rglob("*")):
        if path not in known and not path.is_dir():
            yield Finding(Kind.STRAY_FILE, "", "its name is not that of a cache file", str(path))


def _fix_kernel(index: Index, places: Layout, key_digest: str) -> None:
    with index.transaction():
        # Another process may have put a sound record in its place since it was found.
        if not isinstance(lookup(index, places, key_digest), Corrupt):
            return
        _, row = delete_kernel(index, key_digest)
        bump_generation(index)
        others = referenced_digests(index)
        if row is None:
            return
        for kind, digest in ((places.records, row.record), (places.blobs, row.binary)):
            shared = others is None or digest in others
            if not shared or not isinstance(kind.read(digest), bytes):
                quarantine(places, kind.path(digest))


def _fix_row(index: Index, places: Layout, name: str) -> None:
    with index.transaction():
        try:
            text = repr(index.get(name))
        except IndexMalformed as error:
            text = error.text
        kept = places.quarantine / f"{uuid.uuid4().hex[:8]}-{name.replace('/', '-')}.txt"
        kept.write_text(f"{name}\n{text}\n")
        index.delete(name)


def _fix_operator(index: Index, name: str) -> None:
    with index.transaction():
        expected = _expected_operators(index).get(name)
        if expected is None:
            index.delete(name)
        else:
            index.set(name, expected)


def _value(index: Index, name: str) -> object:
    try:
        value = index.get(name)
    except IndexMalformed:
        return ()
    return None if is_absent(value) else value
