"""Plots of a run, as SVG and PNG. matplotlib is optional: without it there are none, and that is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent_backend.bench.figures import BOTH, TaskFigures, speedup

FORMATS = ("svg", "png")
TICKS = (0.1, 0.2, 0.5, 0.8, 1, 1.2, 1.5, 2, 3, 5, 7, 10, 20, 50, 100, 200, 500, 1000)
LABELS = {"inductor": "Inductor", "eager": "eager", BOTH: "the faster of both"}


@dataclass(frozen=True)
class NoPlots:
    """Why there are none."""

    reason: str


@dataclass(frozen=True)
class Bar:
    """A task's speed-up over Inductor with its interval."""

    name: str
    median: float
    low: float
    high: float


def sorted_bars(tasks: Sequence[TaskFigures]) -> list[Bar]:
    """The speed-ups over Inductor, the least first; those of fallbacks are 1, without an interval."""
    bars = []
    for task in tasks:
        median = speedup(task, "inductor")
        if median is None:
            continue
        own = task.over["inductor"]
        low, high = (1.0, 1.0) if task.fallback else (own.low, own.high)
        bars.append(Bar(task.name, median, low, high))
    return sorted(bars, key=lambda bar: bar.median)


def cumulative(tasks: Sequence[TaskFigures], baseline: str) -> tuple[list[float], list[float]]:
    """Speed-ups, and the share of all tasks that reach each. What has no result reaches none."""
    known = (speedup(task, baseline) for task in tasks)
    values = sorted((value for value in known if value is not None), reverse=True)
    return values, [(rank + 1) / len(tasks) for rank in range(len(values))]


def floors(tasks: Sequence[TaskFigures]) -> list[tuple[str, float]]:
    """The fraction of the roofline floor of each task that has one, the least first."""
    known = [(t.name, t.of_floor) for t in tasks if t.timed and t.of_floor is not None]
    return sorted(known, key=lambda item: item[1])


def draw(
    tasks: Sequence[TaskFigures], folder: Path, formats: Sequence[str] = FORMATS
) -> list[Path] | NoPlots:
    """All plots below a folder; the files."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        return NoPlots(f"no plots: {error}; pip install 'cuda_agent[bench]'")
    if not any(task.timed for task in tasks):
        return NoPlots("no plots: no task has a result")
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, Callable[[Any, Sequence[TaskFigures]], None]] = {
        "over-inductor": _over_inductor,
        "cumulative": _cumulative,
        "roofline": _roofline,
    }
    files = []
    for name, paint in made.items():
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        paint(figure.subplots(), tasks)
        for form in formats:
            files.append(folder / f"{name}.{form}")
            figure.savefig(files[-1], dpi=150)
    return files


def _over_inductor(axes: Any, tasks: Sequence[TaskFigures]) -> None:
    bars = sorted_bars(tasks)
    places, medians = range(len(bars)), [bar.median for bar in bars]
    errors = [
        [bar.median - bar.low for bar in bars],
        [bar.high - bar.median for bar in bars],
    ]
    axes.errorbar(places, medians, yerr=errors, fmt="o", markersize=4, capsize=2)
    axes.axhline(1.0, color="grey", linewidth=1)
    axes.set_yscale("log")
    _speedup_ticks(axes.yaxis)
    axes.set_ylabel("speed-up over Inductor, 95 % interval")
    _names(axes, [bar.name for bar in bars])


def _cumulative(axes: Any, tasks: Sequence[TaskFigures]) -> None:
    for baseline, label in LABELS.items():
        values, reached = cumulative(tasks, baseline)
        axes.step(values, reached, where="post", label=f"over {label}")
    axes.axvline(1.0, color="grey", linewidth=1)
    axes.set_xscale("log")
    _speedup_ticks(axes.xaxis)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("speed-up of at least")
    axes.set_ylabel("share of tasks")
    axes.legend()


def _roofline(axes: Any, tasks: Sequence[TaskFigures]) -> None:
    known = floors(tasks)
    axes.bar(range(len(known)), [share for _, share in known])
    axes.axhline(1.0, color="grey", linewidth=1)
    axes.set_ylabel("roofline floor over time")
    _names(axes, [name for name, _ in known])


def _names(axes: Any, names: Sequence[str], most: int = 40) -> None:
    """Names below, as long as they can be read."""
    if len(names) > most:
        axes.set_xlabel(f"{len(names)} tasks")
        return
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)


def _speedup_ticks(axis: Any) -> None:
    """Plain numbers on a logarithmic axis."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    axis.set_major_locator(FixedLocator(TICKS))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())
