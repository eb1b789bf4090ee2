"""What people see of a run, and the one file that holds all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cuda_agent_backend.bench import run_times
from cuda_agent_backend.bench.discovery import RefusedFile
from cuda_agent_backend.bench.figures import (
    BOTH,
    MARGINS,
    MEASURED,
    TaskFigures,
    grouped,
    speedup,
    summary,
    task_figures,
)
from cuda_agent_backend.bench.provenance import commit, versions
from cuda_agent_backend.bench.runner import Bench, Machine
from cuda_agent_backend.tools import tables

if TYPE_CHECKING:
    from rich.table import Table

OVERALL = "overall"
NOTHING = "-"
TASK_COLUMNS = (
    *("task", "status", "over Inductor", "over eager", "kernels", "of roofline"),
    *("error ratio", "search"),
)


def run_facts(
    bench: Bench,
    machine: Machine,
    sources: str,
    facts: Sequence[Mapping[str, Any]],
    refused: Sequence[RefusedFile],
    missing: Sequence[str],
) -> dict[str, Any]:
    """The content of ``bench.json``. missing: tasks that have no result yet."""
    figures = [task_figures(one) for one in facts]
    return {
        "machine": dict(machine.facts),
        "ceilings": dict(machine.ceilings),
        "versions": versions(),
        "commit": commit(),
        "sources": sources,
        "arguments": asdict(bench),
        "runs": run_times.of(bench.out),
        "tasks": {
            one["name"]: {**one, "figures": figure.to_json()}
            for one, figure in zip(facts, figures, strict=True)
        },
        "refused": [{"name": f.name, "file": str(f.path), "reason": f.reason} for f in refused],
        "missing": list(missing),
        "summary": {OVERALL: summary(figures), "groups": grouped(figures)},
    }


def as_it_should_be(found: Mapping[str, Any]) -> bool:
    """Whether every file was a task, and every task was measured and correct."""
    overall = found["summary"][OVERALL]
    return not found["refused"] and not found["missing"] and overall["correct"] == overall["tasks"]


def task_line(task: TaskFigures) -> tuple[str, ...]:
    """A row of the table of tasks."""
    over = {name: tables.interval((i.low, i.median, i.high)) for name, i in task.over.items()}
    return (
        task.name,
        status_of(task),
        over.get("inductor", NOTHING),
        over.get("eager", NOTHING),
        f"{task.kernels} of {task.regions}",
        number(task.of_floor, ".0%"),
        number(task.error_ratio, ".2f"),
        f"{task.search_seconds:.0f} s",
    )


def status_of(task: TaskFigures) -> str:
    """A task's state in one or two words."""
    if task.status != MEASURED:
        return task.status.replace("_", " ")
    if not task.correct:
        return "wrong"
    words = [
        *(["noisy"] if task.noisy else []),
        *(["fallback"] if task.fallback else []),
        *(["at the limit"] if task.at_limit else []),
    ]
    return ", ".join(words) or "correct"


def task_table(tasks: Sequence[TaskFigures]) -> Table:
    """One line a task."""
    return tables.plain_table(TASK_COLUMNS, map(task_line, tasks))


def summary_rows(found: Mapping[str, Any], baselines: Sequence[str]) -> dict[str, str]:
    """What is shown of a group, by its name in words."""
    rows = {"tasks": str(found["tasks"]), "correct": f"{found['pass_rate']:.0%}"}
    for count in ("failed", "timed_out", "wrong", "noisy", "at_limit"):
        rows[count.replace("_", " ")] = str(len(found[count]))
    rows["on Inductor's code"] = str(found["fallbacks"])
    margins = " / ".join(f"{margin:.0%}".rstrip("%") for margin in MARGINS)
    for over in baselines:
        shares = found["faster"].get(over, {}).values()
        words = " / ".join(f"{share:.0%}" for share in shares)
        rows[f"faster than {baseline_in_words(over)} by {margins} %"] = words or NOTHING
    for over in baselines:
        mean = number(found["geomean"].get(over), ".3f")
        rows[f"geometric mean over {baseline_in_words(over)}"] = mean
    rows["of the roofline"] = number(found["of_floor"], ".0%")
    rows["worst error ratio"] = number(found["worst_error_ratio"], ".2f")
    rows["kernels"] = f"{found['kernels']} of {found['regions']}"
    rows["bugs of the code generator"] = str(found["codegen_bugs"])
    rows["search"] = f"{found['search_seconds']:.0f} s"
    return rows


def baseline_in_words(baseline: str) -> str:
    """A baseline in words."""
    known = {"inductor": "Inductor", BOTH: "the faster of both", "max_autotune": "max-autotune"}
    return known.get(baseline, baseline)


def summary_table(found: Mapping[str, Any]) -> Table:
    """All figures of all groups. found: the "summary" of `whole`."""
    groups = [found[OVERALL], *found["groups"].values()]
    columns = [summary_rows(group, list(found[OVERALL]["faster"])) for group in groups]
    rows = [(words, *(column[words] for column in columns)) for words in columns[0]]
    names = ("", "all tasks", *found["groups"])
    return tables.plain_table(names, rows, "faster: by the lower 95 % bound")


def task_sentence(facts: Mapping[str, Any]) -> str:
    """One line about a task that is done."""
    task = task_figures(facts)
    over = speedup(task, "inductor")
    figure = f", {over:.2f} over Inductor" if over is not None else ""
    return f"{task.name}: {status_of(task)}{figure}{f'; {task.reason}' if task.reason else ''}"


def number(value: float | None, form: str) -> str:
    """A figure, or a dash."""
    return NOTHING if value is None else format(value, form)
