"""``synthesis.json``: what was found of each set of training tasks, by whom it was looked at."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.store import FOLDER, Facts, Results, commit, machine

__all__ = ["FOLDER", "rows_of", "set_facts", "summarise", "write"]
NAME = "synthesis"


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a set. Raises OSError and pyarrow's errors where it is none."""
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def write(folder: Path, name: str, sample: Facts) -> None:
    """Put a sample beside those that are there. Each has the machine and the commit that it is from."""
    results = Results(NAME, summarise, folder)
    samples: dict[str, Facts] = {}
    if results.path.is_file():
        samples = json.loads(results.path.read_text(encoding="utf-8"))["samples"]
    samples[name] = {**sample, "commit": commit(), "machine": machine()}
    folder.mkdir(parents=True, exist_ok=True)
    results.write(samples)


def set_facts(rows: Sequence[Mapping[str, Any]]) -> Facts:
    """Of a set: its size and what it is made of."""
    total = max(1, len(rows))
    families = Counter(family for row in rows for family in set(row["families"]))
    lengths = Counter(len(row["ops"]) for row in rows)
    largest, most = max(families.items(), key=lambda pair: pair[1], default=("", 0))
    return {
        "tasks": len(rows),
        "families": len(families),
        "largest_family": largest,
        "share_of_largest_family": round(most / total, 4),
        "share_of_two_operators": round(lengths[2] / total, 4),
        "operators": {str(n): c for n, c in sorted(lengths.items())},
        "dtypes": dict(Counter(row["dtype"] for row in rows).most_common()),
        "training": sum(bool(row["training"]) for row in rows),
        "devices": dict(Counter(row["device_name"] for row in rows).most_common()),
    }


def summarise(samples: Mapping[str, Facts]) -> Facts:
    """The table: for each set what it holds, what the check found and what the replay came to."""
    summary: Facts = {}
    for name, sample in samples.items():
        what, _, of = name.partition(" ")
        entry = summary.setdefault(of, {})
        if what == "check":
            entry["drawn"] = sample["drawn"]
            entry["found"] = {kind: n for kind, n in sample["found"].items() if n}
            entry["rows_with_a_fault"] = len(sample["wrong"])
        elif what == "replay":
            entry |= sample["set"]
            entry |= {key: sample[key] for key in ("replayed", "regions", "covered", "left")}
    return summary
