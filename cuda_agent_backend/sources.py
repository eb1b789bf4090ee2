"""One digest of the installed sources: for torch's cache key, and for the provenance of results."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

import cuda_agent_backend
import kernel_cache
import sandbox

PATTERNS = ("*.py", "*.cpp", "*.h", "*.cuh")


@functools.cache
def source_digest() -> str:
    """The SHA-256 of all sources that can change generated code or a decision, as they are installed.

    Every source file counts, not a chosen part: whatever decides a partition, a schedule or a verdict may lie in any
    folder, and a file that moves must not drop out of a cache key.
    """
    return digest(_folder(package) for package in (cuda_agent_backend, kernel_cache, sandbox))


def digest(folders: Iterable[Path]) -> str:
    """The SHA-256 of the source files below ``folders``: their paths from each folder on, and their bytes."""
    hasher = hashlib.sha256()
    for folder in folders:
        for path in sorted(path for pattern in PATTERNS for path in folder.rglob(pattern)):
            data = path.read_bytes()
            hasher.update(f"{folder.name}/{path.relative_to(folder)}:{len(data)}\n".encode())
            hasher.update(data)
    return hasher.hexdigest()


def _folder(package: object) -> Path:
    return Path(str(getattr(package, "__file__", ""))).parent
