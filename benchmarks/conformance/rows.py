"""The file of rows: one line of JSON for each case, appended as it comes, so that a run can be cut and goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROWS, SUMMARY = "cases.jsonl", "summary.json"


class Rows:
    """The rows in a folder. identity: what a run must have in common with the rows to go on with them."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / ROWS
        self.identity = identity
        self.rows = read(self.path, identity)
        self._rewrite()

    def _rewrite(self) -> None:
        """Leave out what another run left, and half of a line that one was cut in."""
        lines = [{"run": self.identity}, *self.rows.values()]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        temporary = self.path.with_suffix(".new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.path)

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row."""
        self.rows[row["case"]] = row
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def read(path: Path, identity: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """The rows of a file by case; none where it is of another run than ``identity``. A broken line is left out."""
    found: dict[str, dict[str, Any]] = {}
    if not path.is_file():
        return found
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if "run" in value:
            if identity is not None and value["run"] != identity:
                return {}
        elif "case" in value:
            found[value["case"]] = value
    return found


def identity_of(path: Path) -> dict[str, Any]:
    """What run the rows of a file are of."""
    with path.open(encoding="utf-8") as file:
        found: dict[str, Any] = json.loads(file.readline())["run"]
    return found
