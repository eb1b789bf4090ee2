"""Folders with all that is in them, as deep as somebody who is not trusted could make them.

No path below the top is ever spelt out and nothing calls itself, so neither the length of paths nor Python's stack is a
limit. No link is followed, and a folder that is moved away meanwhile does not lead outside.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 4
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class _Level:
    """A folder that is being walked: its name in the one above, what it is, and the folders still to be entered."""

    name: str
    identity: tuple[int, int]
    folders: list[str]


def walk(top: str | Path, mend: bool = False) -> Iterator[tuple[int, str, bool]]:
    """All below a folder, folders after what is in them: the descriptor of the folder that holds it, its name there,
    whether it is a folder. mend: gives the owner rights to folders that it could not enter, and passes over those
    that stay closed. Raises OSError."""
    at = _enter(None, str(top), mend)
    try:
        level, files = _look(at, "")
        yield from ((at, name, False) for name in files)
        levels = [level]
        while True:
            if levels[-1].folders:
                name = levels[-1].folders.pop()
                try:
                    below = _enter(at, name, mend)
                except OSError:
                    if not mend:
                        raise
                    yield at, name, True
                    continue
                os.close(at)
                at = below
                level, files = _look(at, name)
                levels.append(level)
                yield from ((at, name, False) for name in files)
                continue
            left = levels.pop()
            if not levels:
                return
            above = os.open("..", _FOLDER, dir_fd=at)
            os.close(at)
            at = above
            if _identity(at) != levels[-1].identity:
                raise OSError("a folder was moved while it was walked through")
            yield at, left.name, True
    finally:
        os.close(at)


def _enter(at: int | None, name: str, mend: bool) -> int:
    try:
        found = os.open(name, _FOLDER, dir_fd=at)
    except PermissionError:
        if not mend:
            raise
        os.chmod(name, 0o700, dir_fd=at)
        found = os.open(name, _FOLDER, dir_fd=at)
    if mend:
        with suppress(OSError):
            os.fchmod(found, 0o700)
    return found


def _look(at: int, name: str) -> tuple[_Level, list[str]]:
    folders: list[str] = []
    files: list[str] = []
    with os.scandir(at) as entries:
        for entry in entries:
            (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
    return _Level(name, _identity(at), folders), files


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def remove(top: str | Path) -> None:
    """Remove a folder as far as that is possible. Raises nothing.

    Where others write there or remove things meanwhile, it is walked through again, as a walk ends over that.
    """
    for _ in range(ROUNDS):
        _remove_once(top)
        if not os.path.lexists(top):
            return


def _remove_once(top: str | Path) -> None:
    with suppress(OSError):
        for at, name, folder in walk(top, mend=True):
            with suppress(OSError):
                if folder:
                    os.rmdir(name, dir_fd=at)
                else:
                    os.unlink(name, dir_fd=at)
    with suppress(OSError):
        os.rmdir(top)  # noqa: PTH106


@contextmanager
def temporary(prefix: str, beside: str | Path | None = None) -> Iterator[str]:
    """A new folder that is removed afterwards. beside: the folder to make it in. Raises OSError."""
    import tempfile  # slow to import, and this is part of starting a confined process

    made = tempfile.mkdtemp(prefix=prefix, dir=beside)
    try:
        yield made
    finally:
        remove(made)
