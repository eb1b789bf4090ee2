"""What Inductor compiles anew in each empty folder, kept for the next worker on cpu: a header and the checks
of the processor's instructions, together some ten seconds of a core.

Only the baseline worker's are kept, which runs no candidate, and only workers are given them. Each gets a copy, since
what it may write to, a candidate may have written.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from sandbox import scratch
from sandbox.compile.toolchain import Missing, find_cxx
from sandbox.isolation import trees

PRECOMPILED = "precompiled_headers"
"""Inductor's folder of headers, in its folder among the temporary files."""
HEADERS, CHECKS = "headers", "checks"
CHECK_MARK = "_chk_kernel"
"""What the source of a check holds, of whatever instructions."""
UNUSED_S = 30 * 86400.0
"""A store that nobody used for so long is removed: its torch or compiler is gone."""


def headers_of(folder: Path) -> Path:
    """Where Inductor keeps precompiled headers in a worker whose scratch folder this is."""
    return folder / "torchinductor_sandbox" / PRECOMPILED


def checks_of(folder: Path) -> Path:
    """Where it keeps what else it compiles there."""
    return folder / "inductor"


def give(native: str, folder: Path, *, headers: bool) -> None:
    """Put what is kept into an empty scratch folder. native: see `WorkerSettings.hello`. headers: the header too, which
    is large. A full disk leaves the worker to compile for itself."""
    store = _store(native)
    if store is None or not store.is_dir():
        return
    with suppress(OSError):
        os.utime(store)
        shutil.copytree(store / CHECKS, checks_of(folder), dirs_exist_ok=True)
        if headers:
            shutil.copytree(store / HEADERS, headers_of(folder), dirs_exist_ok=True)


def keep(native: str, folder: Path) -> None:
    """Keep what the baseline worker has compiled in its scratch folder, once it has compiled a task."""
    store, made = _store(native), headers_of(folder)
    if store is None or store.exists() or not any(made.rglob("*.gch")):
        return
    with suppress(OSError), scratch.folder("keeping", store.parent) as name:
        new = Path(name) / store.name
        shutil.copytree(made, new / HEADERS, ignore=shutil.ignore_patterns("locks"))
        for source in checks_of(folder).rglob("*.cpp"):
            if CHECK_MARK in source.read_text(errors="replace"):
                _copy_check(source, new / CHECKS)
        new.rename(store)
    _forget_unused(Path(native))


def _copy_check(source: Path, into: Path) -> None:
    """The source and the library that was made of it, in a folder of the same name."""
    target = into / source.parent.name
    target.mkdir(parents=True, exist_ok=True)
    for file in source.parent.glob(f"{source.stem}*"):
        if file.is_file() and file.suffix in (".cpp", ".so"):
            shutil.copy2(file, target / file.name)


def _store(native: str) -> Path | None:
    import torch

    toolchain = find_cxx()
    if not native or isinstance(toolchain, Missing):
        return None
    told = f"{torch.__version__}\0{toolchain.version}\0{toolchain.path}"
    return Path(native) / f"inductor-{hashlib.sha256(told.encode()).hexdigest()[:32]}"


def _forget_unused(native: Path) -> None:
    for store in native.glob("inductor-*"):
        with suppress(OSError):
            if time.time() - store.stat().st_mtime > UNUSED_S:
                trees.remove(store)
