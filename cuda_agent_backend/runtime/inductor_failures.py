"""Why Inductor failed, where that is nothing about the graph."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from cuda_agent_backend import log

CUT_OFF = re.compile(r"(/.+\.so): (?:file too short|invalid ELF header|cannot read file data)")
"""What the loader says of a library that is not whole, after its path."""
HEADER_BYTES, MAGIC = 64, b"\x7fELF"
LOCK_S = 60.0
"""How long a compiler may take that writes the library just now."""


def no_compiler(error: BaseException | None) -> bool:
    """Whether Inductor failed for want of a C++ compiler."""
    from torch._inductor import exc

    return any(isinstance(one, exc.InvalidCxxCompiler) for one in _causes(error))


def removed_cut_library(error: BaseException | None) -> bool:
    """Remove the library that Inductor could not load since it is not whole; whether the graph is to be compiled again.

    A compiler that is ended while it writes, as by a kill, leaves such a library under its final name. Inductor takes
    whatever is there for finished, so without this no later process could compile the graph.
    """
    from torch._inductor.codecache import get_lock_dir

    locks = Path(get_lock_dir())  # within the folder of its cache
    path = next(filter(None, map(_named, _causes(error))), None)
    if path is None or not path.resolve().is_relative_to(locks.parent.resolve()):
        return False
    try:
        # Inductor's own lock on it, so that none is removed that is being written.
        with FileLock(locks / f"{path.name.partition('.')[0]}.lock", timeout=LOCK_S):
            if not is_whole(path):
                path.unlink(missing_ok=True)
    except (OSError, Timeout) as failed:
        log.once("all", f"{path} is cut off and cannot be removed ({failed}); remove it by hand")
        return False
    return True


def is_whole(path: Path) -> bool:
    """Whether a library is there to its end, where an ELF file of 64 bits has its section headers. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES or not head.startswith(MAGIC):
        return False
    offset = int.from_bytes(head[40:48], "little")
    size, count = (int.from_bytes(head[at : at + 2], "little") for at in (58, 60))
    return offset > 0 and offset + size * count <= path.stat().st_size


def _named(error: BaseException) -> Path | None:
    """The library that an error says is not whole."""
    found = CUT_OFF.match(str(error)) if isinstance(error, ImportError | OSError) else None
    return Path(found.group(1)) if found else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what it was raised for."""
    while error is not None:
        yield error
        error = error.__cause__ or getattr(error, "inner_exception", None) or error.__context__
