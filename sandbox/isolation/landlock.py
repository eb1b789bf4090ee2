"""Landlock: what a process and all it starts may open, connect to and signal. Needs no privileges, Linux 5.13 or above.

Each version of the interface (ABI) guards more: 1 files, 2 renames between folders, 3 truncation, 4 TCP, 5 ioctl of
devices, 6 signals and abstract Unix sockets. What a machine has is used.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on all machines
_ASK_VERSION, _PATH_BENEATH = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_ALL_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_READ = READ_FILE | READ_DIR
_OF_DEVICES = (
    _READ | WRITE_FILE | _TRUNCATE | _IOCTL_DEVICE
)  # truncation: what `fopen(name, "w")` asks for
_NOT_IN_SCRATCH = EXECUTE | (1 << 6) | (1 << 11)  # nor character and block devices
_BIND_AND_CONNECT, _SIGNALS_AND_ABSTRACT_SOCKETS = 0b11, 0b11


@dataclass(frozen=True)
class View:
    """Folders and files, by absolute path. What does not exist is left out.

    read: with all below it, programs may be started from there too. write: read, write, create and remove.
    devices: files to read, write and control.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


def version() -> int:
    """The ABI that the kernel offers; 0 where there is none."""
    return max(0, int(_libc().syscall(_CREATE, None, 0, _ASK_VERSION)))


def handled(abi: int) -> tuple[int, int, int]:
    """What is guarded at all: accesses to files, to the network, and scopes."""
    files = max(bits for since, bits in _ALL_BY_VERSION.items() if since <= abi)
    return files, _BIND_AND_CONNECT * (abi >= 4), _SIGNALS_AND_ABSTRACT_SOCKETS * (abi >= 6)


def grants(view: View, abi: int) -> Iterator[tuple[str, int]]:
    """Each path with the accesses that it gets."""
    everything = handled(abi)[0]
    for path in view.read:
        yield path, _READ | EXECUTE
    for path in view.write:
        yield path, everything & ~_NOT_IN_SCRATCH
    for path in view.devices:
        yield path, everything & _OF_DEVICES


@contextmanager
def ruleset(view: View, abi: int) -> Iterator[int]:
    """A descriptor of the rules. Made while the paths can still be opened; raises OSError."""
    files, network, scopes = handled(abi)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    attributes = struct.pack("<QQQ", files, network, scopes)[:size]
    rules = _checked("landlock_create_ruleset", _libc().syscall(_CREATE, attributes, size, 0))
    try:
        _add(rules, grants(view, abi))
        yield rules
    finally:
        os.close(rules)


def restrict(rules: int) -> None:
    """Put the rules in force for this thread and all it starts. Needs no_new_privs. Raises OSError."""
    _checked("landlock_restrict_self", _libc().syscall(_RESTRICT, rules, 0))


def _add(rules: int, granted: Iterable[tuple[str, int]]) -> None:
    for path, access in granted:
        with suppress(FileNotFoundError, PermissionError, NotADirectoryError):
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                if not stat.S_ISDIR(os.fstat(place).st_mode):
                    access &= _OF_FILES
                rule = struct.pack("<Qi", access, place)
                added = _libc().syscall(_ADD, rules, _PATH_BENEATH, rule, 0)
                _checked(f"landlock_add_rule for {path}", added)
            finally:
                os.close(place)


def _checked(what: str, result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
