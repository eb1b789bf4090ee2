"""How fast a set was made: what each run at it came to, kept beside the report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainer.synthesis.machine import Machine
from trainer.synthesis.one_task import PASSED

Run = dict[str, Any]
"""began: seconds since the epoch. seconds: how long it took. looked_at, passed: seed numbers, and those of them whose
task stays. jobs: tasks side by side. cores: of the machine. card: which of its devices, as ``CUDA_VISIBLE_DEVICES``."""
RUNS = "runs"


def run_of(
    new: Iterable[Mapping[str, Any]], began: float, ended: float, jobs: int, machine: Machine
) -> Run:
    """What a run came to. new: the entries that it has decided."""
    entries = list(new)
    return {
        "began": round(began, 1),
        "seconds": round(ended - began, 1),
        "looked_at": len(entries),
        "passed": sum(entry["status"] == PASSED for entry in entries),
        "jobs": jobs,
        "cores": machine.cores,
        "card": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "device_name": machine.names["device_name"],
    }


def runs_in(report: Path) -> list[Run]:
    """Those that a report tells of; none where it cannot be read."""
    try:
        found = json.loads(report.read_text(encoding="utf-8")).get(RUNS, [])
    except (OSError, ValueError, AttributeError):
        return []
    return found if isinstance(found, list) else []


def rate_of(runs: Iterable[Run]) -> dict[str, Any]:
    """Of runs on one machine after another. A card's seconds count once, however many runs shared it.

    card_seconds: of all cards. tasks_a_card_hour: that passed. cores_a_card: the most cores that a machine had for each
    card that ran at the same time. Raises ValueError without a run.
    """
    every = list(runs)
    if not every:
        raise ValueError("no run is noted")
    by_card: dict[tuple[str, str], list[Run]] = {}
    for run in every:
        by_card.setdefault((run["device_name"], run["card"]), []).append(run)
    seconds = sum(_covered(own) for own in by_card.values())
    passed = sum(run["passed"] for run in every)
    return {
        "runs": len(every),
        "looked_at": sum(run["looked_at"] for run in every),
        "passed": passed,
        "card_seconds": round(seconds, 1),
        "tasks_a_card_hour": round(3600 * passed / max(seconds, 1e-9)),
        "cores_a_card": max(run["cores"] / _cards_beside(run, every) for run in every),
    }


def _covered(runs: Iterable[Run]) -> float:
    """Seconds in which at least one of them ran."""
    total, until = 0.0, float("-inf")
    for began, ended in sorted((run["began"], run["began"] + run["seconds"]) for run in runs):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


def _cards_beside(run: Run, every: Iterable[Run]) -> int:
    """Cards with a run at the middle of this one."""
    middle = run["began"] + run["seconds"] / 2
    return len({o["card"] for o in every if o["began"] <= middle <= o["began"] + o["seconds"]})
