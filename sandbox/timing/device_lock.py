"""Turns on a device among processes: `turns` is the same among the threads of one.

What is timed has the device alone. What only has to be right, such as a check of results, shares it with others of its
kind: most of a check is copying and arithmetic of the host, and in a search side by side the device would idle
meanwhile. Compiling takes no turn. A turn ends with its process at the latest, however that ends, since the system
gives up the locks of a dead process.

Not covered: processes that take no turns. The A/A control notices them.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from sandbox.file_locks import lock_at_once
from sandbox.stopwatch import Stopwatch


class DeviceLock:
    """A file that processes lock for their turn; without a path every turn begins at once.

    A second file beside it is the turnstile: who is next holds it while the turn before goes on, so a process that
    comes back at once is not served before those that wait, and those that share the device do not keep from it who
    wants it alone. Who shares it lets all others in who came for that meanwhile (a third file, the gate), so that
    shared turns lie side by side rather than each between two of those who have the device alone. A turn within a turn
    of the same thread is part of it.
    waiting: counts what is waited for turns, by default for itself.
    """

    def __init__(self, path: Path | None, waiting: Stopwatch | None = None) -> None:
        self.path = path
        self.waiting = waiting or Stopwatch()
        self._thread = threading.local()

    @property
    def waited_s(self) -> float:
        """Seconds spent waiting for turns, up to now."""
        return self.waiting.seconds

    @property
    def in_turn(self) -> bool:
        """Whether this thread has a turn now."""
        return getattr(self._thread, "held", None) is not None

    def why_unusable(self) -> str:
        """Why no turn can be had, as where its files cannot be opened; "" where one can."""
        try:
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                for path in self._files:
                    path.open("ab").close()
        except OSError as error:
            return str(error)
        return ""

    @property
    def _files(self) -> tuple[Path, Path, Path]:
        """The gate, the turnstile and the device."""
        assert self.path is not None
        gate, turnstile = (self.path.with_name(f"{self.path.name}.{n}") for n in ("gate", "next"))
        return gate, turnstile, self.path

    def turn(self) -> AbstractContextManager[None]:
        """The device alone, as timings need it. May raise OSError where the files cannot be opened.

        Raises RuntimeError within a shared turn: whoever waits there for the others to end may be waited for.
        """
        return self._turn(fcntl.LOCK_EX)

    def shared(self) -> AbstractContextManager[None]:
        """The device together with others that time nothing. May raise OSError where the files cannot be opened."""
        return self._turn(fcntl.LOCK_SH)

    @contextmanager
    def _turn(self, kind: int) -> Iterator[None]:
        held = getattr(self._thread, "held", None)
        if held == fcntl.LOCK_SH and kind == fcntl.LOCK_EX:
            raise RuntimeError(
                "the device is shared in this turn, and cannot be had alone within it"
            )
        if self.path is None or held is not None:
            yield
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            with self.waiting.running():
                stack.enter_context(self._taken(kind))
            self._thread.held = kind
            try:
                yield
            finally:
                self._thread.held = None

    @contextmanager
    def _taken(self, kind: int) -> Iterator[None]:
        with ExitStack() as stack:
            gate, turnstile, device = (stack.enter_context(_unlocked(p)) for p in self._files)
            if kind == fcntl.LOCK_EX or not _joins(gate, device):
                fcntl.flock(turnstile, fcntl.LOCK_EX)
                fcntl.flock(device, kind)
                fcntl.flock(turnstile, fcntl.LOCK_UN)
                fcntl.flock(gate, fcntl.LOCK_UN)
            yield


def _joins(gate: int, device: int) -> bool:
    """Wait for who leads those that want to share the device, and share it. False where none does: then this one leads,
    and holds the gate until it has the device."""
    while not lock_at_once(gate, fcntl.LOCK_EX):
        fcntl.flock(gate, fcntl.LOCK_SH)
        shared = lock_at_once(device, fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        if shared:
            return True
    return False


@contextmanager
def _unlocked(path: Path) -> Iterator[int]:
    """A descriptor to lock. It is unlocked at the end, not only closed: a child forked meanwhile may still have it."""
    with path.open("ab") as file:
        try:
            yield file.fileno()
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
