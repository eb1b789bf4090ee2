"""Trajectory files: read whole, written one line at a time by one process.

A line is one `write` that ends in a line break, and no line break stands elsewhere in it: what a kill tears is the last
line alone, and it can be told from damage because its end is missing. A kill loses nothing that was written; the
system's own death loses at most what came after the last `fsync`, which follows the header, each turn, each verdict and
the end. A process holds an advisory lock on the file it writes, which its death frees.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from cuda_agent_backend import log
from cuda_agent_backend.agent.protocol import Turn
from cuda_agent_backend.agent.trajectories.codec import (
    LaterVersion,
    LineError,
    decode,
    decode_header,
    encode,
)
from cuda_agent_backend.agent.trajectories.events import (
    Acted,
    Answered,
    Ended,
    Event,
    Header,
    Trajectory,
    Unreadable,
)
from sandbox.file_locks import lock_at_once

MAX_BYTES = 1 << 31


@dataclass(frozen=True)
class InUse:
    """Another writer has the file."""

    reason: str


def read(path: Path) -> Trajectory | Unreadable:
    """All of a file. A torn last line is left out; damage anywhere else makes it unreadable. Changes nothing."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return Unreadable(f"it is larger than {MAX_BYTES >> 30} GiB")
        return parse(path.read_bytes())
    except OSError as error:
        return Unreadable(f"it cannot be read: {error.strerror}")


def parse(content: bytes) -> Trajectory | Unreadable:
    """What the bytes of a file say."""
    *lines, torn = content.split(b"\n")
    if not lines:
        return Unreadable("it has no header: its process was killed before it began", 1)
    number = 1
    try:
        header = decode_header(lines[0])
        events: list[Event] = []
        for number in range(2, len(lines) + 1):
            events.append(decode(lines[number - 1]))
    except LaterVersion as error:
        return Unreadable(str(error), 1, "read it with the release that wrote it, or a later one")
    except LineError as error:
        return Unreadable(str(error), number, "cut the file before that line to read what is left")
    return Trajectory(header, tuple(events), len(torn))


def free(path: Path) -> bool:
    """Whether nobody writes the file now."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def assistant_turns(path: Path) -> tuple[Turn, ...] | Unreadable:
    """The policy's turns, as it gave them: what a replay says again."""
    found = read(path)
    return found if isinstance(found, Unreadable) else tuple(found.turns)


class Recorder:
    """Appends to one file. Safe among threads. A disk that takes no more ends the recording, never the episode."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.trouble = ""
        self._descriptor = descriptor
        self._lock = threading.Lock()

    @staticmethod
    def create(path: Path, header: Header) -> Recorder:
        """A new file, with its header. May raise `OSError`, as where the file is there already."""
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL
        recorder = Recorder(path, os.open(path, flags, 0o600))
        fcntl.flock(recorder._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        recorder.write(header)
        return recorder

    @staticmethod
    def reopen(path: Path) -> tuple[Recorder, Trajectory] | Unreadable | InUse:
        """Go on with a file: its torn end is cut off. A damaged file is left as it is. May raise `OSError`."""
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        if not lock_at_once(descriptor, fcntl.LOCK_EX):
            os.close(descriptor)
            return InUse(f"{path.name} is being written")
        found = read(path)
        if isinstance(found, Unreadable):
            os.close(descriptor)
            return found
        if found.torn:
            os.ftruncate(descriptor, path.stat().st_size - found.torn)
        return Recorder(path, descriptor), found

    def write(self, entry: Header | Event) -> None:
        """Append one line; after trouble, none, for there must be no gap."""
        line = encode(entry)
        with self._lock:
            if self.trouble or self._descriptor < 0:
                return
            try:
                self._append(line)
                if isinstance(entry, Header | Acted | Ended) or _costly(entry):
                    os.fsync(self._descriptor)
            except OSError as error:
                self.trouble = f"the trajectory is recorded no further: {error}"
                log.once("search", f"{self.path.name}: {self.trouble}")

    def _append(self, line: bytes) -> None:
        while line:
            line = line[os.write(self._descriptor, line) :]

    def close(self) -> None:
        """Let go of the file. What is written afterwards, by a thread left behind, is dropped."""
        with self._lock:
            if self._descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(self._descriptor)
                self._descriptor = -1

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _costly(entry: Header | Event) -> bool:
    return isinstance(entry, Answered) and bool(entry.gains.verdicts)
