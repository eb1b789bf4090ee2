"""Measure tables: regions are found and compiled beside each other, and each is timed with the device alone.

On cuda the next regions are compiled while one is timed; on cpu nothing runs beside what is timed. A run may be told
when to end. It then leaves what is not ready, and what it was about to time a little later.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts, cpu_facts, gpu_facts
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.sources import source_digest
from sandbox.compile.candidate import Compiled
from sandbox.failures import Failure, why_passing
from sandbox.graph.build import build_graph
from sandbox.judge import Judge
from sandbox.judge.survey import Surveyed, SurveyEffort
from sandbox.task import flags
from sandbox.task.task import Task, TaskError
from sandbox.timing.machine import facts as machine_facts
from sandbox.timing.roofline import operations
from sandbox.timing.turns import TurnsOver
from sandbox.verdict import Correct
from trainer.errors import CommandError
from trainer.world import skipped
from trainer.world.ahead import Ahead, Deadline, side_by_side
from trainer.world.families import dtype_of, family_of, structure_of
from trainer.world.files import part, write
from trainer.world.regions import RegionFinder
from trainer.world.row_of import row_of
from trainer.world.rows import STEPS, RefusedSchedule, Row, Table, table_id
from trainer.world.schedules import (
    MOST,
    Enumerated,
    Variant,
    enumerate_schedules,
    is_whole,
    sampled,
)
from trainer.world.sources import MOST_BYTES, Region, Source, in_order, in_passes

log = logging.getLogger(__name__)
Made = TypeVar("Made")

AHEAD = {"cuda": 3, "cpu": 0}
"""Regions that are compiled while one is timed, beside one of which all schedules are."""
AT_ONCE = 32
"""Of the candidates of a region of which all are measured, so many are with the compilers at once: other regions wait
for these and no more."""
WHOLE_S, WHOLE_TIMED_S = 240.0, 120.0
"""Seconds that are left where all schedules of a region begin to be compiled, and to be checked and timed."""
TOO_LATE = "too little time was left for all its schedules"
SWITCH_S = 1e-4
"""On cuda, how long the thread that enumerates keeps the interpreter from the one that times, a dozen times a run."""
ENOUGH = 0.9
"""Of a table's candidates, the share of which something must be known."""


class DeviceLost(CommandError):
    """The process can use the device no more."""


@dataclass(frozen=True)
class MeasureSettings:
    """out: the run's folder. per_task: candidates a table, 0 for all. whole: N: all of every N-th task, 0 for none.
    jobs: compilers side by side; on cuda half as many programs are looked at meanwhile. known: ids of tables that are
    elsewhere and not measured again; begun: names of programs of theirs, which come after others. hopeless: ids of
    regions of which there will be no table. most_bytes: of a region's largest tensor. memory_bytes: of a program's
    inputs and weights. lock: the file by which the judge takes its turns on the device; by default one in the run's
    folder. effort: of timing. deadline: when it is to end; none where it has all the time that it needs."""

    out: Path
    target: str
    arch: str
    per_task: int = 64
    jobs: int = 1
    known: frozenset[str] = frozenset()
    begun: frozenset[str] = frozenset()
    hopeless: frozenset[str] = frozenset()
    whole: int = 0
    most_bytes: int = MOST_BYTES
    memory_bytes: int = 4 << 30
    lock: Path | None = None
    effort: SurveyEffort = field(default_factory=SurveyEffort)
    deadline: Deadline = field(default_factory=Deadline)


@dataclass(frozen=True)
class Here:
    """What all tables of a run have in common."""

    device_name: str
    facts: DeviceFacts | CpuFacts
    torch: str

    @staticmethod
    def of(target: str) -> Here:
        """This machine, whose device is looked at."""
        found = machine_facts()
        name = found["gpu"] if target == "cuda" else found["cpu"]
        return Here(name, gpu_facts() if target == "cuda" else cpu_facts(), found["torch"])


@dataclass
class Prepared:
    """A region, ready to be timed. whole: whether with all its schedules. compile_s: of all compilers together,
    prepare_s: of everything before them."""

    region: Region
    task: Task
    id: str
    found: Enumerated
    variants: list[Variant]
    built: list[Compiled | Failure]
    whole: bool
    prepare_s: float
    compile_s: float


@dataclass
class Progress:
    """What a run has done. rows: candidates in new tables; skipped: regions by the reason for which there is none."""

    tables: int = 0
    rows: int = 0
    known: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


class Run:
    """One run. judge: for the target, with its device to itself in turns."""

    def __init__(self, settings: MeasureSettings, judge: Judge, here: Here) -> None:
        self.settings, self.judge, self.here = settings, judge, here
        self.deadline, self.progress = settings.deadline, Progress()
        self._seen: set[str] = set()
        self._hopeless = settings.hopeless | skipped.known(settings.out / skipped.NAME)
        self._compilers = ThreadPoolExecutor(max_workers=settings.jobs)
        self._guard, self._enumerating = threading.Lock(), threading.Lock()
        self._ended = threading.Event()

    def measure(
        self, found: Sequence[Source | Region], tell: Callable[[Table], None] = lambda _: None
    ) -> Progress:
        """All tables that are not there yet, until the time is up. tell: is told of each new one."""
        before = sys.getswitchinterval()
        if self.settings.target == "cuda":
            sys.setswitchinterval(SWITCH_S)
        try:
            with ExitStack() as stack:
                finder = stack.enter_context(self._finder())
                ahead = self._ahead(finder, found)
                stack.callback(self._end, ahead)
                self._measure_all(ahead, tell)
                if finder.failed:
                    self.progress.skipped["the program cannot be looked at"] += finder.failed
        except TurnsOver:
            log.warning("the time is up for long: a table that was begun is left")
            self.judge.interrupt()  # what it still compiles is not waited for
        finally:
            sys.setswitchinterval(before)
            self._compilers.shutdown()
        return self.progress

    def _finder(self) -> RegionFinder:
        settings = self.settings
        # On cpu, looking at programs is work beside what is timed. On cuda each process that looks holds a context.
        jobs = max(2, settings.jobs // 2) if settings.target == "cuda" else 1
        lock = settings.lock or settings.out / "device.lock"
        return RegionFinder(settings.out, settings.target, jobs, settings.memory_bytes, lock)

    def _ahead(
        self, finder: RegionFinder, found: Sequence[Source | Region]
    ) -> Ahead[Region, Prepared]:
        target = self.settings.target
        look = finder.find if target == "cuda" else partial(_one_by_one, finder)
        groups = in_order(found, self.settings.begun)
        regions = (region for group in groups for region in in_passes(look(group)))
        return Ahead(regions, self._prepare, AHEAD[target], self.deadline, self._is_long)

    def _is_long(self, region: Region) -> bool:
        """Whether compiling it would hold up others: on cuda, where all its schedules are measured."""
        if self.settings.target == "cpu" or not self.settings.whole:
            return False
        try:
            return is_whole(Task.from_json(region.task).digest, self.settings.whole)
        except TaskError:
            return False

    def _measure_all(self, ahead: Ahead[Region, Prepared], tell: Callable[[Table], None]) -> None:
        for prepared in ahead:
            if prepared.whole and self.deadline.left_s < WHOLE_TIMED_S:
                self._skip(prepared.id, TOO_LATE, lasting=False)
                continue
            table = self._table(prepared)
            if isinstance(table, Table):
                write([table], part(self.settings.out, table.id))
                self.deadline.has_table = True
                self.progress.tables += 1
                self.progress.rows += len(table.rows)
                tell(table)

    def _end(self, ahead: Ahead[Region, Prepared]) -> None:
        """Leave what is being prepared. Threads end soon: compilers are ended here, what looks at programs after it."""
        self._ended.set()
        ahead.close()
        self._compilers.shutdown(wait=False, cancel_futures=True)
        self.judge.interrupt_compilers()

    def _prepare(self, region: Region) -> Prepared | None:
        """Enumerate and compile; None where there is a table already, or will be none."""
        return self._or_skip(region, lambda: self._enumerated_and_compiled(region))

    def _or_skip(self, region: Region, work: Callable[[], Made | None]) -> Made | None:
        """What comes of work on a region. A bug of ours with one is not to end hours of work."""
        try:
            return work()
        except Exception as error:
            if not self._ended.is_set():
                log.exception("%s", region.source)
                self._skip("", f"error of ours: {type(error).__name__}: {error}", lasting=False)
            return None

    def _enumerated_and_compiled(self, region: Region) -> Prepared | None:
        try:
            task = Task.from_json(region.task)
        except TaskError as error:
            self._skip("", f"not a task: {error}")
            return None
        id = table_id(task.digest, self.settings.arch, self.here.device_name)
        whole = is_whole(task.digest, self.settings.whole)
        if not self._is_new(id) or not self._may_begin(id, task, whole):
            return None
        found, prepare_s = self._enumerated(task)
        if found is None:
            return None
        if isinstance(found, NotCovered):
            self._skip(id, f"not covered: {found.reason}")
            return None
        variants = sampled(found, 0 if whole else self.settings.per_task, task.digest)
        if len(variants) < 2:
            self._skip(id, "fewer than two schedules", lasting=len(found.legal) < 2)
            return None
        compiling = time.monotonic()
        candidates = [variant.candidate for variant in variants]
        most = AT_ONCE if whole else len(candidates)
        built = side_by_side(self._compilers, self.judge.compile, candidates, most)
        compile_s = time.monotonic() - compiling
        return Prepared(region, task, id, found, variants, built, whole, prepare_s, compile_s)

    def _enumerated(self, task: Task) -> tuple[Enumerated | NotCovered | None, float]:
        """What could be made of a task, and the seconds that took; None once the run has ended. One thread at a time
        does so: it keeps the interpreter from the one that times."""
        with self._enumerating:
            began = time.monotonic()
            if self._ended.is_set():
                return None, 0.0
            found = enumerate_schedules(task, self.here.facts, MOST)
            return found, time.monotonic() - began

    def _is_new(self, id: str) -> bool:
        """Whether there is no table of that id, here or elsewhere, and none is about to be. Asked once of each."""
        with self._guard:
            there = id in self.settings.known or part(self.settings.out, id).exists()
            if there or id in self._seen:
                self.progress.known += 1
                return False
            self._seen.add(id)
        return True

    def _may_begin(self, id: str, task: Task, whole: bool) -> bool:
        """Whether a table may come of a region, and in time."""
        largest = max(spec.extent * spec.itemsize for spec in (*task.inputs, *task.output_specs))
        if id in self._hopeless:
            self._skip(id, "an earlier run found that there will be no table", lasting=False)
        elif largest > self.settings.most_bytes:
            self._skip(id, "a tensor is too large")
        elif whole and self.deadline.left_s < WHOLE_S:
            self._skip(id, TOO_LATE, lasting=False)
        else:
            return True
        return False

    def _skip(self, id: str, reason: str, lasting: bool = True) -> None:
        """Count it; a reason that lasts is kept in the folder, for later runs and for who wonders."""
        self.progress.skipped[reason.partition(":")[0]] += 1
        if lasting:
            skipped.keep(self.settings.out, id, reason)

    def _table(self, made: Prepared) -> Table | None:
        found = self._or_skip(made.region, lambda: self._surveyed(made))
        if found is None:
            self._still_usable(made)
        return found

    def _surveyed(self, made: Prepared) -> Table | None:
        candidates = [variant.candidate for variant in made.variants]
        surveyed = self.judge.survey(made.task, candidates, self.settings.effort, made.built)
        for compiled in made.built:  # a run has thousands
            if isinstance(compiled, Compiled):
                compiled.path.unlink(missing_ok=True)
        if not isinstance(surveyed, Surveyed):
            log.warning("%s: no table: %s", made.region.source, surveyed.reason)
            self._skip(made.id, f"failed: {surveyed.reason}", not why_passing(surveyed))
            return None
        rows = [
            row_of(variant, built, found)
            for variant, built, found in zip(made.variants, made.built, surveyed.found, strict=True)
        ]
        kept = [row for row in rows if row is not None]
        if len(kept) < ENOUGH * len(rows) or not any(row.works for row in kept):
            # as where no kernel can be loaded here: another run may know more
            reasons = (
                f.outcome.reason for f in surveyed.found if not isinstance(f.outcome, Correct)
            )
            why = f"too little could be measured: {next(reasons, 'compilers were cut off')}"
            log.warning("%s: no table: %s", made.region.source, why)
            self._skip(made.id, why, lasting=False)
            return None
        return self._filled(made, surveyed, kept)

    def _still_usable(self, made: Prepared) -> None:
        """After an assertion of the device its context fails whatever comes. Raises DeviceLost where that is this
        process's, once it is noted that the region is not to be met again; the baseline's process gets another one."""
        if self.settings.target == "cpu":
            return
        import torch

        self.judge.roles.baseline.renew()
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            self._skip(made.id, f"the device was lost: {error}")
            raise DeviceLost(
                f"this process can use the device no more ({error}); what is measured is kept, and the same command "
                "goes on from there"
            ) from error

    def _filled(self, made: Prepared, surveyed: Surveyed, rows: list[Row]) -> Table:
        task, found, baselines = made.task, made.found, surveyed.baselines
        steps = {"prepare": made.prepare_s, "compile": made.compile_s, **surveyed.seconds}
        return Table(
            id=made.id,
            task=task.to_json(),
            target=task.target,
            arch=self.settings.arch,
            device_name=self.here.device_name,
            device_facts=_json(asdict(self.here.facts)),
            torch=self.here.torch,
            generator=source_digest()[:16],
            flags=_json(flags.without_defaults(flags.current())),
            sketch=found.sketch,
            source=made.region.source,
            families=made.region.families,
            family=family_of(task),
            structure=structure_of(task),
            dtype=dtype_of(task),
            split=made.region.split,
            eager_s=baselines.eager_seconds,
            inductor_s=baselines.inductor_seconds,
            overhead_s=baselines.overhead_seconds,
            floor_s=baselines.floor_seconds,
            rival=surveyed.rival,
            ceilings=_json(self.judge.ceilings().to_dict()),
            operations=_operations(task),
            proposals=tuple(schedule.to_json() for schedule in found.proposals),
            space=found.space,
            legal=len(found.legal),
            complete=len(rows) >= 0.9 * len(found.legal),
            refused=tuple(RefusedSchedule(s.to_json(), why) for s, why in found.refused),
            steps={name: steps.get(name, 0.0) for name in STEPS},
            rows=tuple(rows),
        )


def _one_by_one(finder: RegionFinder, found: Sequence[Source | Region]) -> Iterator[list[Region]]:
    """None is looked at before the one before it was measured."""
    for one in found:
        yield from finder.find([one])


def _operations(task: Task) -> int:
    try:
        return operations(build_graph(task))
    except Exception:  # as in the judge: this is feedback only
        return 0


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def jobs_here(target: str) -> int:
    """Compilers side by side: all cores, but on cuda two for the judge and its worker."""
    cores = len(os.sched_getaffinity(0))
    return max(1, cores - 2) if target == "cuda" else cores
