"""Files below one folder, for a program that does not trust the names it is given.

Every path is walked from the folder's descriptor, component by component, following no symbolic link, so a name can
never lead outside, whatever another process changes meanwhile: what was checked is what is opened. Files are written
aside and renamed, so a reader never sees half of one.

Not covered: a process that writes to the same folder may undo or change anything in it between two calls.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
MAX_PATH, MAX_DEPTH = 400, 16
MAX_FILE = 1 << 20
"""Bytes of a file that is read or written."""
MAX_ENTRIES = 5000
"""Files and folders that a walk looks at."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Refusal:
    """A path or a file that is not taken, and why."""

    reason: str


class _Refused(Exception):
    """Carries a refusal out of a walk."""


def parts_of(path: str) -> tuple[str, ...] | Refusal:
    """The components of a relative path, "." for the folder itself being none."""
    if not path or len(path) > MAX_PATH:
        return Refusal(f"a path has 1 to {MAX_PATH} characters")
    if "\0" in path or not path.isprintable():
        return Refusal("a path has printable characters only")
    if path.startswith(("/", "~")):
        return Refusal("only paths relative to the workspace are taken, such as kernel.cu")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        return Refusal("a path may not hold ..; all files are within the workspace")
    if len(parts) > MAX_DEPTH or any(len(part.encode(errors="replace")) > 255 for part in parts):
        return Refusal(f"a path has at most {MAX_DEPTH} parts of at most 255 bytes")
    return parts


def normal(path: str) -> str | Refusal:
    """The one way to write a path: a/b/c."""
    parts = parts_of(path)
    return parts if isinstance(parts, Refusal) else "/".join(parts) or "."


class Confined:
    """A folder, held by its descriptor. Close it when done."""

    def __init__(self, root: Path) -> None:
        """Raises OSError where the folder is not there."""
        self.root = root
        self._descriptor = os.open(root, _FOLDER)

    def close(self) -> None:
        """Let go of the folder; nothing can be read or written afterwards."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, path: str) -> bytes | Refusal:
        """The content of a regular file of at most `MAX_FILE` bytes."""
        return _valued(lambda: self._read(_checked(path)))

    def write(self, path: str, content: bytes, *, own: bool = False) -> Refusal | None:
        """Put a file in place at once, with the folders that it needs. They belong to the owner of the folder that
        they are made in, who may be another user that a shell runs as; own: to this process's user."""
        if len(content) > MAX_FILE:
            return Refusal(f"{len(content)} bytes; a file has at most {MAX_FILE}")
        return _valued(lambda: self._write(_checked(path), content, own))

    def walk(self) -> Iterator[tuple[str, os.stat_result]]:
        """Paths and facts of all regular files, in order, up to `MAX_ENTRIES` entries."""
        left = [MAX_ENTRIES]
        yield from self._walk(self._descriptor, "", 0, left)

    def _walk(
        self, folder: int, prefix: str, depth: int, left: list[int]
    ) -> Iterator[tuple[str, os.stat_result]]:
        for name in sorted(os.listdir(folder)):
            left[0] -= 1
            if left[0] < 0:
                return
            with suppress(OSError):
                facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(facts.st_mode):
                    yield prefix + name, facts
                elif stat.S_ISDIR(facts.st_mode) and depth < MAX_DEPTH:
                    inner = os.open(name, _FOLDER, dir_fd=folder)
                    try:
                        yield from self._walk(inner, f"{prefix}{name}/", depth + 1, left)
                    finally:
                        os.close(inner)

    def _read(self, parts: tuple[str, ...]) -> bytes:
        with self._folder_of(parts, make=False) as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(parts[-1], flags, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            _check_file(os.fstat(descriptor))
            content = file.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:  # it grew meanwhile
            raise _Refused(f"larger than {MAX_FILE} bytes")
        return content

    def _write(self, parts: tuple[str, ...], content: bytes, own: bool) -> None:
        with self._folder_of(parts, make=True, own=own) as folder:
            with suppress(FileNotFoundError):
                _check_file(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False))
            aside = f".writing-{secrets.token_hex(8)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(aside, flags, 0o644, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    if not own:
                        _give(descriptor, folder)
                    file.write(content)
                os.rename(aside, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(aside, dir_fd=folder)
                raise

    @contextmanager
    def _folder_of(self, parts: tuple[str, ...], make: bool, own: bool = False) -> Iterator[int]:
        """A descriptor of the folder that a path's last part lies in."""
        folder = os.dup(self._descriptor)
        try:
            for part in parts[:-1]:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=folder)
                        if not own:
                            _give_name(part, folder)
                inner = os.open(part, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)


def _checked(path: str) -> tuple[str, ...]:
    parts = parts_of(path)
    if isinstance(parts, Refusal):
        raise _Refused(parts.reason)
    if not parts:
        raise _Refused("a folder, not a file")
    return parts


def _check_file(facts: os.stat_result) -> None:
    kind = facts.st_mode
    if stat.S_ISDIR(kind):
        raise _Refused("a folder, not a file")
    if stat.S_ISLNK(kind):
        raise _Refused("a symbolic link; only plain files are read and written")
    if not stat.S_ISREG(kind):
        raise _Refused("not a plain file (a pipe, socket or device)")
    if facts.st_nlink > 1:
        raise _Refused("a file with several names (hard links); make a copy")
    if facts.st_size > MAX_FILE:
        raise _Refused(f"{facts.st_size} bytes; files of up to {MAX_FILE} are read")


def _give(descriptor: int, folder: int) -> None:
    """To the owner of the folder, who may be another user that the shell runs as."""
    owner = os.fstat(folder)
    if os.geteuid() == 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _give_name(name: str, folder: int) -> None:
    owner = os.fstat(folder)
    if os.geteuid() == 0:
        os.chown(name, owner.st_uid, owner.st_gid, dir_fd=folder, follow_symlinks=False)


def _valued(work: Callable[[], T]) -> T | Refusal:
    """What the work gives; an expected failure as a refusal."""
    try:
        return work()
    except _Refused as error:
        return Refusal(str(error))
    except FileNotFoundError:
        return Refusal("no such file")
    except OSError as error:
        return Refusal(_WORDS.get(error.errno or 0, error.strerror or "cannot be opened"))


_WORDS = {
    errno.ELOOP: "a symbolic link; only plain files are read and written",
    errno.ENOTDIR: "part of the path is not a folder, or is a symbolic link",
    errno.ENXIO: "not a plain file (a pipe, socket or device)",
}
