"""Looking at processes in tests."""

from __future__ import annotations

import time
from pathlib import Path


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """The processes that a process started and that were not waited for."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            if parent == pid:
                found.append(int(entry.name))
    return found


def family(pid: int) -> list[int]:
    """The process and all below it."""
    return [pid, *(below for child in children(pid) for below in family(child))]


def text_in(path: Path, seconds: float = 300.0) -> str:
    """What another process writes into a file, once it has: the file is there a moment before its text is."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.02)
    raise AssertionError(f"nothing was written into {path} in {seconds:.0f} s")


def gone(pids: list[int], seconds: float = 60.0) -> bool:
    """Whether all have ended within so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False
