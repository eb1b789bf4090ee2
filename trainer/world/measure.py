"""Measure tables: regions are found and compiled beside each other, and each is timed with the device alone.

On cuda the next regions are compiled while one is timed; on cpu nothing runs beside what is timed.
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
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
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
from sandbox.verdict import Correct
from trainer.errors import CommandError
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
from trainer.world.sources import MOST_BYTES, Region, Source

log = logging.getLogger(__name__)
Made = TypeVar("Made")

SKIPPED = "skipped.jsonl"
"""In a run's folder: regions of which there will be no table, and why."""
AHEAD = 3
"""Regions that are compiled while one is timed, on cuda."""
PREPARERS = {"cuda": 2, "cpu": 1}
"""Regions whose schedules are enumerated side by side."""
SWITCH_S = 1e-4
"""On cuda, how long a thread that enumerates keeps the interpreter from the one that times, a dozen times a run."""
EFFORTS = {
    "cuda": SurveyEffort(),
    "cpu": SurveyEffort(rounds=12, close=((1.25, 24), (1.06, 40)), again=64),
}
"""On cpu a pair scatters by 20 %: of leaders chosen by eight pairs, eight others said 6.5 % less. Compiling takes seven
seconds a table at the median and timing half a second, so there is time for more."""
ENOUGH = 0.9
"""Of a table's candidates, the share of which something must be known."""


class DeviceLost(CommandError):
    """The process can use the device no more."""


@dataclass(frozen=True)
class MeasureSettings:
    """out: the run's folder. per_task: candidates a table, 0 for all. whole: of every so-manieth task all, 0 for none.
    jobs: compilers side by side; on cuda half as many programs are looked at meanwhile. limit_s: seconds after which no
    further table is begun. known: ids of tables that are elsewhere and not measured again. most_bytes: of a region's
    largest tensor. memory_bytes: of a program's inputs and weights. lock: the file by which the judge takes its turns
    on the device; by default one in the run's folder. effort: of timing."""

    out: Path
    target: str
    arch: str
    per_task: int = 64
    jobs: int = 1
    limit_s: float = float("inf")
    known: frozenset[str] = frozenset()
    whole: int = 0
    most_bytes: int = MOST_BYTES
    memory_bytes: int = 4 << 30
    lock: Path | None = None
    effort: SurveyEffort = field(default_factory=SurveyEffort)


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
    """A region, ready to be timed. compile_s: of all compilers together, prepare_s: of everything before them."""

    region: Region
    task: Task
    id: str
    found: Enumerated
    variants: list[Variant]
    built: list[Compiled | Failure]
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
        self.progress = Progress()
        self._seen: set[str] = set()
        self._compilers = ThreadPoolExecutor(max_workers=settings.jobs)
        self._preparers = ThreadPoolExecutor(max_workers=PREPARERS[settings.target])
        self._guard = threading.Lock()

    def measure(
        self, found: Sequence[Source | Region], tell: Callable[[Table], None] = lambda _: None
    ) -> Progress:
        """All tables that are not there yet, until the time is up. tell: is told of each new one."""
        settings, end = self.settings, time.monotonic() + self.settings.limit_s
        # On cpu, looking at programs is work beside what is timed. On cuda each process that looks holds a context.
        jobs = max(2, settings.jobs // 2) if settings.target == "cuda" else 1
        before = sys.getswitchinterval()
        if settings.target == "cuda":
            sys.setswitchinterval(SWITCH_S)
        try:
            lock = settings.lock or settings.out / "device.lock"
            with RegionFinder(
                settings.out, settings.target, jobs, settings.memory_bytes, lock
            ) as finder:
                regions = (
                    finder.find(found) if settings.target == "cuda" else _one_by_one(finder, found)
                )
                for prepared in self._prepared((r for rs in regions for r in rs), end):
                    if self.progress.tables and time.monotonic() > end:
                        break
                    table = self._table(prepared)
                    if isinstance(table, Table):
                        write([table], part(settings.out, table.id))
                        self.progress.tables += 1
                        self.progress.rows += len(table.rows)
                        tell(table)
                if finder.failed:
                    self.progress.skipped["the program cannot be looked at"] += finder.failed
        finally:
            sys.setswitchinterval(before)
            self._preparers.shutdown(wait=False, cancel_futures=True)
            self._compilers.shutdown(cancel_futures=True)
        return self.progress

    def _prepared(self, regions: Iterator[Region], end: float) -> Iterator[Prepared]:
        """Regions, compiled; on cuda some ahead of the one that is timed. end: by `time.monotonic`; after it none is
        passed over for a further one."""
        ahead = AHEAD if self.settings.target == "cuda" else 0
        waiting: list[Future[Prepared | None]] = []
        for region in regions:
            if (waiting or self.progress.tables) and time.monotonic() > end:
                break
            waiting.append(self._preparers.submit(self._prepare, region))
            while len(waiting) > ahead:
                made = waiting.pop(0).result()
                if made is not None:
                    yield made
                elif time.monotonic() > end:
                    return
        for future in waiting:
            if self.progress.tables and time.monotonic() > end:
                return
            made = future.result()
            if made is not None:
                yield made

    def _prepare(self, region: Region) -> Prepared | None:
        """Enumerate and compile; None where there is a table already, or will be none."""
        return self._or_skip(region, lambda: self._enumerated_and_compiled(region))

    def _or_skip(self, region: Region, work: Callable[[], Made | None]) -> Made | None:
        """What comes of work on a region. A bug of ours with one is not to end hours of work."""
        try:
            return work()
        except DeviceLost:
            raise
        except Exception as error:
            log.exception("%s", region.source)
            self._skip("", f"error of ours: {type(error).__name__}: {error}", lasting=False)
            return None

    def _enumerated_and_compiled(self, region: Region) -> Prepared | None:
        began = time.monotonic()
        try:
            task = Task.from_json(region.task)
        except TaskError as error:
            self._skip("", f"not a task: {error}")
            return None
        id = table_id(task.digest, self.settings.arch, self.here.device_name)
        with self._guard:
            there = id in self.settings.known or part(self.settings.out, id).exists()
            if there or id in self._seen:
                self.progress.known += 1
                return None
            self._seen.add(id)
        largest = max(spec.extent * spec.itemsize for spec in (*task.inputs, *task.output_specs))
        if largest > self.settings.most_bytes:
            self._skip(id, "a tensor is too large")
            return None
        found = enumerate_schedules(task, self.here.facts, MOST)
        if isinstance(found, NotCovered):
            self._skip(id, f"not covered: {found.reason}")
            return None
        whole = is_whole(task.digest, self.settings.whole)
        variants = sampled(found, 0 if whole else self.settings.per_task, task.digest)
        if len(variants) < 2:
            self._skip(id, "fewer than two schedules")
            return None
        compiling = time.monotonic()
        built = list(self._compilers.map(self.judge.compile, (v.candidate for v in variants)))
        ended = time.monotonic()
        return Prepared(
            region, task, id, found, variants, built, compiling - began, ended - compiling
        )

    def _skip(self, id: str, reason: str, lasting: bool = True) -> None:
        """Count it; a reason that lasts is kept in the folder for who wonders."""
        self.progress.skipped[reason.partition(":")[0]] += 1
        if lasting:
            with (self.settings.out / SKIPPED).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"id": id, "reason": reason}) + "\n")

    def _table(self, made: Prepared) -> Table | None:
        return self._or_skip(made.region, lambda: self._surveyed(made))

    def _surveyed(self, made: Prepared) -> Table | None:
        candidates = [variant.candidate for variant in made.variants]
        surveyed = self.judge.survey(made.task, candidates, self.settings.effort, made.built)
        for compiled in made.built:  # a run has thousands
            if isinstance(compiled, Compiled):
                compiled.path.unlink(missing_ok=True)
        if not isinstance(surveyed, Surveyed):
            log.warning("%s: no table: %s", made.region.source, surveyed.reason)
            self._skip(made.id, f"failed: {surveyed.reason}", not why_passing(surveyed))
            self._still_usable()
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

    def _still_usable(self) -> None:
        """After an assertion of the device its context fails whatever comes. Raises DeviceLost where that is this
        process's; the baseline's process gets another one."""
        if self.settings.target == "cpu":
            return
        import torch

        self.judge.roles.baseline.renew()
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
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
