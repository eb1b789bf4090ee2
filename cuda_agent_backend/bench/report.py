"""What people see of a run, and the one file that holds all of it."""

from __future__ import annotations

import logging
import time
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
from cuda_agent_backend.json_values import write_json
from cuda_agent_backend.tools import tables

if TYPE_CHECKING:
    from rich.table import Table

log = logging.getLogger(__name__)
OVERALL = "overall"
WRITING_SHARE = 20.0
"""Seconds of the run for each second that writing all results took, before they are written again."""
NOTHING = "-"
TASK_COLUMNS = (
    *("task", "status", "over Inductor", "over eager", "kernels", "of roofline"),
    *("error ratio", "search"),
)


class Book:
    """``bench.json``, written as tasks end: a run that is cut off still has its table.

    refused: files that are no tasks. names: of all tasks, in their order.
    """

    def __init__(
        self,
        bench: Bench,
        machine: Machine,
        sources: str,
        refused: Sequence[RefusedFile],
        names: Sequence[str],
    ) -> None:
        self.path = bench.out / "bench.json"
        self._bench, self._names = bench, names
        self._head = {
            "machine": dict(machine.facts),
            "ceilings": dict(machine.ceilings),
            "versions": versions(),
            "commit": commit(),
            "sources": sources,
            "arguments": asdict(bench),
            "refused": [{"name": f.name, "file": str(f.path), "reason": f.reason} for f in refused],
        }
        self._tasks: dict[str, tuple[Mapping[str, Any], TaskFigures]] = {}
        self._next_write = 0.0

    def add(self, facts: Mapping[str, Any]) -> None:
        """Keep a task's result, instead of an earlier one of the same name."""
        self._tasks[facts["name"]] = facts, task_figures(facts)

    def facts(self) -> dict[str, Any]:
        """The content of the file."""
        there = {name: self._tasks[name] for name in self._names if name in self._tasks}
        figures = [figure for _, figure in there.values()]
        return {
            **self._head,
            "runs": run_times.of(self._bench.out),
            "tasks": {
                name: {**facts, "figures": figure.to_json()}
                for name, (facts, figure) in there.items()
            },
            "missing": [name for name in self._names if name not in there],
            "summary": {OVERALL: summary(figures), "groups": grouped(figures)},
        }

    def write(self) -> dict[str, Any]:
        """Write the file; its content. May raise OSError."""
        content = self.facts()
        write_json(self.path, content)
        return content

    def write_along(self) -> None:
        """Write the file, unless the last times took more than a small part of the run. A failure is only logged."""
        begin = time.monotonic()
        if begin < self._next_write:
            return
        try:
            self.write()
        except OSError as error:
            log.warning("%s was not written: %s", self.path, error)
        ended = time.monotonic()
        self._next_write = ended + WRITING_SHARE * (ended - begin)


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
