"""Compiled Python for child processes, where the installation has none.

Installers such as uv leave it out by default, and container images often forbid to write it. Each process that a search
starts then compiles torch's and Inductor's sources: 20 s of a core on one machine; with it another takes 5.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from sandbox.workers.worker import BYTECODE

FORBIDS = "PYTHONDONTWRITEBYTECODE"


def variables(folder: Path, source: str | None = None) -> dict[str, str]:
    """What a child's environment needs beside this process's to keep bytecode in ``folder``.

    Nothing where there is bytecode of ``source`` (by default that of `torch`), where the user has named a folder, or
    where the folder cannot be made.
    """
    source = source or _source_of("torch")
    if source is None or sys.pycache_prefix is not None:
        return {}
    try:
        if Path(importlib.util.cache_from_source(source)).exists():
            return {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, NotImplementedError):
        return {}
    if not os.access(folder, os.W_OK):
        return {}
    return {BYTECODE: str(folder.absolute()), FORBIDS: ""}


def _source_of(module: str) -> str | None:
    found = importlib.util.find_spec(module)
    return found.origin if found else None
