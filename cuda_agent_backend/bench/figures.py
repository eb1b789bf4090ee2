"""Figures of tasks and of groups of tasks: pure functions of what was measured.

A task is *correct* if all its draws were. A correct task in which no kernel of ours ran, and no graph kept eager's
layouts, is a *fallback*: Inductor's own code, so exactly as fast as that, and never counted as faster than anything.
Where Inductor differed from itself the task is *noisy*: it is correct or not, but its times are no result, unless ours
was faster at its worst than all others at their best (`sandbox.timing.decision.at_best`), which then is the result.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sandbox.timing.decision import THRESHOLD, Control, Interval, at_best, control, interval, ratios

BASELINES = ("eager", "inductor")
BOTH = "both"
MARGINS = (0.0, 0.05, 0.2, 1.0)
"""By how much faster, in parts."""
AT_LIMIT = 1.05
"""A faster baseline within this of the roofline floor leaves no room for a win."""
MEASURED, FAILED, TIMED_OUT = "measured", "failed", "timed_out"


@dataclass(frozen=True)
class TaskFigures:
    """One task. over: the speed-up of ours over each baseline, by device time; over_wall: by wall time.

    eager_layouts: graphs that keep eager's layouts. replayed: those replayed from a CUDA graph. of_floor: the roofline
    floor over our time. room: the faster baseline's time over the floor. error_ratio: our error over eager's, the worst
    draw. reason: why it is not correct, or noisy. codegen_bugs: kernels that a bug of the code generator cost.
    """

    name: str
    group: str
    status: str
    correct: bool = False
    reason: str = ""
    kernels: int = 0
    eager_layouts: int = 0
    replayed: int = 0
    regions: int = 0
    noisy: bool = False
    over: Mapping[str, Interval] = field(default_factory=dict)
    over_wall: Mapping[str, Interval] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    of_floor: float | None = None
    room: float | None = None
    error_ratio: float | None = None
    search_seconds: float = 0.0
    codegen_bugs: int = 0

    @property
    def fallback(self) -> bool:
        """Whether Inductor's own code ran, and right."""
        return self.correct and not (self.kernels or self.eager_layouts or self.replayed)

    @property
    def timed(self) -> bool:
        """Whether its times are a result."""
        return self.correct and not self.noisy

    @property
    def at_limit(self) -> bool:
        """Whether the faster baseline is as fast as the machine allows."""
        return self.room is not None and self.room < AT_LIMIT

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        derived = {"fallback": self.fallback, "at_limit": self.at_limit}
        return {**asdict(self), **derived}


def task_figures(facts: Mapping[str, Any]) -> TaskFigures:
    """The figures of one task from its facts, as `results` keeps them."""
    name, group, status = (str(facts[key]) for key in ("name", "group", "status"))
    searched = (facts.get("search") or {}).get("seconds", 0.0)
    if status != MEASURED:
        reason = f"{facts.get('phase')}: {facts.get('reason')}"
        return TaskFigures(name, group, status, reason=reason, search_seconds=searched)
    found = facts["measure"]
    samples = found["samples"]
    own = control(samples["device"]["inductor"], samples["device"]["inductor_again"])
    wrong = next((draw["wrong"] for draw in found["draws"] if draw["wrong"]), "")
    over, noisy = device_speedups(samples["device"], own)
    seconds = {name: statistics.median(values) for name, values in samples["device"].items()}
    floor = float(found["floor"]["seconds"])
    return TaskFigures(
        name,
        group,
        status,
        correct=not wrong,
        reason=wrong or own.reason,
        kernels=int(found["kernels"]),
        eager_layouts=int(found.get("eager_layouts", 0)),
        replayed=int(found.get("replayed", 0)),
        regions=int(found["regions"]),
        noisy=noisy,
        over=over,
        over_wall=speedups(samples["wall"]),
        seconds=seconds,
        of_floor=floor / seconds["cuda_agent"],
        room=min(seconds[name] for name in BASELINES) / floor if floor > 0 else None,
        error_ratio=max(_error_ratio(draw) for draw in found["draws"]),
        search_seconds=searched,
        codegen_bugs=len(found.get("codegen_bugs", {})),
    )


def _error_ratio(draw: Mapping[str, Any]) -> float:
    """JSON has no infinity: of a result that is not finite where eager's is, the ratio is null."""
    ratio = draw["error_ratio"]
    return math.inf if ratio is None else float(ratio)


def speedups(samples: Mapping[str, Sequence[float]]) -> dict[str, Interval]:
    """The speed-up of ours over every baseline that was timed."""
    others = [name for name in samples if name not in ("cuda_agent", "inductor_again")]
    return {name: interval(ratios(samples[name], samples["cuda_agent"])) for name in others}


def device_speedups(
    samples: Mapping[str, Sequence[float]], own: Control
) -> tuple[dict[str, Interval], bool]:
    """The speed-up of ours over every baseline, and whether it is no result. own: Inductor against itself."""
    over = speedups(samples)
    if not own.scatters:
        return over, not own.quiet
    every = {**samples, "inductor": [*samples["inductor"], *samples["inductor_again"]]}
    sure = {name: at_best(every[name], samples["cuda_agent"]) for name in over}
    wins = all(found.low > THRESHOLD for found in sure.values())
    return (sure, False) if wins else (over, True)


def speedup(task: TaskFigures, baseline: str) -> float | None:
    """What counts as a task's speed-up over a baseline, or over the faster of eager and Inductor ("both").

    None where there is no result. A fallback is as fast as Inductor, by definition rather than by measurement.
    """
    if not task.timed:
        return None
    if baseline == BOTH:
        values = [speedup(task, name) for name in BASELINES]
        return min((value for value in values if value is not None), default=None)
    if baseline == "inductor" and task.fallback:
        return 1.0
    return task.over[baseline].median if baseline in task.over else None


def is_faster(
    task: TaskFigures, baseline: str, margin: float, bound: Callable[[Interval], float]
) -> bool:
    """Whether a task is faster than a baseline, or both eager and Inductor, by more than a margin.

    bound: what of the interval has to be: its lower bound for what is proven, its median for what was seen.
    """
    if not task.timed or task.fallback:
        return False
    wanted = BASELINES if baseline == BOTH else (baseline,)
    return all(name in task.over and bound(task.over[name]) > 1 + margin for name in wanted)


def shares(
    tasks: Sequence[TaskFigures], baseline: str, bound: Callable[[Interval], float]
) -> dict[str, float]:
    """The share of all tasks that are faster than a baseline, by margin in per cent."""
    return {
        f"{margin:.0%}".rstrip("%"): _part(
            sum(is_faster(task, baseline, margin, bound) for task in tasks), len(tasks)
        )
        for margin in MARGINS
    }


def geomean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of the positive values that there are; None without any."""
    known = [value for value in values if value is not None and value > 0]
    return statistics.geometric_mean(known) if known else None


def summary(tasks: Sequence[TaskFigures]) -> dict[str, Any]:
    """The figures of some tasks. Shares are of all of them; a geometric mean is over those that have a result."""
    names = _baselines(tasks)
    errors = [task.error_ratio for task in tasks if task.error_ratio is not None]
    measured = [task for task in tasks if task.status == MEASURED]
    return {
        "tasks": len(tasks),
        "correct": sum(task.correct for task in tasks),
        "pass_rate": _part(sum(task.correct for task in tasks), len(tasks)),
        "failed": _names(task for task in tasks if task.status == FAILED),
        "timed_out": _names(task for task in tasks if task.status == TIMED_OUT),
        "wrong": _names(task for task in measured if not task.correct),
        "fallbacks": sum(task.fallback for task in tasks),
        "noisy": _names(task for task in measured if task.noisy),
        "at_limit": _names(task for task in measured if task.at_limit),
        "faster": {name: shares(tasks, name, lambda found: found.low) for name in names},
        "faster_by_median": {
            name: shares(tasks, name, lambda found: found.median) for name in names
        },
        "timed": sum(task.timed for task in tasks),
        "geomean": {name: geomean(speedup(task, name) for task in tasks) for name in names},
        "geomean_wall": {
            name: geomean(_wall(task, name) for task in tasks) for name in names if name != BOTH
        },
        "of_floor": geomean(task.of_floor for task in tasks if task.timed),
        "worst_error_ratio": max(errors, default=None),
        "search_seconds": math.fsum(task.search_seconds for task in tasks),
        "kernels": sum(task.kernels for task in tasks),
        "regions": sum(task.regions for task in tasks),
        "codegen_bugs": sum(task.codegen_bugs for task in tasks),
    }


def grouped(tasks: Sequence[TaskFigures]) -> dict[str, dict[str, Any]]:
    """The summary of each group, in the order in which they come."""
    groups = dict.fromkeys(task.group for task in tasks)
    return {group: summary([task for task in tasks if task.group == group]) for group in groups}


def _wall(task: TaskFigures, baseline: str) -> float | None:
    found = task.over_wall.get(baseline)
    return found.median if task.timed and found is not None else None


def _baselines(tasks: Sequence[TaskFigures]) -> list[str]:
    """Eager, Inductor, both, and whatever else any task was timed against."""
    more = dict.fromkeys(name for task in tasks for name in task.over if name not in BASELINES)
    return [*BASELINES, BOTH, *more]


def _names(tasks: Iterable[TaskFigures]) -> list[str]:
    return [task.name for task in tasks]


def _part(some: int, of: int) -> float:
    return some / of if of else 0.0
