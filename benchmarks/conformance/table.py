"""The result file of conformance runs: ``python -m benchmarks.conformance.table DIR...`` writes conformance.json.

One entry for each target: machine, versions, commit, summary, a table by operator with reasons, and every case with its
outcome. The summary's ``planned``: how many cases a run of all operators has, where this torch is the run's. Runs of
one target on parts of the operators are merged; of a case in several, the last one counts. A target that none of the
folders has stays as it is in the file.

``--again DIR``: a run at a later commit, of operators that had bad cases. Its rows take the place of the cases that it
has; where none of the folders has its target, they take the place of whole operators in the file, whose seconds and
notes stay those of the run before. The entry's ``again`` says of each such run: commit, machine, and what each case
that was bad had been before.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.conformance.cases import Cell, cases_of
from benchmarks.conformance.database import dtypes_of, operators
from benchmarks.conformance.rows import ROWS, identity_of, read
from benchmarks.conformance.summary import (
    BAD,
    OUTCOMES,
    TASKS,
    bad,
    by_operator,
    operator_of,
    share,
    summarise,
)
from benchmarks.store import FOLDER, versions
from cuda_agent_backend.json_values import write_json

NAME = "conformance.json"


Entry = dict[str, Any]
"""What the file holds of a target."""


def merged(
    folders: Iterable[Path], later: Iterable[Path] = (), known: Mapping[str, Entry] | None = None
) -> dict[str, Entry]:
    """By target, what the rows of all folders say. later: runs at another commit, whose rows take the place of those.
    known: what the file holds. Raises ValueError where runs of a target are not alike."""
    runs: dict[str, dict[str, Any]] = {}
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for folder in folders:
        identity = identity_of(folder / ROWS)
        target = identity["target"]
        first = runs.setdefault(target, identity)
        if (first["commit"], first["versions"]) != (identity["commit"], identity["versions"]):
            raise ValueError(
                f"{folder} is of another commit or other versions than the folders before"
            )
        rows.setdefault(target, {}).update(read(folder / ROWS))
    entries = {target: _entry(runs[target], list(own.values())) for target, own in rows.items()}
    for folder in later:
        target = identity_of(folder / ROWS)["target"]
        before = entries.get(target) or (known or {}).get(target)
        if before is None:
            raise ValueError(f"{folder} takes cases again, but nothing has a run on {target}")
        if target in rows:
            entries[target] = _taken_again(runs[target], before, rows[target], folder)
        else:
            entries[target] = _operators_again(before, folder)
    return entries


def _taken_again(
    run: Mapping[str, Any], entry: Entry, rows: dict[str, dict[str, Any]], folder: Path
) -> Entry:
    """The entry of a run with the rows of a later one in place of its own. rows: all of the entry, by case, changed
    here. Raises ValueError where the later run is not of the same form, or has cases that the entry has not."""
    found = _alike(run, folder)
    if strange := set(found) - set(rows):
        raise ValueError(f"{folder} has cases that the run before has not: {sorted(strange)[:3]}")
    before = bad(rows[name] for name in found)
    rows.update(found)
    return {**_entry(run, list(rows.values())), "again": _noted(entry, folder, found, before)}


def _operators_again(entry: Entry, folder: Path) -> Entry:
    """An entry of the file with the operators of a later run in place of its own; others of that run are left out, as
    the entry may be of a part of all. Raises ValueError where the later run is not of the same form, or has not the
    same cases of each operator."""
    every = _alike(entry, folder)
    found = {case: row for case, row in every.items() if operator_of(row) in entry["operators"]}
    rows = list(found.values())
    again = by_operator(rows)
    cells = {cell: text for cell, text in entry["cases"].items() if cell.split("|")[0] in again}
    if different := set(found) ^ _cases(cells):
        raise ValueError(f"{folder} has other cases of its operators: {sorted(different)[:3]}")
    kept = [one for one in entry["bad"] if one["case"] not in found]
    before = [one for one in entry["bad"] if one["case"] in found]
    own = _brief(bad(rows))
    return {
        **entry,
        "summary": _with_operators(entry, again),
        "bad": sorted([*kept, *own], key=lambda one: BAD.index(one["outcome"])),
        "operators": {**entry["operators"], **again},
        "cases": dict(sorted({**entry["cases"], **_compact(rows)}.items())),
        "again": _noted(entry, folder, found, before),
    }


def _with_operators(entry: Entry, again: Mapping[str, Entry]) -> Entry:
    """The summary of an entry with what these operators came to in place of what they had come to."""
    summary = {**entry["summary"]}
    counts = {name: Counter(summary[name]) for name in ("outcomes", "tasks", "why_left")}
    for name, now in again.items():
        for counted, total in counts.items():
            total.subtract(entry["operators"][name][counted])
            total.update(now[counted])
    outcomes, tasks, why = counts.values()
    return {
        **summary,
        "outcomes": {name: outcomes[name] for name in OUTCOMES if outcomes[name]},
        **{name.replace(" ", "_"): outcomes[name] for name in BAD},
        "tasks": {name: tasks[name] for name in TASKS if tasks[name]},
        "share_of_tasks_covered": share(tasks),
        "why_left": {text: count for text, count in why.most_common() if count > 0},
    }


def _alike(run: Mapping[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
    """The rows of a later run, by case. Raises ValueError where it is not of the same form."""
    identity = identity_of(folder / ROWS)
    for name in ("versions", "rounds", "schedules"):
        if identity[name] != run[name]:
            raise ValueError(f"{folder} has other {name} than the run whose cases it takes again")
    return read(folder / ROWS)


def _noted(
    entry: Entry, folder: Path, found: Mapping[str, Any], before: Iterable[Mapping[str, Any]]
) -> list[Entry]:
    """The entry's ``again`` with this run. before: its cases that had been bad."""
    identity = identity_of(folder / ROWS)
    again = {
        "commit": identity["commit"],
        "machine": identity["machine"],
        "cases": len(found),
        "bad_before": _brief(before),
    }
    return [*entry.get("again", ()), again]


def _brief(rows: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """What the file says of cases that are bad, or were."""
    return [{name: row[name] for name in ("case", "outcome", "why")} for row in rows]


def planned(identity: Mapping[str, Any]) -> dict[str, int]:
    """How many cases a run of all operators has; nothing where it had another torch than this process, whose database
    is another one."""
    if identity["versions"].get("torch") != versions()["torch"]:
        return {}
    target = identity["target"]
    cells = (Cell(name, dtype) for name in operators() for dtype in dtypes_of(name, target))
    return {"planned": sum(len(list(cases_of(cell, identity["rounds"]))) for cell in cells)}


def _entry(identity: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        **{
            name: identity[name]
            for name in ("machine", "versions", "commit", "rounds", "schedules")
        },
        "summary": {**summarise(rows), **planned(identity)},
        "bad": _brief(bad(rows)),
        "operators": by_operator(rows),
        "cases": _compact(rows),
    }


def _compact(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """For each operator and dtype the outcomes of its cases: ``number:outcome`` in words of `OUTCOMES`."""
    found: dict[str, list[tuple[int, str]]] = {}
    for row in rows:
        cell, _, number = row["case"].rpartition("|")
        found.setdefault(cell, []).append((int(number), row["outcome"]))
    return {
        cell: ", ".join(f"{n}:{what}" for n, what in sorted(own))
        for cell, own in sorted(found.items())
    }


def _cases(cells: Mapping[str, str]) -> set[str]:
    """The names of the cases that `_compact` has put together."""
    return {
        f"{cell}|{case.partition(':')[0]}"
        for cell, text in cells.items()
        for case in text.split(", ")
    }


def write(
    folders: Iterable[Path], folder: Path = FOLDER, later: Iterable[Path] = ()
) -> dict[str, Any]:
    """Put the runs' targets into the result file; what it holds then. later: as for `merged`."""
    path = folder / NAME
    before = json.loads(path.read_text(encoding="utf-8"))["targets"] if path.is_file() else {}
    targets = {**before, **merged(folders, later, before)}
    value = {"outcomes": OUTCOMES, "targets": dict(sorted(targets.items()))}
    write_json(path, value)
    return value


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="what --out of the runs was")
    parser.add_argument(
        "--again", nargs="*", type=Path, default=[], help="what --out of later runs was"
    )
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where the result file is written"
    )
    args = parser.parse_args()
    if not args.folders and not args.again:
        parser.error("name a folder, or one with --again")
    for target, entry in write(args.folders, args.folder, args.again)["targets"].items():
        said = {name: entry["summary"][name.replace(" ", "_")] for name in BAD}
        print(f"{target}: {entry['summary']['cases']} cases, {said}")


if __name__ == "__main__":
    main()
