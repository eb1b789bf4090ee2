"""What a table of measured schedules holds: one `Table` for each region and device, one `Row` for each candidate."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.task.task import Task
from sandbox.timing.machine import Ceilings
from sandbox.verdict import Baselines

CORRECT = "correct"


@dataclass(frozen=True)
class Row:
    """One candidate.

    candidate: its name, as tools say it. schedules: those that print this source, as JSON, the first in order first.
    rank: the place of the first in the space, proposals before all others. status: "correct", or what a profile or the
    compiler would say instead; answer: that answer as JSON, "" where it is correct. error_ratio: the error over
    eager's, of the worst output. facts: what the compiler told of each kernel, as JSON; registers a thread, the largest
    of its kernels; spill_bytes of all; shared_bytes, the largest; occupancy, the least; None where it told none.

    compile_s, check_s, time_s: seconds of each step, the last of all its runs. seconds: timings of the device (on cpu
    by the wall), each with the faster baseline's in the same round; retimed: the same among the leaders.
    """

    candidate: str
    schedules: tuple[str, ...]
    rank: int
    proposed: bool
    status: str
    reason: str = ""
    answer: str = ""
    error_ratio: float | None = None
    facts: str = "{}"
    kernels: int = 0
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    occupancy: float | None = None
    compile_s: float = 0.0
    check_s: float = 0.0
    time_s: float = 0.0
    seconds: tuple[float, ...] = ()
    baseline: tuple[float, ...] = ()
    retimed: tuple[float, ...] = ()
    retimed_baseline: tuple[float, ...] = ()

    @cached_property
    def schedule(self) -> Schedule:
        """The first of its schedules."""
        return Schedule.from_json(self.schedules[0])

    @property
    def works(self) -> bool:
        """Whether it is right and was timed."""
        return self.status == CORRECT and bool(self.seconds)

    @cached_property
    def pairs(self) -> tuple[tuple[float, float], ...]:
        """Seconds of baseline and candidate by round: of the last timing among leaders, where there is one."""
        own, other = (
            (self.retimed, self.retimed_baseline) if self.retimed else (self.seconds, self.baseline)
        )
        return tuple(zip(other, own, strict=True)) if self.works else ()

    @cached_property
    def speed(self) -> float | None:
        """The speed-up over the faster baseline, by all that is known; None where it does not work."""
        return statistics.median(b / c for b, c in self.pairs) if self.pairs else None

    @cached_property
    def profile_s(self) -> float:
        """Seconds of timing it as one profile does, with as many pairs as that takes. `time_s` is what its table took:
        of a leader some 36 runs, none of them the baseline's."""
        if not self.works or not self.time_s:
            return self.time_s
        run = self.time_s / (1 + len(self.seconds) + len(self.retimed))  # one warmed it up
        more = statistics.median(self.baseline) - statistics.median(self.seconds)
        return _pairs_of_a_profile(self) * max(run, 2 * run + more)

    @property
    def judging_s(self) -> float:
        """Seconds of compiler, check and timing, as a judge would take them who has this candidate alone."""
        return self.compile_s + self.check_s + self.profile_s


@dataclass(frozen=True)
class RefusedSchedule:
    """A schedule of the space that the generator does not take, and why."""

    schedule: str
    reason: str


@dataclass(frozen=True)
class Table:
    """One region on one device.

    task: canonical JSON. device_facts: what the generator knew of the device, JSON; flags: torch's, JSON. generator: a
    digest of the sources that wrote the kernels. sketch: what the generator calls the task's kernels. source: where the
    region is from. families: of the training task, where it has any. family: operators that are no pointwise ones and
    no views (see `families`); structure: a digest of the graph without sizes and dtypes. dtype: of the first input of
    floating numbers. rival: the faster baseline. operations: of products. proposals: schedules as JSON, best guess
    first. space: schedules in the space, legal: candidates among them; complete: whether 90 % of those are rows.
    steps: seconds of each step.
    """

    id: str
    task: str
    target: str
    arch: str
    device_name: str
    device_facts: str
    torch: str
    generator: str
    flags: str
    sketch: str
    source: str
    families: tuple[str, ...]
    family: str
    structure: str
    dtype: str
    split: str
    eager_s: float
    inductor_s: float
    overhead_s: float
    floor_s: float
    rival: str
    ceilings: str
    operations: int
    proposals: tuple[str, ...]
    space: int
    legal: int
    complete: bool
    refused: tuple[RefusedSchedule, ...]
    steps: Mapping[str, float]
    rows: tuple[Row, ...]

    @cached_property
    def parsed(self) -> Task:
        """The task. Raises `TaskError` where the text is not one."""
        return Task.from_json(self.task)

    @cached_property
    def baselines(self) -> Baselines:
        """As the judge would say it."""
        return Baselines(self.eager_s, self.inductor_s, self.overhead_s, self.floor_s)

    @cached_property
    def rates(self) -> Ceilings:
        """What the machine was measured to do."""
        return Ceilings.of(json.loads(self.ceilings))

    @cached_property
    def best(self) -> float:
        """The largest speed-up over the faster baseline that is known; 0 where nothing works."""
        return max((row.speed or 0.0 for row in self.rows), default=0.0)


STEPS = ("prepare", "compile", "inductor", "baselines", "check", "time", "retime")
ON_DEVICE = ("baselines", "check", "time", "retime")
"""Those that need the device. Compilers work beside them."""


def table_id(digest: str, arch: str, device_name: str) -> str:
    """The same for the same region on the same device, 24 hex digits."""
    return hashlib.sha256(f"{digest}\n{arch}\n{device_name}".encode()).hexdigest()[:24]


def to_dict(table: Table) -> dict[str, Any]:
    """As a row of the Parquet file."""
    return asdict(table)


def from_dict(value: Mapping[str, Any]) -> Table:
    """What `to_dict` gave, after Parquet. Raises KeyError or TypeError on anything else."""
    plain = {f.name: value[f.name] for f in fields(Table)}
    return Table(
        **{
            **plain,
            "families": tuple(value["families"]),
            "proposals": tuple(value["proposals"]),
            "refused": tuple(RefusedSchedule(**one) for one in value["refused"]),
            # a file of earlier days has fewer
            "steps": {name: value["steps"].get(name) or 0.0 for name in STEPS},
            "rows": tuple(_row(one) for one in value["rows"]),
        }
    )


def _pairs_of_a_profile(row: Row) -> int:
    """How many it takes, by the timings in the order in which they were taken. Of a candidate without hope there are
    fewer than a profile looks at."""
    # Here, as it is slow to import and commands that tell of their arguments read this file.
    from sandbox.judge.glance import GLANCES, looks, rounds_of

    ratios = [b / c for b, c in zip(row.baseline, row.seconds, strict=True)]
    if len(ratios) < GLANCES:
        return GLANCES
    # On every device as on cpu: fewer rounds than its first look end only what is not worth it, and here all is.
    return rounds_of(ratios, [count for count in looks("cpu") if count <= len(ratios)])


_LISTS = ("schedules", "seconds", "baseline", "retimed", "retimed_baseline")


def _row(value: Mapping[str, Any]) -> Row:
    return Row(**{**value, **{name: tuple(value[name]) for name in _LISTS}})
