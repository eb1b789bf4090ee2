"""A folder of trajectories: one file for each episode, looked through by task, and kept within limits.

Finished files go oldest first beyond so many, or so many bytes; unfinished ones stay a month, for they may be resumed;
one that is being written stays.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cuda_agent_backend.agent.trajectories.codec import LineError, decode, decode_header
from cuda_agent_backend.agent.trajectories.events import Ended, Header, Unreadable
from cuda_agent_backend.agent.trajectories.file import free

SUFFIX = ".jsonl"
DIGITS = 16
"""Of the task's digest, in a file's name."""
TAIL = 1 << 16
"""Bytes in which the last line of a finished file lies."""


@dataclass(frozen=True)
class Limits:
    """What a folder may hold: finished files, bytes, and seconds since an unfinished file was written."""

    files: int = 1000
    size: int = 2 << 30
    unfinished_s: float = 30 * 86400.0


@dataclass(frozen=True)
class Summary:
    """The beginning and the end of a file. end: None where it did not end, or was taken up again."""

    path: Path
    header: Header
    end: Ended | None
    size: int
    changed: float

    @property
    def finished(self) -> bool:
        """Whether there is nothing to resume."""
        return self.end is not None and self.end.stop != "infrastructure"


def folder_beside(cache_dir: Path) -> Path:
    """Where the trajectories of a kernel cache's searches are."""
    return cache_dir.with_name(f"{cache_dir.name}-trajectories")


def new_path(folder: Path, header: Header) -> Path:
    """A name that is free: the task, the time, and something random."""
    when = time.strftime("%Y%m%dT%H%M%S", time.gmtime(header.started))
    name = f"{header.task_digest[:DIGITS]}-{when}-{secrets.token_hex(3)}{SUFFIX}"
    return folder / name


def of_task(folder: Path, digest: str) -> list[Path]:
    """Files of a task that did not end, the latest first."""
    found = folder.glob(f"{digest[:DIGITS]}-*{SUFFIX}")
    return [path for path in sorted(found, reverse=True) if not ended(path)]


def ended(path: Path) -> bool:
    """Whether the last line says that there is nothing to resume."""
    last = last_end(path)
    return last is not None and last.stop != "infrastructure"


def last_end(path: Path) -> Ended | None:
    """The last line, if it is whole and an end."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().split(b"\n")
        found = decode(lines[-2]) if len(lines) > 1 and not lines[-1] else None
    except (OSError, LineError):
        return None
    return found if isinstance(found, Ended) else None


def summary(path: Path) -> Summary | Unreadable:
    """What a list shows of a file, without reading all of it."""
    try:
        facts = path.stat()
        with path.open("rb") as file:
            line = file.readline()
        if not line.endswith(b"\n"):
            return Unreadable("it has no header", 1)
        return Summary(path, decode_header(line), last_end(path), facts.st_size, facts.st_mtime)
    except OSError as error:
        return Unreadable(f"it cannot be read: {error.strerror}")
    except LineError as error:
        return Unreadable(str(error), 1)


def summaries(folder: Path) -> Iterator[tuple[Path, Summary | Unreadable]]:
    """Of all files, the latest first."""
    for path, _ in reversed(_by_age(folder)):
        yield path, summary(path)


def prune(folder: Path, limits: Limits = Limits(), now: float | None = None) -> int:
    """Drop what is beyond the limits; how many files."""
    now = time.time() if now is None else now
    files = _by_age(folder)
    left, size = len(files), sum(facts.st_size for _, facts in files)
    dropped = 0
    for path, facts in files:
        over = left > limits.files or size > limits.size
        stale = now - facts.st_mtime > limits.unfinished_s
        if not (stale or (over and ended(path))) or not free(path):
            continue
        with contextlib.suppress(OSError):
            path.unlink()
            left, size, dropped = left - 1, size - facts.st_size, dropped + 1
    return dropped


def _by_age(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """All files, the oldest first; one that goes away meanwhile is left out."""
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):
            found.append((path, path.stat()))
    return sorted(found, key=lambda entry: (entry[1].st_mtime, entry[0].name))
