"""The folder of one task: what the environment provides, which tools may not change, and what the policy writes.

A file is read before it is overwritten or edited, and again when it has changed since, be it by the shell: what a
policy has not seen it does not destroy.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from cuda_agent_backend.agent.workspace.confined_files import Confined, Refusal, normal

__all__ = ["Refusal", "Workspace"]

MOST_BYTES, MOST_FILES = 64 << 20, 2000
"""That tools write in one episode, overwritten ones counted again."""
HIDDEN = ".writing-"
BASELINES = "baselines.json"
"""What the environment writes later in an episode: a policy puts nothing in its place."""


class Workspace:
    """Files of one task, below ``root``. A context manager; closing leaves the files where they are."""

    def __init__(self, root: Path) -> None:
        """Use the folder, made where it is not there. Raises OSError where that cannot be."""
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.provided: set[str] = set()
        """Paths that the environment wrote: read-only for tools."""
        self.seen: dict[str, str] = {}
        """What the policy last saw of each file, as a digest."""
        self._files = Confined(root)
        self._bytes = self._written = 0

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder."""
        self._files.close()

    def provide(self, path: str, text: str, protect: bool = True) -> None:
        """Write a file of the environment's. Raises OSError where it cannot be written."""
        refused = self._files.write(path, text.encode(), own=protect)
        if refused is not None:
            raise OSError(f"{self.root / path}: {refused.reason}")
        if protect:
            self.provided.add(path)

    def text_of(self, path: str) -> str | Refusal:
        """A file's text. What it looks like is not counted as seen."""
        content = self._files.read(path)
        if isinstance(content, Refusal):
            return content
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return Refusal("not UTF-8 text")
        return Refusal("a binary file") if "\0" in text else text

    def read(self, path: str) -> str | Refusal:
        """A file's text, which the policy has seen from now on."""
        text = self.text_of(path)
        if not isinstance(text, Refusal):
            self._note(path, text)
        return text

    def write(self, path: str, text: str) -> Refusal | None:
        """Write a policy's file: a new one, or one that it has seen as it is."""
        refused = self._why_not(path) or self._why_unseen(path)
        return refused or self._put(path, text)

    def seen_text(self, path: str) -> str | Refusal:
        """The text of a file that may be edited."""
        refused = self._why_not(path)
        if refused is not None:
            return refused
        text = self.text_of(path)
        if isinstance(text, Refusal):
            return text
        return self._why_unseen(path) or text

    def paths(self) -> list[str]:
        """All files, in order."""
        return [path for path, _ in self._files.walk() if HIDDEN not in path]

    def _why_not(self, path: str) -> Refusal | None:
        """Why tools may not write there."""
        name = normal(path)
        if isinstance(name, Refusal):
            return name
        if not self._reserved().isdisjoint(_with_folders(name)):
            return Refusal("read-only: it belongs to the environment; write another file")
        if name.rpartition("/")[2].startswith(HIDDEN):
            return Refusal(f"names that begin with {HIDDEN} are the environment's")
        return None

    def _reserved(self) -> set[str]:
        return {*self.provided, BASELINES}

    def _why_unseen(self, path: str) -> Refusal | None:
        found = self._files.read(path)
        if isinstance(found, Refusal):
            return None if found.reason == "no such file" else found
        known = self.seen.get(str(normal(path)))
        if known is None:
            return Refusal("exists; read it before changing it")
        if known != _digest(found):
            return Refusal("has changed since it was read; read it again before changing it")
        return None

    def _put(self, path: str, text: str) -> Refusal | None:
        try:
            content = text.encode()
        except UnicodeEncodeError:
            return Refusal("the text holds half of a surrogate pair, which is no character")
        if "\0" in text:
            return Refusal("the text holds a NUL character")
        self._bytes, self._written = self._bytes + len(content), self._written + 1
        if self._bytes > MOST_BYTES or self._written > MOST_FILES:
            return Refusal(
                f"more than {MOST_BYTES} bytes or {MOST_FILES} files written in this episode"
            )
        refused = self._files.write(path, content)
        if refused is None:
            self._note(path, text)
        return refused

    def _note(self, path: str, text: str) -> None:
        self.seen[str(normal(path))] = _digest(text.encode())


def _with_folders(path: str) -> list[str]:
    """The path, and the folders that it lies in."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
