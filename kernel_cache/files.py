"""Content-addressed files: the name is the SHA-256 of the bytes, so every read can be verified.

A file is written aside in `aside/`, flushed to the disk, and renamed into place; then its folder
is flushed. A process killed at any moment leaves at most a file in `aside/`, which nobody reads
and gc removes.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernel_cache.canonical import is_digest, sha256


@dataclass(frozen=True)
class BadFile:
    """A file whose bytes are not those of its name. `missing`: there is no file at all."""

    path: Path
    reason: str
    missing: bool = False


@dataclass(frozen=True)
class Staged:
    """Bytes that are on the disk under a name of their own, not yet in place."""

    aside: Path
    digest: str


class ContentFiles:
    """The files of one kind below `root`: root/ab/cdef...<suffix>. Methods may raise OSError."""

    def __init__(self, root: Path, aside: Path, suffix: str) -> None:
        self.root = root
        self._aside = aside
        self._suffix = suffix

    def path(self, digest: str) -> Path:
        """Where the bytes with this digest are, if they are. Raises ValueError on a non-digest."""
        if not is_digest(digest):
            raise ValueError(f"not a digest: {digest!r}")
        return self.root / digest[:2] / f"{digest[2:]}{self._suffix}"

    def stage(self, data: bytes) -> Staged:
        """Write `data` aside and flush it; takes the time of the disk, needs no lock."""
        digest = sha256(data)
        self._aside.mkdir(parents=True, exist_ok=True)
        _make_folder(self.path(digest).parent)
        staged = Staged(self._aside / uuid.uuid4().hex, digest)
        try:
            _write_flushed(staged.aside, data)
        except OSError:
            self.discard(staged)
            raise
        return staged

    def place(self, staged: Staged) -> None:
        """Rename into place and flush the folder. An old, perhaps damaged, file is replaced."""
        final = self.path(staged.digest)
        staged.aside.replace(final)
        _flush_folder(final.parent)

    def discard(self, staged: Staged) -> None:
        """Remove what was staged, if it is still aside."""
        with contextlib.suppress(OSError):
            staged.aside.unlink(missing_ok=True)

    def read(self, digest: str) -> bytes | BadFile:
        """The bytes with this digest, verified."""
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return BadFile(path, "the file is missing", missing=True)
        if sha256(data) != digest:
            return BadFile(path, f"its {len(data)} bytes do not have the digest of its name")
        return data

    def digests(self) -> Iterator[str]:
        """The digests that the names of the files in place stand for; other names are left out."""
        for path in sorted(self.root.glob(f"[0-9a-f][0-9a-f]/*{self._suffix}")):
            digest = path.parent.name + path.name.removesuffix(self._suffix)
            if is_digest(digest):
                yield digest

    def remove(self, digest: str) -> int:
        """Remove the file; the bytes it had, 0 if there was none."""
        path = self.path(digest)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        return size


def leftovers(aside: Path, older_than_s: float) -> list[Path]:
    """Files that writers which died have left aside. The age keeps those of living writers."""
    limit = time.time() - older_than_s
    found = []
    for path in sorted(aside.glob("*")):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < limit:
                found.append(path)
    return found


def _write_flushed(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        _flush_folder(folder.parent)
        _flush_folder(folder.parent.parent)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
