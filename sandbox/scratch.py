"""Temporary folders that have an owner: removed when they are done with, and by the next process after its death.

Each process has one folder, its home, in each place where it makes temporary ones (by default the folder for temporary
files). The home holds a file, `owner`, that the process keeps locked as long as it lives, with its id and start for
people to read. A process that makes its first home in a place removes the homes there whose lock nobody holds, as far
as they are of the same user. One that is just being made has no lock yet and may go with them: whoever makes it looks
once it is locked whether it is still there, and else makes another. So nothing has to grow old before it is removed. A
child that was forked owns nothing of its parent's.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sandbox.file_locks import lock_at_once
from sandbox.isolation import trees

OWNER = "owner"
YOUNG_S = 60.0
"""Where a file system has no locks: for so long a home whose owner has not written its id may be just being made."""
TRIES = 16
"""To make a home, where others remove it before it is locked."""


@dataclass(frozen=True)
class _Home:
    path: Path
    lock: int


_homes: dict[Path, _Home] = {}
_guard = threading.RLock()


@contextmanager
def folder(purpose: str, beside: str | Path | None = None) -> Iterator[str]:
    """A new empty folder that only this user may enter, removed afterwards. Raises OSError.

    purpose: what its name begins with. beside: the place to make it in, for who will rename something out of it.
    """
    made = make(purpose, beside)
    try:
        yield str(made)
    finally:
        trees.remove(made)
        if beside is not None:
            _leave_if_empty(Path(beside).absolute())


def make(purpose: str, beside: str | Path | None = None) -> Path:
    """A new empty folder as of `folder`, which the caller removes (`trees.remove`). Raises OSError."""
    with _guard:
        made = _home(Path(beside or _temporary()).absolute()) / f"{purpose}-{uuid.uuid4().hex[:8]}"
        made.mkdir(mode=0o700)
    return made


def sweep(beside: str | Path | None = None) -> list[Path]:
    """Remove the homes of this user's dead processes in a place; which. Raises nothing."""
    swept = []
    with suppress(OSError):
        place = Path(beside or _temporary()).absolute()
        for path in sorted(place.glob(f"{_prefix()}*")):
            with suppress(OSError):
                if _is_home(path) and _remove_if_dead(path):
                    swept.append(path)
    return swept


def _temporary() -> str:
    import tempfile  # slow to import, and most processes make no folder

    return tempfile.gettempdir()


def _prefix() -> str:
    return f"cuda_agent-{os.geteuid()}-"


def _home(place: Path) -> Path:
    """This process's home in a place, made at the first call."""
    known = _homes.get(place)
    if known is None or not known.path.is_dir():
        if known is not None:  # whoever owns the place has removed it
            del _homes[
                place
            ]  # first: its descriptor's number is another file's soon, and no home may be had
            os.close(known.lock)
        sweep(place)
        known = _homes[place] = _made(place)
    return known.path


def _made(place: Path) -> _Home:
    for _ in range(TRIES):
        path = place / f"{_prefix()}{os.getpid()}-{uuid.uuid4().hex[:8]}"
        path.mkdir(mode=0o711)  # confined processes of other users pass through it
        if (home := _owned(path)) is not None:
            return home
    raise OSError(f"{place}: other processes remove each folder there before it is locked")


def _owned(path: Path) -> _Home | None:
    """Lock a home that was just made; None where somebody who sweeps was faster."""
    try:
        lock = os.open(path / OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    except OSError:
        trees.remove(path)
        raise
    try:
        if _is_locked(lock) and _is_there(path / OWNER, lock):
            said = {"pid": os.getpid(), "start": start_of(os.getpid()), "since": time.time()}
            os.write(lock, json.dumps(said).encode())
            return _Home(path, lock)
    except OSError:
        os.close(lock)
        trees.remove(path)
        raise
    os.close(lock)
    return None


def _is_locked(lock: int) -> bool:
    with suppress(OSError):  # some file systems have no locks: the process's id decides there
        return lock_at_once(lock, fcntl.LOCK_EX)
    return True


def _is_there(path: Path, lock: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(lock))
    return False


def _is_home(path: Path) -> bool:
    """Whether it is a folder of this user with the name of a home."""
    found = path.lstat()
    mine = found.st_uid == os.geteuid() and path.is_dir() and not path.is_symlink()
    return mine and path.name.startswith(_prefix())


def _remove_if_dead(path: Path) -> bool:
    try:
        lock = os.open(path / OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return _remove_without_owner(path)
    try:
        return _is_dead(path, lock) and _removed(path)
    finally:
        os.close(lock)


def _remove_without_owner(path: Path) -> bool:
    """Remove a home that nobody has locked yet, or whose removal was cut short. What is in one came after its owner."""
    try:
        path.rmdir()
    except OSError:
        return OWNER not in os.listdir(path) and _removed(path)  # noqa: PTH208
    return True


def _is_dead(path: Path, lock: int) -> bool:
    """Whether nobody has the lock, which this process has then, and whoever wrote the file does not run."""
    young = False
    try:
        if not lock_at_once(lock, fcntl.LOCK_EX):
            return False
    except OSError:  # as in `_is_locked`
        young = abs(time.time() - path.stat().st_mtime) < YOUNG_S
    said = os.pread(lock, 4096, 0)
    return not _is_running(said) and not (young and not said)


def _removed(path: Path) -> bool:
    _remove(path)
    return not path.exists()


def _remove(home: Path) -> None:
    """Remove a home, what says whose it is last: whoever is killed over it leaves one that the next process removes."""
    with suppress(OSError):
        for path in home.iterdir():
            if path.name != OWNER:
                trees.remove(path)
    trees.remove(home)


def _is_running(said: bytes) -> bool:
    """Whether the process that wrote `owner` runs here. One of another container cannot be seen; its lock can."""
    with suppress(ValueError, KeyError, TypeError):
        owner = json.loads(said)
        start = start_of(int(owner["pid"]))
        return start is not None and start == owner["start"]
    return False


def start_of(pid: int) -> int | None:
    """When a process started, in the kernel's ticks since it did itself; None where there is no such process."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    return None


def _leave_if_empty(place: Path) -> None:
    """Give up a home in a place of its user's choice as soon as nothing is in it."""
    with _guard, suppress(OSError, KeyError):
        if os.listdir(_homes[place].path) == [OWNER]:  # noqa: PTH208
            home = _homes.pop(place)
            _remove(home.path)
            os.close(home.lock)


def leave_and_exit(status: int) -> NoReturn:
    """Give up all homes and end the process, before another thread of it makes one."""
    with _guard:
        leave()
        os._exit(status)


def leave() -> None:
    """Give up all homes of this process, as at its end."""
    with _guard:
        for home in _homes.values():
            _remove(home.path)
            with suppress(OSError):
                os.close(home.lock)
        _homes.clear()


def _forked() -> None:
    global _guard
    _guard = threading.RLock()  # a thread of the parent may have held it
    for home in _homes.values():
        with suppress(OSError):
            os.close(home.lock)
    _homes.clear()


os.register_at_fork(after_in_child=_forked)
atexit.register(leave)
