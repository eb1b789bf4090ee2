"""Regions of which there will be no table, and why: kept in a run's folder, so that no later run meets them again."""

from __future__ import annotations

import json
from pathlib import Path

from cuda_agent_backend.sources import source_digest
from trainer.synthesis.dataset import journal

NAME = "skipped.jsonl"


def keep(folder: Path, id: str, reason: str) -> None:
    """Note one. id: of the table that there would be, "" where none is known. May raise OSError."""
    line = {"id": id, "reason": reason, "generator": _generator()}
    with (folder / NAME).open(
        "ab", buffering=0
    ) as file:  # in one call: other processes may add to it
        file.write(json.dumps(line).encode() + b"\n")


def known(path: Path) -> frozenset[str]:
    """Ids in a file, none where there is no such file. What another generator could make nothing of this one may."""
    lines = journal.lines(path.read_bytes()) if path.exists() else []
    mine = _generator()
    return frozenset(
        str(line["id"]) for line in lines if line.get("id") and line.get("generator") == mine
    )


def _generator() -> str:
    return source_digest()[:16]
