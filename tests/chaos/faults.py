"""What goes wrong within a process: a clock that is wrong, folders that take no file. Files of the round switch it."""

from __future__ import annotations

import errno
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLOCK = "CHAOS_CLOCK"
"""The variable with the seconds by which the clock is wrong, by which it is wrong later, and after how many seconds."""
FOLDER = "CHAOS_FOLDER"
"""The variable with the round's folder."""
FULL, READ_ONLY = "full", "read-only"
ERRNOS = {FULL: errno.ENOSPC, READ_ONLY: errno.EROFS}
_REMOVALS = {"os.remove": 1, "os.rmdir": 1}
"""What makes room, which a full disk lets pass; and which argument is the descriptor of the folder."""
_CHANGES = {"os.mkdir": 2, "os.rename": 2, "sqlite3.connect": None, "os.truncate": None} | _REMOVALS


@dataclass
class Clock:
    """By how much `time.time` is wrong, from which moment on by how much more."""

    wrong: float = 0.0
    jump: float = 0.0
    jumps_at: float = float("inf")

    def install(self) -> None:
        """Put it in the place of `time.time`, before anybody takes hold of that."""
        real, monotonic = time.time, time.monotonic

        def clock() -> float:
            return real() + self.wrong + (self.jump if monotonic() >= self.jumps_at else 0.0)

        time.time = clock

    def set(self, text: str) -> None:
        """From the variable's value."""
        wrong, jump, after = map(float, text.split(","))
        self.wrong, self.jump, self.jumps_at = wrong, jump, time.monotonic() + after


def install_folders(folder: Path) -> None:
    """Refuse to change anything in a round's cache and temporary files while a file says so."""
    places = tuple(str(folder / name) for name in ("cache", "tmp"))
    switches = [(str(folder / name), number) for name, number in ERRNOS.items()]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if not isinstance(arguments[2], int) or not arguments[2] & (os.O_WRONLY | os.O_RDWR):
                return
        elif event not in _CHANGES:
            return
        path = arguments[0]
        if not isinstance(path, str | bytes | os.PathLike):
            return
        name = _absolute(os.fsdecode(path), arguments, _CHANGES.get(event))
        if not name.startswith(places):
            return
        for switch, number in switches:
            if _exists(switch) and not (number == errno.ENOSPC and event in _REMOVALS):
                raise OSError(number, os.strerror(number), name)

    sys.addaudithook(hook)


def _absolute(name: str, arguments: tuple[Any, ...], folder: int | None) -> str:
    """A path, also where it is relative to an open folder, whose descriptor is that argument."""
    if folder is None or name.startswith("/") or arguments[folder] < 0:
        return name
    try:
        return os.path.join(os.readlink(f"/proc/self/fd/{arguments[folder]}"), name)  # noqa: PTH115, PTH118
    except OSError:
        return name


def _exists(path: str) -> bool:
    return os.access(path, os.F_OK)
