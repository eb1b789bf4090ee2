"""Tasks that wait for a background search: many processes add, many take, each is done once.

A taker holds a lease. If it dies, another takes the task: at once where it sees that (`owners`), and when the lease has
run out elsewhere. That goes up to a number of attempts, for a task that kills its searcher must not kill all that
follow. After those it is taken now and then, each time after a longer wait: what killed the others may have passed.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernel_cache.canonical import Json
from kernel_cache.faults import IndexMalformed
from kernel_cache.fields import Fields, RecordError
from kernel_cache.index import Index, fields_of, is_absent
from kernel_cache.key import KernelKey
from kernel_cache.owners import is_gone
from kernel_cache.record import key_from

QUEUE_VERSION = 1
TASK = "task/"
LONGEST_LEASE_S = 3600.0
FIRST_WAIT_S, LONGEST_WAIT_S = 600.0, 86400.0
"""Between the attempts beyond those that follow each other at once."""


@dataclass(frozen=True)
class QueuedTask:
    """One task of the queue. `owner`, `token` are "" and `lease_until` is 0 when nobody has it.

    task: canonical JSON text. meta: what the enqueuer wants the search to know. enqueued and
    lease_until: seconds since 1970. attempts: how often it was claimed.
    """

    key: KernelKey
    task: str
    meta: Mapping[str, Json]
    enqueued: float
    attempts: int = 0
    owner: str = ""
    token: str = ""
    lease_until: float = 0.0

    def free(self, now: float) -> bool:
        """Whether nobody works on it at `now`. A lease longer than any is one of a clock that was set back."""
        return now >= self.lease_until or self.lease_until - now > LONGEST_LEASE_S

    def claimable(self, now: float, max_attempts: int, *, abandoned: bool = False) -> bool:
        """Whether it may be taken at `now`. abandoned: its owner has died."""
        more = self.attempts - max_attempts
        wait_s = min(FIRST_WAIT_S * 4.0 ** min(more, 8), LONGEST_WAIT_S) if more >= 0 else 0.0
        return (abandoned or self.free(now)) and (
            wait_s == 0.0 or abs(now - self.lease_until) >= wait_s
        )

    def to_fields(self) -> dict[str, Json]:
        """The task as a JSON object."""
        return {
            "version": QUEUE_VERSION,
            "key": self.key.to_fields(),
            "task": self.task,
            "meta": dict(self.meta),
            "enqueued": self.enqueued,
            "attempts": self.attempts,
            "owner": self.owner,
            "token": self.token,
            "lease_until": self.lease_until,
        }

    @classmethod
    def from_fields(cls, value: Mapping[str, Json]) -> QueuedTask:
        """Parse strictly. Raises RecordError, whose message names the field at fault."""
        fields = Fields("queued task", value)
        fields.version(QUEUE_VERSION)
        queued = cls(
            key=key_from(fields.nested("key")),
            task=fields.text("task"),
            meta=fields.mapping("meta"),
            enqueued=fields.number("enqueued"),
            attempts=fields.count("attempts"),
            owner=fields.text("owner"),
            token=fields.text("token"),
            lease_until=fields.number("lease_until"),
        )
        fields.finish()
        return queued


class TaskQueue:
    """The queue in an index of its own, so that searching never holds up a compilation.

    Methods may raise what `faults.EXPECTED` lists.
    """

    def __init__(self, index: Index) -> None:
        self.index = index

    def enqueue(self, queued: QueuedTask) -> bool:
        """Add it unless a task with its key waits already; whether it was added."""
        name = TASK + queued.key.digest
        with self.index.transaction():
            if not is_absent(self.index.get(name)):
                return False
            self.index.set(name, queued.to_fields())
        return True

    def pending(self) -> list[QueuedTask]:
        """All tasks that are not done, oldest first, those being worked on included."""
        tasks = [self._get(name) for name in self.index.names(TASK)]
        return sorted((task for task in tasks if task), key=lambda task: task.enqueued)

    def claim(self, owner: str, lease_s: float, max_attempts: int, now: float) -> QueuedTask | None:
        """Take the oldest free task for `lease_s` seconds; None if there is none."""
        if not self._claimable(now, max_attempts):
            return None  # without the lock: pollers of an empty queue do not hold up writers
        with self.index.transaction():
            free = self._claimable(now, max_attempts)
            if not free:
                return None
            claimed = replace(
                free[0],
                attempts=free[0].attempts + 1,
                owner=owner,
                token=uuid.uuid4().hex,
                lease_until=now + min(lease_s, LONGEST_LEASE_S),
            )
            self.index.set(TASK + claimed.key.digest, claimed.to_fields())
        return claimed

    def renew(self, claimed: QueuedTask, lease_s: float, now: float) -> QueuedTask | None:
        """Hold it longer; None if the lease was lost to another owner meanwhile."""
        until = now + min(lease_s, LONGEST_LEASE_S)
        return self._change_if_held(claimed, replace(claimed, lease_until=until))

    def release(self, claimed: QueuedTask) -> bool:
        """Give it back unfinished, without counting the attempt; False if the lease was lost."""
        freed = replace(claimed, attempts=claimed.attempts - 1, owner="", token="", lease_until=0.0)
        return self._change_if_held(claimed, freed) is not None

    def done(self, claimed: QueuedTask) -> bool:
        """Remove a finished task; False, and nothing removed, if the lease was lost."""
        name = TASK + claimed.key.digest
        with self.index.transaction():
            return self._held(name, claimed) and self.index.delete(name)

    def drop(self, key: KernelKey) -> bool:
        """Remove a task whoever has it; whether it was there."""
        with self.index.transaction():
            return self.index.delete(TASK + key.digest)

    def drop_older(self, enqueued_before: float, now: float) -> int:
        """Remove tasks that have waited too long and that nobody works on; how many."""
        with self.index.transaction():
            old = [
                task
                for task in self.pending()
                if task.free(now) and task.enqueued < enqueued_before
            ]
            return sum(self.index.delete(TASK + task.key.digest) for task in old)

    def _claimable(self, now: float, max_attempts: int) -> list[QueuedTask]:
        return [
            task
            for task in self.pending()
            if task.claimable(now, max_attempts, abandoned=is_gone(task.owner))
        ]

    def _change_if_held(self, claimed: QueuedTask, changed: QueuedTask) -> QueuedTask | None:
        name = TASK + claimed.key.digest
        with self.index.transaction():
            if not self._held(name, claimed):
                return None
            self.index.set(name, changed.to_fields())
        return changed

    def _held(self, name: str, claimed: QueuedTask) -> bool:
        found = self._get(name)
        return found is not None and bool(claimed.token) and found.token == claimed.token

    def _get(self, name: str) -> QueuedTask | None:
        value = self.index.get(name)
        if is_absent(value):
            return None
        try:
            return QueuedTask.from_fields(fields_of(name, value))
        except RecordError as error:
            raise IndexMalformed(f"{name}: {error}") from None
