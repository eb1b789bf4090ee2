"""Leases on a device's memory among the processes of a machine: who may hold how many bytes, beside whose turn it is.

A lease is a file in a folder beside the device's lock, which its holder keeps locked: it ends with its process at the
latest, however that ends. In it stands who holds how much for what, for whoever wants to know.

A lease is granted where it fits beside all others and beside what is used without a lease: contexts of processes, and a
user's own model. The driver reports what is used in all; what of that leases have filled, nobody says. While there is
no lease, all of it is without one. That number is kept for as long as there are some, and follows what is certain: it
is no more than what is used, and no less than what is used beyond all leases.

Who waits does so in a line, so that a large lease is not passed by small ones for ever. None is asked for within a turn
on the device: who waits there would keep all others from the work that gives leases back.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.failures import NoMemory
from sandbox.file_locks import lock_at_once
from sandbox.memory.device import DeviceMemory, Room
from sandbox.stopwatch import Stopwatch

POLL_S = 0.05
GRACE_S = 30.0
"""How long what does not fit, though nobody has a lease, waits for memory that is used without one: others may be about
to end."""
SPARE_BYTES = 256 << 20
"""Left free: allocators and libraries round up."""


@dataclass(frozen=True)
class Lease:
    """Bytes of the device that a process may hold, for what and since when (seconds since the epoch)."""

    bytes: int
    what: str
    process: int
    since: float


class Leases:
    """On the memory of one device. path: the device's lock, beside which they lie; without it none is needed.

    in_turn: whether this thread has a turn on the device. Times are of `clock`, in seconds. waiting: counts what is
    waited for leases, by default for itself.
    """

    def __init__(
        self,
        path: Path | None,
        memory: DeviceMemory,
        in_turn: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        waiting: Stopwatch | None = None,
    ) -> None:
        self.folder = None if path is None else path.with_name(f"{path.name}.leases")
        self.memory, self._in_turn = memory, in_turn
        self._clock, self._sleep = clock, sleep
        self._thread = threading.local()
        self._waiting = waiting or Stopwatch(clock)

    @property
    def waited_s(self) -> float:
        """Seconds spent waiting for leases, up to now."""
        return self._waiting.seconds

    @contextmanager
    def lease(
        self, size: int | None, what: str, go_on: Callable[[], bool] = lambda: True
    ) -> Iterator[NoMemory | None]:
        """Hold so many bytes; None: all that there are, which nobody has a lease on then. Gives why there are not as
        many, where that is so. go_on: asked while it waits; it gives up where that is no longer true.

        A lease within one of the same thread is part of it. Raises RuntimeError within a turn on the device, OSError
        where the files cannot be written.
        """
        if self.folder is None or getattr(self._thread, "held", False):
            yield None
            return
        if self._in_turn():
            raise RuntimeError("a lease on memory is asked for within a turn on the device")
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            with self._waiting.running():
                refused = self._wait(stack, size, what, go_on)
            self._thread.held = refused is None
            try:
                yield refused
            finally:
                self._thread.held = False

    def known(self) -> list[Lease]:
        """All that are held, by whomever."""
        if self.folder is None or not self.folder.is_dir():
            return []
        with _locked(self.folder / "book", fcntl.LOCK_EX):
            return self._held()

    def room(self) -> Room:
        """What the next lease could have at most in all, and now."""
        now = self.memory.room()
        if self.folder is None:
            return now
        self.folder.mkdir(parents=True, exist_ok=True)
        with _locked(self.folder / "book", fcntl.LOCK_EX) as book:
            held = self._held()
            without = self._without_lease(book, held, now)
            return self._left(now, held, without)

    def _wait(
        self, stack: ExitStack, size: int | None, what: str, go_on: Callable[[], bool]
    ) -> NoMemory | None:
        """Take a lease once it fits, and have the stack end it."""
        assert self.folder is not None
        needed = size or 0
        now = self.memory.room()
        if needed > now.total - SPARE_BYTES:
            return NoMemory(what, needed, now.free, now.total, ever=False)
        alone_since: float | None = None
        with (self.folder / "next").open("ab") as line:
            first = False
            while True:
                first = first or lock_at_once(line.fileno(), fcntl.LOCK_EX)
                if first:
                    left, others = self._take(stack, size, what)
                    if left is None:
                        return None
                    alone_since = None if others else (alone_since or self._clock())
                    if alone_since is not None and self._clock() - alone_since > GRACE_S:
                        return NoMemory(what, needed, left.free, left.total)
                if not go_on():
                    now = self.memory.room()
                    return NoMemory(what, needed, now.free, now.total)
                self._sleep(POLL_S)

    def _take(self, stack: ExitStack, size: int | None, what: str) -> tuple[Room | None, bool]:
        """None where it is taken, else what room there is; and whether others have leases."""
        assert self.folder is not None
        now = self.memory.room()
        with _locked(self.folder / "book", fcntl.LOCK_EX) as book:
            held = self._held()
            left = self._left(now, held, self._without_lease(book, held, now))
            fits = not held if size is None else size <= left.free
            if not fits:
                return left, bool(held)
            mine = Lease(left.free if size is None else size, what, os.getpid(), time.time())
            self._write(stack, mine)
            return None, bool(held)

    def _left(self, now: Room, held: list[Lease], without: int) -> Room:
        total = now.total - SPARE_BYTES - without
        return Room(total, total - sum(lease.bytes for lease in held))

    def _without_lease(self, book: int, held: list[Lease], now: Room) -> int:
        """Bytes that are used without a lease, as far as that can be known."""
        used = now.total - now.free
        if not held:
            _put(book, {"without_lease": used})
            return used
        known = int(_get(book).get("without_lease", 0))
        found = max(min(known, used), used - sum(lease.bytes for lease in held))
        if found != known:
            _put(book, {"without_lease": found})
        return found

    def _held(self) -> list[Lease]:
        """Those whose holders live; what others left is removed. Within the book's lock."""
        assert self.folder is not None
        found = []
        for path in self.folder.glob("*.lease"):
            with suppress(FileNotFoundError), path.open("rb") as file:  # it may end at any time
                if lock_at_once(file.fileno(), fcntl.LOCK_EX):
                    path.unlink()
                    continue
                value = _get(file.fileno())
                found.append(_lease(value))
        return found

    def _write(self, stack: ExitStack, lease: Lease) -> None:
        """Within the book's lock, so that nobody finds the file before it is locked."""
        assert self.folder is not None
        path = self.folder / f"{lease.process}-{secrets.token_hex(4)}.lease"
        file = stack.enter_context(path.open("w+b"))
        fcntl.flock(file, fcntl.LOCK_EX)
        _put(file.fileno(), vars(lease))
        stack.callback(
            fcntl.flock, file, fcntl.LOCK_UN
        )  # a child forked meanwhile may still have it
        stack.callback(path.unlink, missing_ok=True)


def _lease(value: dict[str, Any]) -> Lease:
    return Lease(
        int(value.get("bytes", 0)),
        str(value.get("what", "")),
        int(value.get("process", 0)),
        float(value.get("since", 0)),
    )


@contextmanager
def _locked(path: Path, kind: int) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind)
        yield descriptor
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _get(descriptor: int) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none, as when its writer was killed at it."""
    try:
        value = json.loads(os.pread(descriptor, 1 << 16, 0) or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _put(descriptor: int, value: dict[str, Any]) -> None:
    data = json.dumps(value).encode()
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))
