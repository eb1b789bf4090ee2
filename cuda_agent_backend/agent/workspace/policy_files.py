"""The files that a policy wrote in its workspace, as part of what an episode's record holds.

Texts only, of each file no more than a megabyte, and within limits of all together: what is larger, or is no text, is
as the folder has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Protocol

from cuda_agent_backend import log

MAX_FILES = 500
MAX_CHARACTERS = 1 << 20
MAX_BYTES, MAX_RECORDED = 16 << 20, 64 << 20
"""Of all files at a time, the smallest first, and of all that one episode records, changed files counted again."""
LEFT_OUT = "files of a policy are not part of its record: there are too many, or too large ones"


class Files(Protocol):
    """The part of a workspace used here. provided: paths that the environment wrote."""

    @property
    def root(self) -> Path: ...
    @property
    def provided(self) -> Iterable[str]: ...
    @property
    def seen(self) -> MutableMapping[str, str]: ...

    def paths(self) -> list[str]: ...

    def text_of(self, path: str) -> Any: ...

    def provide(self, path: str, text: str, protect: bool = True) -> None: ...


def texts(workspace: Files) -> dict[str, str | None]:
    """The policy's files by path. What is beyond the limits is left out, which the log says once."""
    own = [path for path in workspace.paths() if path not in workspace.provided]
    found = {path: workspace.text_of(path) for path in own[:MAX_FILES]}
    kept = {p: t for p, t in found.items() if isinstance(t, str) and len(t) <= MAX_CHARACTERS}
    left, chosen = MAX_BYTES, set()
    for path in sorted(kept, key=lambda path: (len(kept[path]), path)):
        left -= size_of({path: kept[path]})
        if left >= 0:
            chosen.add(path)
    if len(chosen) < len(kept) or len(own) > MAX_FILES:
        log.once("search", LEFT_OUT)
    return {path: text for path, text in kept.items() if path in chosen}


def size_of(files: Mapping[str, str | None]) -> int:
    """Bytes of all texts."""
    return sum(len(text.encode(errors="replace")) for text in files.values() if text is not None)


def put_back(workspace: Files, files: Mapping[str, str | None], seen: Mapping[str, str]) -> None:
    """Make the files what they were. Nothing of the policy runs in the folder yet. May raise `OSError`."""
    for path in texts(workspace):
        if files.get(path) is None:
            with contextlib.suppress(OSError):
                (workspace.root / path).unlink()
    for path, text in files.items():
        if text is not None:
            workspace.provide(path, text, protect=False)
    workspace.seen.update(seen)
