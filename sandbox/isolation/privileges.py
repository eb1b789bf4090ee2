"""Giving up rights: another user, no capabilities, resource limits. For a process with one thread."""

from __future__ import annotations

import ctypes
import itertools
import os
import resource
import stat
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from sandbox.isolation.trees import walk

UID_BASE = 1_700_000_000
_PER_PROCESS = 512
_SET_DUMPABLE, _KEEP_CAPABILITIES, _DROP_FROM_BOUND, _AMBIENT = 4, 8, 24, 47
_RAISE, _CLEAR_ALL = 2, 4
READ_AND_SEARCH = 2
"""CAP_DAC_READ_SEARCH: reads files and folders whatever their mode says."""
_LAST_CAPABILITY = 63
_CAPABILITY_VERSION = 0x20080522
_count = itertools.count()
_held: set[int] = set()


def unused_uid(pid: int, count: int, uid_map: str) -> int | None:
    """A user id that nobody has, another one for each child of the process `pid`; None where no such id can be taken.

    uid_map: the text of /proc/self/uid_map. Containers may know few ids.
    """
    ranges = [(int(a), int(n)) for a, _, n in (line.split() for line in uid_map.splitlines())]

    def known(uid: int) -> bool:
        return any(first <= uid < first + size for first, size in ranges)

    wanted = uids_of(pid)[count % _PER_PROCESS]
    within_a_container = 10_000 + (pid * _PER_PROCESS + count) % 50_000
    return next((uid for uid in (wanted, within_a_container) if known(uid)), None)


def uids_of(pid: int) -> range:
    """The user ids that children of this process get, where all ids are known; no other running process's do."""
    first = UID_BASE + pid * _PER_PROCESS % (1 << 31)
    return range(first, first + _PER_PROCESS)


def next_uid(programs: Iterable[str] = ()) -> int | None:
    """An unused user id for a child, None where none can be taken.

    programs: what the child has to find and start; the id is None where not everyone can.
    """
    if os.geteuid() != 0 or not _has_capability("setuid") or not reachable(programs):
        return None
    with suppress(OSError, ValueError):
        known = Path("/proc/self/uid_map").read_text()
        for _ in range(_PER_PROCESS):
            found = unused_uid(os.getpid(), next(_count), known)
            if found not in _held:
                break
        return found
    return None


def hold(uid: int | None) -> None:
    """No other child is to get this id, until it is released: ids are given out again after some hundreds, and
    some children live longer. Were all held, one would be shared."""
    if uid is not None:
        _held.add(uid)


def release(uid: int | None) -> None:
    """Other children may get this id. Nothing happens if it was not held."""
    if uid is not None:
        _held.discard(uid)


def _has_capability(name: str) -> bool:
    bit = {"setgid": 6, "setuid": 7}[name]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        mask = next(line for line in lines if line.startswith("CapEff:"))
        return bool(int(mask.split()[1], 16) >> bit & 1)
    return False


def reachable(paths: Iterable[str]) -> bool:
    """Whether any user may enter the folders that lead to these paths, and read them."""
    for path in map(Path, paths):
        with suppress(FileNotFoundError):
            if not path.stat().st_mode & 0o004:
                return False
            if any(not parent.stat().st_mode & 0o001 for parent in path.resolve().parents):
                return False
    return True


def own(folders: Iterable[str], uid: int) -> None:
    """Give the folders, with all that is in them, to a user."""
    for folder in folders:
        os.chown(folder, uid, uid)
        for at, name, _ in walk(folder):
            os.chown(name, uid, uid, dir_fd=at, follow_symlinks=False)


def keep(paths: Iterable[str]) -> None:
    """Take files and folders back that were given away with the folder they lie in: to be read by whoever owns that,
    not to be written, renamed or removed. For root, while nobody else changes anything there."""
    for path in map(Path, paths):
        with suppress(FileNotFoundError):
            kind = _take_back(str(path))
            if kind is None:
                continue
            if stat.S_ISDIR(kind):
                for at, name, _ in walk(path):
                    _take_back(name, at)
            os.chown(path.parent, 0, -1)
            path.parent.chmod(0o1775)  # its group may add files, and remove its own


def _take_back(name: str, at: int | None = None) -> int | None:
    """What it is; None for what is neither a file nor a folder, which nobody is to trust."""
    kind = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        return None
    os.chown(name, 0, 0, dir_fd=at, follow_symlinks=False)
    os.chmod(name, 0o755 if stat.S_ISDIR(kind) else 0o444, dir_fd=at)
    return kind


def become(uid: int, keep_search: bool) -> None:
    """Be that user for good, without capabilities; with `keep_search` all but one. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(_LAST_CAPABILITY + 1):
        if not (keep_search and capability == READ_AND_SEARCH):
            libc.prctl(_DROP_FROM_BOUND, capability, 0, 0, 0)
    _prctl(libc, _KEEP_CAPABILITIES, int(keep_search))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _only(libc, {READ_AND_SEARCH} if keep_search else set())
    _prctl(libc, _SET_DUMPABLE, 1)  # or its own /proc/self would belong to root


def drop_capabilities() -> None:
    """Keep the user, but no capability. Raises OSError."""
    _only(ctypes.CDLL(None, use_errno=True), set())


def _only(libc: ctypes.CDLL, kept: set[int]) -> None:
    """These capabilities and no others, for programs started from here on too."""
    _prctl(libc, _AMBIENT, _CLEAR_ALL)
    mask = sum(1 << capability for capability in kept)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = struct.pack("<Ii", _CAPABILITY_VERSION, 0)
    data = struct.pack("<6I", low, low, low, high, high, high)
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    for capability in kept:
        _prctl(libc, _AMBIENT, _RAISE, capability)


def _prctl(libc: ctypes.CDLL, option: int, first: int, second: int = 0) -> None:
    if libc.prctl(option, first, second, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {first})")


def limit_resources(limits: Mapping[str, int]) -> None:
    """Lower limits by their names in lower case, such as cpu or nofile; those that are lower already stay."""
    for name, wanted in limits.items():
        kind = getattr(resource, f"RLIMIT_{name.upper()}")
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))


def die_first() -> None:
    """When memory runs out, the kernel is to end this process and its children before all others."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
