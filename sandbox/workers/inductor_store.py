"""What Inductor compiles once and keeps, together some ten seconds of a core: the checks of the processor's
instructions, and a header.

Both are the judge's own: torch makes them in a process that runs nothing but torch, in the cache of the user whom the
judge works for. A worker for cpu holds what the checks found from its start (see `fork_server`), and finds the
header where there is one. What a worker has compiled itself, where a candidate may have been, nobody else is given.
"""

from __future__ import annotations

import mmap
import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from sandbox import scratch

CACHE = "TORCHINDUCTOR_CACHE_DIR"
PRECOMPILED = "precompiled_headers"
"""Inductor's folder of headers, in its folder among the temporary files."""
PREFIX = "torch/csrc/inductor/cpp_prefix.h"
"""What kernels of Inductor's include, in torch's folder of headers: as new as the installation."""
HEADER = "cpp_cache_precompile_headers"
"""Inductor's option to make one."""
LOOKED_AT = 8
"""So many headers are looked through: to read one that is not in memory takes half a second."""
WRITTEN_S = 5.0
"""A header that nobody has written to for so long is whole."""
PAYS_FROM = 5
"""Compilations in one process that a header of its own pays for: it takes a core five seconds, and saves each of them
one."""


def own_cache() -> Path:
    """Where Inductor keeps what it compiles for this process."""
    return Path(os.environ.get(CACHE) or _default())


def own_headers() -> Path:
    """Where it keeps its precompiled headers."""
    return _default() / PRECOMPILED


def _default() -> Path:
    return Path(_cache_dir_utils().default_cache_dir())


@cache
def _cache_dir_utils() -> Any:
    """Torch's module, without the package that it lies in: to import that takes a second, and fails where another
    thread is at it, as its modules import each other in circles."""
    place = torch_folder() / "_inductor" / "runtime" / "cache_dir_utils.py"
    spec = spec_from_file_location("cache_dir_utils", place)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torch_folder() -> Path:
    """Where the package lies that this process runs."""
    import torch

    return Path(torch.__file__).parent


def headers_of(folder: Path) -> Path:
    """The same in a worker whose scratch folder this is."""
    return folder / "torchinductor_sandbox" / PRECOMPILED


def give(folder: Path) -> None:
    """Let a worker that is still to be started find this user's headers in its empty scratch folder. A full disk leaves
    it without."""
    with suppress(OSError):
        lend_headers(own_headers(), headers_of(folder))


def lend_headers(shared: Path, own: Path) -> None:
    """Put the headers of this torch that Inductor has compiled before into a folder, as far as they are whole.

    A header takes 150 MB, so it is linked where its folder lets all users read it. Raises OSError.
    """
    for made in known_headers(shared):
        _each(made, shared, own, _symlink if _is_open_to_all(made) else shutil.copy2)


def known_headers(shared: Path) -> list[Path]:
    """The whole headers in a folder that this torch may have made, the newest first. Others lie there as well: of other
    environments of this user, and of releases that were here before. Only the newest are looked through."""
    include = torch_folder() / "include"
    installed = (include / PREFIX).stat().st_ctime_ns if (include / PREFIX).exists() else 0
    found = []
    for seen, made in _newest(shared):
        with suppress(OSError):
            whole = time.time() - seen.st_mtime > WRITTEN_S
            if whole and seen.st_ctime_ns > installed and _names(made, seen.st_mtime_ns, include):
                found.append(made)
    return found


def _newest(shared: Path) -> list[tuple[os.stat_result, Path]]:
    found = []
    for made in shared.rglob("*.gch"):
        with suppress(OSError):  # its owner has removed it meanwhile
            found.append((made.stat(), made))
    return sorted(found, key=lambda it: it[0].st_mtime_ns, reverse=True)[:LOOKED_AT]


@lru_cache(256)
def _names(made: Path, written_ns: int, include: Path) -> bool:
    """Whether a compiled header of that time names a file in a folder. To look through one takes 25 ms."""
    with made.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(os.fsencode(f"{include}/")) >= 0


def _is_open_to_all(file: Path) -> bool:
    """Whether any user may read a file: workers are of users of their own where this process may give them one."""
    passes = all(folder.stat().st_mode & stat.S_IXOTH for folder in file.resolve().parents)
    return passes and bool(file.stat().st_mode & stat.S_IROTH)


def leave_headers(own: Path, shared: Path) -> None:
    """Give the headers that one process has made for itself to this user's Inductor, each whole from the moment that it
    is there, and with a time that says so. Raises OSError, also where the folders lie on different disks.

    One that is there already is as new as its twin from now on: `known_headers` knows it by its time.
    """
    for made in own.rglob("*.gch"):
        known = shared / made.relative_to(own)
        if made.is_symlink():
            continue
        os.utime(known if known.exists() else made, (time.time() - 2 * WRITTEN_S,) * 2)
        if not known.exists():
            _each(made, own, shared, _link)


def _each(made: Path, source: Path, target: Path, put: Callable[[Path, Path], Any]) -> None:
    """What belongs to a compiled header: first its source, without which Inductor does not look for it.

    A source is never linked to: with one that is gone later nothing would compile.
    """
    header, place = made.with_suffix(""), target / made.parent.relative_to(source)
    if header.is_file():
        place.mkdir(parents=True, exist_ok=True)
        (shutil.copy2 if put is _symlink else put)(header, place / header.name)
        put(made, place / made.name)


def _symlink(file: Path, target: Path) -> None:
    target.symlink_to(file.resolve())


def _link(file: Path, target: Path) -> None:
    with suppress(FileExistsError):
        os.link(file, target)


def options(compilations: int) -> dict[str, Any]:
    """What Inductor is told for the next of so many compilations in this process: to do without a header where it has
    none and would not need it often. The code that it makes is the same."""
    from torch._inductor import config

    if (
        not hasattr(config, HEADER)
        or compilations >= PAYS_FROM
        or any(own_headers().rglob("*.gch"))
    ):
        return {}
    return {HEADER: False}


SMALLEST = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel(float* out) { at::vec::Vectorized<float>(1.0f).store(out); }
"""


def make_header() -> None:
    """Have Inductor make the header that most code of this user's needs, unless there is one; it takes seconds.

    Its code makes it for the smallest loop there is, in a folder of this process's own: whoever kills this process
    leaves no half of one. What goes wrong comes up where a header is needed.
    """
    from torch._inductor import codecache

    shared = own_headers()
    if known_headers(shared) or not hasattr(codecache, "_HEADER_DIR"):
        return
    places = codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR
    with suppress(Exception), scratch.folder("header") as own:
        codecache._precompile_header.cache_clear()  # it remembers places, of headers that are gone by now too
        codecache._HEADER_DIR = own
        codecache._HEADER_LOCK_DIR = str(Path(own) / "locks")
        try:
            codecache.CppPythonBindingsCodeCache.load_pybinding(["float*"], SMALLEST)
        finally:
            codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = places
            codecache._precompile_header.cache_clear()
        leave_headers(Path(own), shared)
