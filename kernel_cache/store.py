"""The kernel cache: one folder, shared by processes, in which promoted kernels are kept.

Promise: what `put` has acknowledged survives a kill of any process; nothing half-written is ever
read; damage is reported as damage. How: files are named by their content and renamed into place
whole, and one index transaction makes them visible.

Not covered: whoever can write the folder can have code run by its readers, for digests guard
against damage and not against malice. The folder must be on a local file system, for SQLite's
write-ahead log needs shared memory.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from kernel_cache import layout
from kernel_cache.audit import Finding, find, fix
from kernel_cache.canonical import Json, dumps, is_digest, loads, sha256
from kernel_cache.faults import EXPECTED, IndexMalformed, unavailable
from kernel_cache.fields import RecordError
from kernel_cache.files import BadFile
from kernel_cache.index import Index, fields_of, is_absent
from kernel_cache.key import KernelKey
from kernel_cache.layout import Acceptance, Layout, RecordRow
from kernel_cache.lookup import lookup, peek, read_row
from kernel_cache.queue import QueuedTask, TaskQueue
from kernel_cache.rebuild import rebuild_index, set_kernel
from kernel_cache.record import NegativeRecord, Record
from kernel_cache.retention import GcReport, collect, delete_kernel, sweep
from kernel_cache.state import bump_generation, fingerprint_of, generation_of, identity_of
from kernel_cache.values import CacheUnavailable, Corrupt, Miss, Stored, corrupt

P = ParamSpec("P")
R = TypeVar("R")

# Named here because `KernelCache.list` hides the built-in within the class.
Entries = list[Record | NegativeRecord | Corrupt]
Tasks = list[QueuedTask]
Findings = list[Finding]


def _guarded(
    method: Callable[Concatenate[KernelCache, P], R],
) -> Callable[Concatenate[KernelCache, P], R | CacheUnavailable]:
    """Turn a fault of the folder into a value; any other exception is a bug and passes."""

    @functools.wraps(method)
    def guarded(self: KernelCache, /, *args: P.args, **kwargs: P.kwargs) -> R | CacheUnavailable:
        try:
            return method(self, *args, **kwargs)
        except sqlite3.ProgrammingError:
            raise
        except EXPECTED as error:
            return unavailable(self.path, error)

    return guarded


class KernelCache:
    """An open cache folder; make one with `KernelCache.open`.

    Safe among threads, processes and across fork. Any method may answer `CacheUnavailable`; none
    raises for what happens to the folder. `clock` gives seconds since 1970.
    """

    def __init__(
        self, path: Path, index: Index, identity: str, timeout_s: float, clock: Callable[[], float]
    ) -> None:
        self.path = path
        self._layout = Layout(path)
        self._index = index
        self._identity = identity
        self._timeout_s = timeout_s
        self._clock = clock
        self._queue: TaskQueue | None = None
        self._fingerprint: tuple[int, str] | None = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        timeout_s: float = 30.0,
        clock: Callable[[], float] = time.time,
    ) -> KernelCache | CacheUnavailable:
        """Open the cache in `path`, made if absent. `timeout_s`: how long to wait for a lock."""
        folder = Path(path).absolute()
        try:
            places = Layout(folder)
            index = Index.open(places.index, timeout_s)
            return cls(folder, index, identity_of(index, places), timeout_s, clock)
        except EXPECTED as error:
            return unavailable(folder, error)

    @classmethod
    def rebuild(
        cls, path: str | os.PathLike[str], *, timeout_s: float = 30.0
    ) -> KernelCache | CacheUnavailable:
        """Make a new index from the record files; the old one goes to quarantine/.

        For an index that is corrupt. Kernels survive; negative records, acceptances and waiting
        tasks do not. No other process may use the folder meanwhile.
        """
        folder = Path(path).absolute()
        try:
            rebuild_index(Layout(folder), timeout_s).close()
        except EXPECTED as error:
            return unavailable(folder, error)
        return cls.open(folder, timeout_s=timeout_s)

    def close(self) -> None:
        """Close this thread's connection. The cache may be used again after it."""
        self._index.close()

    # Kernels

    @_guarded
    def get(self, key: KernelKey) -> Record | NegativeRecord | Miss | Corrupt:
        """What is known of `key`. A `Record` comes with its binary's file verified."""
        found = lookup(self._index, self._layout, key.digest)
        if not isinstance(found, Miss):
            return found
        return self._negative(layout.negative_name(key.digest))

    @_guarded
    def get_by_op_key(self, op_key: int) -> Record | Miss | Corrupt:
        """The record that the spliced operator's integer argument stands for."""
        name = layout.operator_name(op_key)
        try:
            key_digest = self._index.get(name)
        except IndexMalformed as error:
            return corrupt(name, error.reason)
        if is_absent(key_digest):
            return Miss()
        if not is_digest(key_digest):
            return corrupt(name, "the index does not name a key there")
        return lookup(self._index, self._layout, str(key_digest))

    @_guarded
    def put(self, record: Record, binary: bytes) -> Stored:
        """Keep a promoted kernel; durable when this returns. It replaces what its key had.

        Raises ValueError if `binary` is not what `record.binary_digest` names.
        """
        if sha256(binary) != record.binary_digest:
            raise ValueError("record.binary_digest is not the digest of this binary")
        text = record.to_json().encode()
        blobs, records = self._layout.blobs, self._layout.records
        with contextlib.ExitStack() as stack:
            staged_binary = blobs.stage(binary)
            stack.callback(blobs.discard, staged_binary)
            staged_record = records.stage(text)
            stack.callback(records.discard, staged_record)
            with self._index.transaction():
                blobs.place(staged_binary)
                records.place(staged_record)
                row = RecordRow(staged_record.digest, record.binary_digest, len(text) + len(binary))
                _, replaced = delete_kernel(self._index, record.key.digest)
                set_kernel(self._index, record.key.digest, record.key.op_key, row)
                generation = bump_generation(self._index)
        self._sweep(replaced)
        return Stored(generation)

    @_guarded
    def put_negative(self, record: NegativeRecord) -> None:
        """Keep a failed search. A kernel of the same key stays and goes on being the answer.

        Does not count as a change of generation: no compiled code depends on it.
        """
        with self._index.transaction():
            self._index.set(layout.negative_name(record.key.digest), record.to_fields())

    @_guarded
    def remove(self, key: KernelKey | str) -> bool:
        """Forget the key (or its digest), whatever it holds; whether there was anything."""
        key_digest = key if isinstance(key, str) else key.digest
        if not is_digest(key_digest):
            raise ValueError(f"not the digest of a key: {key_digest!r}")
        with self._index.transaction():
            kernel, row = delete_kernel(self._index, key_digest)
            negative = self._index.delete(layout.negative_name(key_digest))
            if kernel or negative:
                bump_generation(self._index)
        self._sweep(row)
        return kernel or negative

    @_guarded
    def list(self) -> Entries:
        """Everything known, expired negative records left out, kernels first, by key digest."""
        digests = [name.removeprefix(layout.RECORD) for name in self._index.names(layout.RECORD)]
        kernels = [lookup(self._index, self._layout, digest) for digest in digests]
        negatives = [self._negative(name) for name in self._index.names(layout.NEGATIVE)]
        return [entry for entry in (*kernels, *negatives) if not isinstance(entry, Miss)]

    @_guarded
    def rows(self) -> dict[str, str]:
        """The digest of the record of every key, by the key's digest. Reads no file; damaged rows are left out."""
        found = {}
        for name in self._index.names(layout.RECORD):
            with contextlib.suppress(IndexMalformed):
                row = read_row(self._index, name)
                if row is not None:
                    found[name.removeprefix(layout.RECORD)] = row.record
        return found

    @_guarded
    def peek(self, key_digest: str) -> Record | Miss | Corrupt:
        """The record of a key's digest for what it tells, not for its binary, which is not looked at."""
        return peek(self._index, self._layout, key_digest)

    @_guarded
    def binary_path(self, record: Record) -> Path | Corrupt:
        """The file of the record's binary, verified now; never write to it."""
        found = self._binary(record)
        return (
            found if isinstance(found, Corrupt) else self._layout.blobs.path(record.binary_digest)
        )

    @_guarded
    def read_binary(self, record: Record) -> bytes | Corrupt:
        """The bytes of the record's binary, verified."""
        return self._binary(record)

    # State, for the keys of other caches

    def identity(self) -> str:
        """A random id that this folder got when it was made or rebuilt."""
        return self._identity

    @_guarded
    def generation(self) -> int:
        """Grows by one with each change that compiled code may depend on (kernels put and removed, new decisions,
        `outdate`), of whichever process. Cheap: one indexed read."""
        return generation_of(self._index)

    @_guarded
    def outdate(self) -> int:
        """Count a change, so that nothing compiled until now is found in caches whose keys hold `fingerprint`: what was
        compiled before a search came to its end, which would keep it from going on. The generation after it."""
        with self._index.transaction():
            return bump_generation(self._index)

    def fingerprint(self) -> str:
        """A digest of identity, generation, and all keys with their records.

        If the folder cannot be read it is unique, so that no compiled code that may depend on a
        kernel of this cache is reused.
        """
        made = self._current_fingerprint()
        return made if isinstance(made, str) else f"unavailable-{uuid.uuid4().hex}"

    # Whole-graph acceptance (contract C5)

    @_guarded
    def get_acceptance(
        self, graph_digest: str, kernel_set_digest: str
    ) -> dict[str, Json] | Corrupt | None:
        """What was decided on this set of kernels in this graph, or None."""
        name = layout.acceptance_name(graph_digest, kernel_set_digest)
        try:
            return self._decision(name)
        except IndexMalformed as error:
            return corrupt(name, error.reason)

    @_guarded
    def put_acceptance(
        self, graph_digest: str, kernel_set_digest: str, acceptance: Mapping[str, Json]
    ) -> None:
        """Keep a decision, a change where it is a new one. Raises ValueError if it is not JSON."""
        name = layout.acceptance_name(graph_digest, kernel_set_digest)
        value = Acceptance(self._clock(), fields_of(name, loads(dumps(dict(acceptance)))))
        known = None
        with self._index.transaction():
            with contextlib.suppress(IndexMalformed):
                known = self._decision(name)
            if known != value.decision:
                bump_generation(self._index)
            self._index.set(name, value.to_fields())

    def _decision(self, name: str) -> dict[str, Json] | None:
        value = self._index.get(name)
        return None if is_absent(value) else Acceptance.from_value(name, value).decision

    # Tasks waiting for a background search

    @_guarded
    def enqueue(self, key: KernelKey, task: str, meta: Mapping[str, Json] | None = None) -> bool:
        """Ask for a search; False if one for this key waits already. task: canonical JSON."""
        return self._tasks().enqueue(QueuedTask(key, task, dict(meta or {}), self._clock()))

    @_guarded
    def pending(self) -> Tasks:
        """All tasks not done, oldest first, those being worked on included."""
        return self._tasks().pending()

    @_guarded
    def claim(
        self, owner: str, *, lease_s: float = 600.0, max_attempts: int = 3
    ) -> QueuedTask | None:
        """Take the oldest free task for `lease_s` seconds (an hour at most). One that was taken `max_attempts` times
        and never finished is taken again only after ever longer waits, of a day at most.

        owner: `owners.own_name`, or any text.
        """
        return self._tasks().claim(owner, lease_s, max_attempts, self._clock())

    @_guarded
    def renew(self, claimed: QueuedTask, *, lease_s: float = 600.0) -> QueuedTask | None:
        """Hold a claimed task longer; None if it was lost to another owner."""
        return self._tasks().renew(claimed, lease_s, self._clock())

    @_guarded
    def release(self, claimed: QueuedTask) -> bool:
        """Give a claimed task back unfinished; False if it was lost to another owner."""
        return self._tasks().release(claimed)

    @_guarded
    def done(self, claimed: QueuedTask) -> bool:
        """Remove a finished task; False, and nothing removed, if it was lost to another owner."""
        return self._tasks().done(claimed)

    @_guarded
    def drop_task(self, key: KernelKey) -> bool:
        """Remove a waiting task, whoever has it; whether it was there."""
        return self._tasks().drop(key)

    # Upkeep

    @_guarded
    def audit(self) -> Findings:
        """Everything that is wrong in the folder. Reads every file; changes nothing."""
        return find(self._index, self._tasks().index, self._layout)

    @_guarded
    def repair(self) -> Findings:
        """Audit, then move what is damaged to quarantine/ and forget it; what was found.

        A finding of kind DAMAGED_INDEX stays: it needs `rebuild`.
        """
        findings = find(self._index, self._tasks().index, self._layout)
        fix(self._index, self._tasks().index, self._layout, findings)
        return findings

    @_guarded
    def gc(self, *, max_bytes: int | None = None, max_age_s: float | None = None) -> GcReport:
        """Remove what is expired, what is left over, and kernels over the limits, oldest use first.

        max_bytes: for all records and binaries together. max_age_s: since the last use of a
        kernel, since the making of an acceptance or a waiting task.
        """
        now = self._clock()
        if max_age_s is not None:
            self._tasks().drop_older(now - max_age_s, now)
        return collect(self._index, self._layout, now, max_bytes, max_age_s)

    def _negative(self, name: str) -> NegativeRecord | Miss | Corrupt:
        try:
            value = self._index.get(name)
            if is_absent(value):
                return Miss()
            record = NegativeRecord.from_fields(fields_of(name, value))
        except (IndexMalformed, RecordError) as error:
            return corrupt(name, str(error))
        return Miss("its negative record has expired") if record.expired(self._clock()) else record

    def _binary(self, record: Record) -> bytes | Corrupt:
        found = self._layout.blobs.read(record.binary_digest)
        if isinstance(found, BadFile):
            return corrupt(layout.record_name(record.key.digest), found.reason, found.path)
        return found

    def _sweep(self, row: RecordRow | None) -> None:
        # The change is durable by now; files that cannot be removed are left to gc.
        if row is not None:
            with contextlib.suppress(*EXPECTED):
                sweep(self._index, self._layout, row)

    def _tasks(self) -> TaskQueue:
        if self._queue is None:
            self._queue = TaskQueue(Index.open(self._layout.queue, self._timeout_s))
        return self._queue

    @_guarded
    def _current_fingerprint(self) -> str:
        known = self._fingerprint
        if known is None or known[0] != generation_of(self._index):
            known = self._fingerprint = fingerprint_of(self._index, self._identity)
        return known[1]
