"""The journal of a run: one JSON line a task, written when it is decided, so that a run goes on where it ended."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "journal.jsonl"


@dataclass(frozen=True)
class OtherRun:
    """The folder holds the journal of a run with other settings."""

    path: Path
    differs: str

    @property
    def reason(self) -> str:
        """One line, with what to do."""
        return (
            f"{self.path} is of a run with another {self.differs}; give another --out, or remove it"
        )


def lines(content: bytes) -> list[dict[str, Any]]:
    """The values of a journal's lines; without one that a kill cut off."""
    return [value for _, value in _whole(content)]


def _whole(content: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for line in content.splitlines(keepends=True):
        try:
            found = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            found = None
        if isinstance(found, dict):
            yield line, found


class Journal:
    """Lines by seed number. identity: what must be the same for a run to go on."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self.entries: dict[int, dict[str, Any]] = {}
        self._identity = dict(identity)

    def open(self) -> OtherRun | None:
        """Read what is there; a line that a kill cut off is removed. May raise OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not self._path.exists() or not self._path.stat().st_size:
            self._append({"identity": self._identity})
            return None
        held = self._path.read_bytes()
        whole = list(_whole(held))
        first = whole[0][1].get("identity", {}) if whole else {}
        for name, value in self._identity.items():
            if first.get(name) != value:
                return OtherRun(self._path, name)
        self.entries = {entry["seed"]: entry for _, entry in whole[1:]}
        kept = b"".join(line for line, _ in whole)
        if kept != held:
            new = self._path.with_suffix(".new")
            new.write_bytes(kept)
            new.replace(self._path)
        return None

    def add(self, entry: Mapping[str, Any]) -> None:
        """Keep an entry. Raises OSError where the disk is full; what was kept before stays readable."""
        self._append(entry)
        self.entries[entry["seed"]] = dict(entry)

    def _append(self, value: Mapping[str, Any]) -> None:
        data = json.dumps(value, sort_keys=True).encode() + b"\n"
        with self._path.open("ab") as file:
            before = file.tell()
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                os.truncate(self._path, before)
                raise
