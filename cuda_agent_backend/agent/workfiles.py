"""The files that a policy wrote in its workspace, as part of what an episode's record holds.

Texts only, and of each file no more than a megabyte: what is larger, or is no text, is as the folder has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Protocol

MAX_FILES = 500
MAX_CHARACTERS = 1 << 20


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
    """The policy's files by path."""
    own = [path for path in workspace.paths() if path not in workspace.provided]
    found = {path: workspace.text_of(path) for path in own[:MAX_FILES]}
    return {p: t for p, t in found.items() if isinstance(t, str) and len(t) <= MAX_CHARACTERS}


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
