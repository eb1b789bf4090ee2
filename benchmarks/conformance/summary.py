"""Figures of a run: outcomes of cases, tasks that are covered, what is wrong, by operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

BAD = ("wrong", "raises", "crash", "hangs", "does not compile", "bug")
"""Outcomes that must not be, the worst first."""
OUTCOMES = {
    "wrong": "results differ from what eager and Inductor agree on",
    "raises": "a forced graph raises where Inductor's own code runs",
    "crash": "the process died in code of ours",
    "hangs": "no answer in time from code of ours",
    "does not compile": "a kernel's source does not compile",
    "bug": "the code generator or the pass failed, and the graph ran without a kernel",
    "covered": "every region ran a kernel of ours, and the results are right",
    "partly covered": "some regions did, and the results are right",
    "left": "no region has a kernel; the reasons say why",
    "refused": "a kernel was generated, but the compiler's rules or the launcher refused it",
    "no region": "the graph has nothing that a kernel could replace",
    "no tensors": "nothing to compute with, or no tensor comes out",
    "unsettled": "eager gives something else each time, so nothing can be compared",
    "inductor fails": "Inductor itself does not compile or run it",
    "eager fails": "eager itself does not run it",
    "not drawn": "the database has no sample that eager takes",
}
"""What came of a case, with what it means."""
TASKS = ("covered", "left", "refused", "does not compile", "bug")


def summarise(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The whole run. tasks: regions of all graphs, those of one case that are alike counted once. seconds: of all
    cases one after another by the clock; cpu_seconds: of processor time. Neither has workers' starts, nor cases that
    killed one."""
    kept = list(rows)
    outcomes = Counter(row["outcome"] for row in kept)
    tasks = Counter(part["status"] for row in kept for part in row["parts"])
    return {
        "cases": len(kept),
        "operators": len({operator_of(row) for row in kept}),
        "outcomes": {name: outcomes[name] for name in OUTCOMES if outcomes[name]},
        **{name.replace(" ", "_"): outcomes[name] for name in BAD},
        "tasks": {name: tasks[name] for name in TASKS if tasks[name]},
        "share_of_tasks_covered": share(tasks),
        "as_inductor": sum(any(n.startswith("as inductor") for n in notes(row)) for row in kept),
        "unsettled_values": sum(any(n.startswith("unsettled") for n in notes(row)) for row in kept),
        "why_left": dict(reasons(kept).most_common(40)),
        "seconds": round(sum(row.get("seconds", 0.0) for row in kept)),
        "cpu_seconds": round(sum(row.get("cpu_seconds", 0.0) for row in kept)),
    }


def by_operator(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each operator: cases by outcome, tasks by what became of them, the share covered, and reasons."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(operator_of(row), []).append(row)
    found = {}
    for name, own in sorted(groups.items()):
        tasks = Counter(part["status"] for row in own for part in row["parts"])
        found[name] = {
            "outcomes": dict(Counter(row["outcome"] for row in own).most_common()),
            "tasks": dict(tasks.most_common()),
            "share": share(tasks),
            "why_left": dict(reasons(own).most_common(3)),
        }
    return found


def bad(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows that must not be, the worst first."""
    return sorted(
        (row for row in rows if row["outcome"] in BAD), key=lambda r: BAD.index(r["outcome"])
    )


def share(tasks: Counter[str]) -> float | None:
    """Covered tasks among all, None where there are none."""
    return round(tasks["covered"] / tasks.total(), 4) if tasks.total() else None


def reasons(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Why tasks have no kernel, with how many."""
    return Counter(
        f"{part['status']}: {part['reason']}"[:200]
        for row in rows
        for part in row["parts"]
        if part["status"] != "covered"
    )


def operator_of(row: Mapping[str, Any]) -> str:
    """The name of its operator."""
    return str(row["case"]).split("|")[0]


def notes(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What was noted beside the outcome."""
    return tuple(row.get("notes", ()))
