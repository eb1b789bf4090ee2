"""What was found for tasks like this one: the records of its nearest neighbours, as starting points for any policy.

Only records under the same target, architecture and flags count. An index beside the cache's folder keeps what the
distance needs to know of each record, so that records are read once; it is believed in nothing: what it leads to is
read from the cache, where digests hold, and measured again. A damaged index is made anew, a damaged record left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent_backend.agent.memory.task_distance import (
    TaskFeatures,
    distance,
    features_of,
    unlike,
)
from cuda_agent_backend.json_values import write_json
from kernel_cache import CacheUnavailable, KernelCache, KernelKey, Record
from sandbox.task.task import Task, TaskError

VERSION = 1
MOST = 3
"""Neighbours that a policy is told of."""
TOO_UNLIKE = 0.5
"""Of a task with fewer operators in common nothing is to be learned."""
SPARE = 3
"""Times as many are looked at as are wanted, as some may turn out damaged or different."""


@dataclass(frozen=True)
class Neighbour:
    """A promoted kernel of a near task. speedup: the median over the faster baseline; None where it is not known."""

    distance: float
    task: Task
    speedup: float | None
    record: Record


@dataclass(frozen=True)
class Entry:
    """What the index knows of one record."""

    key_digest: str
    record: str
    arch: str
    precision: str
    deterministic: bool
    near: TaskFeatures

    def matches(self, key: KernelKey) -> bool:
        """Whether the record was made for the machine and the flags of ``key``."""
        mine = (self.near.target, self.arch, self.precision, self.deterministic)
        return mine == (key.target, key.arch, key.precision, key.deterministic)


def nearest(
    task: Task,
    key: KernelKey,
    entries: Iterable[Entry],
    peek: Callable[[str], object],
    most: int = MOST,
) -> list[Neighbour]:
    """Up to ``most`` records of the nearest tasks, nearest first, of equally near ones the faster first.

    peek: the record itself by its key's digest; anything else where it is damaged or gone.
    """
    mine = features_of(task)
    near = [
        (distance(mine, entry.near), entry.key_digest)
        for entry in entries
        if entry.matches(key) and _alike(entry.near, mine)
    ]
    found = (_told(peek(digest), digest, mine, key) for _, digest in sorted(near)[: SPARE * most])
    kept = [neighbour for neighbour in found if neighbour is not None]
    kept.sort(key=lambda n: (n.distance, -(n.speedup or 0.0), n.record.key.digest))
    return kept[:most]


def _told(record: object, digest: str, mine: TaskFeatures, key: KernelKey) -> Neighbour | None:
    """A record as a neighbour; None where it is none, or not what the index said."""
    entry = entry_of(digest, "", record) if isinstance(record, Record) else None
    if entry is None or not isinstance(record, Record) or not entry.matches(key):
        return None
    if not _alike(entry.near, mine):
        return None
    gap = distance(mine, entry.near)
    return Neighbour(gap, Task.from_json(record.task), _speedup(record), record)


def _alike(one: TaskFeatures, other: TaskFeatures) -> bool:
    """Whether anything is to be learned of one task for the other."""
    return one.structure == other.structure or unlike(one, other) <= TOO_UNLIKE


class Memory:
    """The records of one cache folder, by nearness."""

    def __init__(self, cache: KernelCache) -> None:
        self.cache = cache
        self.path = cache.path.with_name(f"{cache.path.name}-memory.json")

    def neighbours(self, task: Task, key: KernelKey, most: int = MOST) -> list[Neighbour]:
        """See `nearest`."""
        return nearest(task, key, self._entries(), self.cache.peek, most)

    def _entries(self) -> Iterable[Entry]:
        """Of every record that the cache holds now; the index is brought up to date."""
        rows = self.cache.rows()
        if isinstance(rows, CacheUnavailable):
            return []
        known = self._load()
        kept = {k: e for k, e in known.items() if rows.get(k) == e.record}
        for key_digest in rows.keys() - kept.keys():
            record = self.cache.peek(key_digest)
            entry = entry_of(key_digest, rows[key_digest], record)
            if entry is not None:
                kept[key_digest] = entry
        if kept.keys() != known.keys() or any(kept[k] != known[k] for k in kept):
            self._save(kept)
        return kept.values()

    def _load(self) -> dict[str, Entry]:
        try:
            value = json.loads(self.path.read_text(encoding="utf-8"))
            if value["version"] != VERSION:
                return {}
            return {
                digest: _from_json(digest, fields) for digest, fields in value["records"].items()
            }
        except (
            OSError,
            ValueError,
            ArithmeticError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ):
            return {}

    def _save(self, entries: Mapping[str, Entry]) -> None:
        records = {digest: _to_json(entry) for digest, entry in sorted(entries.items())}
        try:
            write_json(self.path, {"version": VERSION, "records": records})
        except OSError:
            return  # it only saves time


def entry_of(key_digest: str, row: str, record: object) -> Entry | None:
    """What the index keeps of a record; None where there is nothing to learn of it."""
    if not isinstance(record, Record):
        return None
    try:
        near = features_of(Task.from_json(record.task))
    except TaskError:
        return None
    key = record.key
    if near.target != key.target:
        return None
    return Entry(key_digest, row, key.arch, key.precision, key.deterministic, near)


def _to_json(entry: Entry) -> dict[str, Any]:
    return {
        "record": entry.record,
        "arch": entry.arch,
        "precision": entry.precision,
        "deterministic": entry.deterministic,
        "near": entry.near.to_json(),
    }


def _from_json(digest: str, value: Mapping[str, Any]) -> Entry:
    return Entry(
        digest,
        str(value["record"]),
        str(value["arch"]),
        str(value["precision"]),
        value["deterministic"] is True,
        TaskFeatures.from_json(value["near"]),
    )


def _speedup(record: Record) -> float | None:
    """What the evidence says of its speed."""
    found = record.evidence.get("speedup")
    median = found.get("median") if isinstance(found, dict) else None
    good = isinstance(median, int | float) and not isinstance(median, bool)
    return float(median) if good and math.isfinite(median) else None  # type: ignore[arg-type]


def recall(cache_dir: Path, task: Task, key: KernelKey) -> list[Neighbour]:
    """The nearest records of the cache in a folder; none where it cannot be read."""
    cache = KernelCache.open(cache_dir)
    if isinstance(cache, CacheUnavailable):
        return []
    try:
        return Memory(cache).neighbours(task, key)
    finally:
        cache.close()
