"""``synthesis.json``: what was found of each set of training tasks, by whom it was looked at.

Rows are asked one by one, and each answer is kept at once: a run that was cut goes on with the others.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import confined
from benchmarks.store import FOLDER, Facts, Results, commit, machine

__all__ = ["FOLDER", "asked", "kept", "passes", "rows_of", "set_facts", "summarise", "write"]
NAME = "synthesis"
FEW = (3, 1)
LAST = "last"
"""Among what an item is asked with: whether it will not be asked again in this run."""


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a set. Raises OSError and pyarrow's errors where it is none."""
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def passes(jobs: int) -> tuple[int, ...]:
    """How many are asked side by side: all of them first, then what failed for the machine's sake, with few beside it
    and at last alone."""
    return (jobs, *(few for few in FEW if few < jobs))


def asked(
    items: Sequence[tuple[str, Facts]], work: confined.Work, path: Path, *, jobs: int, **how: Any
) -> Iterator[dict[str, Facts]]:
    """All answers so far, after each one. how: of `confined.each`.

    What the file holds of an earlier run is not asked again, unless the machine may be why it failed. Of this run such
    items are asked once more with few beside them, and those that still lack memory alone. Where items share processes
    (``in_one``), whatever failed is asked once more in one of its own. The work is told which pass is the last one
    (`LAST`).
    """
    names = {name for name, _ in items}
    answers = {name: facts for name, facts in kept(path).items() if name in names}
    cut = path.is_file() and path.read_bytes()[-1:] != b"\n"
    plan = passes(jobs)
    shared = how.pop("in_one", 1)
    beside = set[str]()  # what failed in a process that it shared
    with path.open("ab") as file:
        file.write(b"\n" if cut else b"")
        for number, side_by_side in enumerate(plan):
            again = confined.is_passing if number < 2 else confined.lacks_memory
            answers = {
                name: f for name, f in answers.items() if not again(f) and name not in beside
            }
            in_one = shared if number == 0 and len(plan) > 1 else 1
            last = {LAST: number == len(plan) - 1}
            missing = [(n, {**value, **last}) for n, value in items if n not in answers]
            found = confined.each(missing, work, jobs=side_by_side, in_one=in_one, **how)
            beside = set[str]()
            for name, facts in found:
                answers[name] = facts
                if in_one > 1 and "failed" in facts:
                    beside.add(name)
                file.write(json.dumps([name, facts]).encode() + b"\n")
                file.flush()
                yield answers
    yield answers


def kept(path: Path) -> dict[str, Facts]:
    """Answers that are there, the last of each, without a line that a kill cut off."""
    found: dict[str, Facts] = {}
    for line in path.read_bytes().splitlines(keepends=True) if path.is_file() else ():
        try:
            name, facts = json.loads(line) if line.endswith(b"\n") else (None, None)
        except ValueError:
            continue
        if name is not None:
            found[name] = facts
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
        elif what == "again":
            entry["made_again"] = sample["compared"]
            entry |= {key: len(sample[key]) for key in ("other_text", "decided_otherwise")}
        elif what == "rate":
            entry |= {key: sample[key] for key in ("tasks_a_card_hour", "cores_a_card")}
    return summary
