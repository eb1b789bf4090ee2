"""Names of processes that hold something in a cache, by which others on the same machine see that one has died."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
NAMESPACE = Path("/proc/self/ns/pid")


def own_name() -> str:
    """This process's: the machine's start, the space in which process ids count, the id, and the process's start."""
    return f"{_where()} {os.getpid()} {_start_of(os.getpid())}"


def is_gone(name: str) -> bool:
    """Whether the process of a name is known to have ended. Of one elsewhere, or of another name, nothing is known."""
    where, _, process = name.partition(" ")
    pid, _, start = process.partition(" ")
    if not where or where != _where() or not pid.isdecimal():
        return False
    return _start_of(int(pid)) != start


def _where() -> str:
    with suppress(OSError):
        return f"{BOOT.read_text().strip()}/{NAMESPACE.readlink()}"
    return ""


def _start_of(pid: int) -> str:
    """In the kernel's ticks since it started itself; "" where there is no such process, or it is dead already."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in ("Z", "X") else fields[19]
    return ""
