"""The run: tasks searched and measured side by side, by turns on the device, and kept as soon as they are done."""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cuda_agent_backend.bench.admission import Admission, needed_bytes
from cuda_agent_backend.bench.children import Children, Failed, OutOfTime
from cuda_agent_backend.bench.discovery import TaskFile
from cuda_agent_backend.bench.figures import MEASURED
from cuda_agent_backend.bench.request import Request, Wishes
from cuda_agent_backend.bench.results import (
    Facts,
    Identity,
    Results,
    lacked_memory,
    may_replace,
    wanted_again,
)

MACHINE_LIMIT_S = 600.0
CORES_PER_JOB, BYTES_PER_JOB, MOST_JOBS = 1.5, 9 << 30, 16
"""A search compiles half of the time or more; its processes have three to five contexts on the device, with data.
Eleven filled 79 GiB, where fourteen had room in 140; seven took 57 at most."""
START_S, PER_BUDGET = 600.0, 4.0
"""What a task may take beside its search, and how many graphs' budgets."""


@dataclass(frozen=True)
class Bench:
    """What to run. jobs: searches side by side. limit_s: seconds of each phase of a task. again: see `wanted_again`.

    begin_within_s: no task is begun later; those that were are finished, also where that takes a run alone for want of
    memory, and the next run does the rest. started: when that time began (`time.monotonic`), None for when tasks do.
    cache_dir: a kernel cache to use instead of one below `out` that begins empty.
    """

    out: Path
    wishes: Wishes
    jobs: int
    limit_s: float
    native_dir: Path
    device_lock: Path
    cache_dir: Path | None = None
    again: str = ""
    begin_within_s: float = math.inf
    started: float | None = None


@dataclass(frozen=True)
class Machine:
    """What the machine phase found. device_lock: the file by which processes take turns on the device.

    free: bytes of its memory that others leave, None where nobody counts.
    """

    facts: Mapping[str, Any]
    ceilings: Mapping[str, Any]
    device_lock: Path
    free: int | None = None


def jobs_of(target: str, facts: Mapping[str, Any], cores: int) -> int:
    """Searches side by side by default. On cpu compilers disturb what is timed, so there is one.

    facts: those of `sandbox.timing.machine.facts`. cores: for this run (see `cores.cores_of`).
    """
    if target == "cpu":
        return 1
    by_cores, by_memory = cores / CORES_PER_JOB, facts["gpu_memory"] / BYTES_PER_JOB
    return max(1, int(min(by_cores, by_memory, MOST_JOBS)))


def ready_ahead(tasks: int, jobs: int | None, cores: int) -> int:
    """How many searches are made ready before the machine is looked at, which takes as long as their imports.

    jobs: as asked for; without, at most half of what the cores may allow, as its memory may allow fewer.
    """
    return min(tasks, jobs or max(1, int(cores / CORES_PER_JOB / 2)), MOST_JOBS)


def limit_of(budget_s: float, jobs: int) -> float:
    """Seconds that a phase may take by default; with more jobs each waits longer for its turns on the device."""
    return START_S + PER_BUDGET * budget_s * jobs


def look_at_machine(
    out: Path, wishes: Wishes, native_dir: Path, device_lock: Path | None, children: Children
) -> Machine | Failed:
    """The machine's facts and ceilings, from a child. device_lock: None for the device's own."""
    own = str(device_lock.absolute()) if device_lock else ""
    request = Request("", "", "", str(native_dir.absolute()), own, wishes)
    found = children.run("machine", request, out / "work", MACHINE_LIMIT_S)
    if isinstance(found, Failed):
        return found
    lock = Path(found["device_lock"])
    return Machine(found["facts"], found["ceilings"], lock, found.get("free"))


def run(
    bench: Bench,
    tasks: Sequence[TaskFile],
    machine: Machine,
    sources: str,
    children: Children,
    tell: Callable[[Facts], None],
    known_before: Callable[[Facts], None] = lambda facts: None,
) -> list[Facts]:
    """Run what is not done; all results there are then. tell: is told of each task when it is done.

    known_before: is told, before any begins, of each one that an earlier run did.

    An interruption stops all children and goes on upwards; the results so far are on disk.
    """
    own = str(bench.cache_dir.absolute()) if bench.cache_dir else ""
    results = Results(bench.out, Identity(sources, bench.wishes, machine.facts, own))
    cache = bench.cache_dir or bench.out / "kernels" / results.identity.digest[:16]
    if bench.again == "all" and not bench.cache_dir:
        shutil.rmtree(cache, ignore_errors=True)
    known = {task.name: results.done(task) for task in tasks}
    for before in filter(None, known.values()):
        known_before(before)
    started = time.monotonic() if bench.started is None else bench.started
    last_begin = started + bench.begin_within_s
    lacking: set[str] = set()  # what has just found no memory, whatever result of it is kept

    def work(task: TaskFile, phases: _Phases, jobs: int, again: bool) -> Facts | None:
        identity, before = results.identity_of(task), known[task.name]
        # What found no memory is run again however late it is: else nothing is known of it.
        until = math.inf if again else last_begin
        found = _one(_request(bench, machine, task.path, cache), task, until, phases)
        if found is None:
            return None
        if lacked_memory(found):
            lacking.add(task.name)
        anew = bench.again == "all" and not again
        kept = found if before is None or anew or may_replace(found, before) else before
        return results.keep(task, {**kept, "alone": jobs == 1}, identity)

    # Enough threads that all jobs search while others measure or wait for it.
    with ThreadPoolExecutor(max_workers=2 * bench.jobs + 1) as threads:
        todo = to_do(tasks, known, bench.again)
        for number, jobs in enumerate((bench.jobs, *fewer_jobs(bench.jobs))):
            phases = _Phases(bench, children, Admission(machine.free, jobs), threading.Lock())
            futures = [threads.submit(work, task, phases, jobs, number > 0) for task in todo]
            try:
                for future in as_completed(futures):
                    facts = future.result()
                    if facts is not None:
                        known[facts["name"]] = facts
                        tell(facts)
            except BaseException:
                _give_up(futures, children)
                raise
            todo = [task for task in todo if task.name in lacking]
            lacking.clear()
            if todo:
                children.rest()
    return [facts for facts in known.values() if facts is not None]


def to_do(
    tasks: Sequence[TaskFile], known: Mapping[str, Facts | None], again: str
) -> list[TaskFile]:
    """What a run does, in this order: what an earlier run had no memory for comes after what no run began."""
    wanted = [task for task in tasks if wanted_again(known[task.name], again)]
    return sorted(wanted, key=lambda task: known[task.name] is not None)


def fewer_jobs(jobs: int) -> list[int]:
    """How many at a time what found no memory is run again, and what still finds none: up to one alone."""
    return [] if jobs == 1 else sorted({max(1, jobs // 3), 1}, reverse=True)


def _give_up(futures: Sequence[Future[Facts | None]], children: Children) -> None:
    for future in futures:
        future.cancel()
    children.stop()


@dataclass(frozen=True)
class _Phases:
    """Runs a phase once there is a place for it, and memory of the device for its task."""

    bench: Bench
    children: Children
    admission: Admission
    sizing: threading.Lock
    """One process finds out sizes, and has to import torch but once."""

    def run(self, request: Request, folder: Path, needed: int, last_begin: float) -> Facts | None:
        """A task's search, then its measurement with the search below "search".

        None where it is too late to begin, once there is a place. A measurement comes before any search that has not
        begun. On cpu compilers would disturb what is timed: none runs meanwhile. A task whose search was ended at the
        limit is measured with what that had found by then.
        """
        with self.admission.hold(needed) as place:
            if time.monotonic() > last_begin:
                return None
            searched = self.children.run("search", request, folder, self.bench.limit_s)
            if isinstance(searched, OutOfTime):
                searched = {**asdict(searched), "seconds": self.bench.limit_s}
            if isinstance(searched, Failed):
                return asdict(searched)
            place.again(alone=self.bench.wishes.target == "cpu")
            measured = self.children.run("measure", request, folder, self.bench.limit_s)
            if isinstance(measured, Failed):
                return {**asdict(measured), "search": searched}
            return {"status": MEASURED, "search": searched, "measure": measured}

    def sizes(self, request: Request, folder: Path) -> dict[str, int]:
        """Bytes of the device: "needed" in all, 0 where nobody counts them, and "given", those of inputs and weights,
        where that is known."""
        if not self.admission.counts:
            return {"needed": 0}
        with self.sizing:
            found = self.children.run("size", request, folder, self.bench.limit_s)
        if isinstance(found, Failed):
            return {"needed": needed_bytes({})}
        return {"needed": needed_bytes(found), "given": int(found["given"])}


def _one(request: Request, task: TaskFile, last_begin: float, phases: _Phases) -> Facts | None:
    """Both phases of one task; None where it is too late to begin it."""
    folder = phases.bench.out / "work" / task.name
    if time.monotonic() > last_begin:
        return None
    sizes = phases.sizes(request, folder)
    found = phases.run(request, folder, sizes["needed"], last_begin)
    return found and {**found, **sizes}


def _request(bench: Bench, machine: Machine, file: Path, cache: Path) -> Request:
    return Request(
        file=str(file.absolute()),
        result="",
        cache_dir=str(cache.absolute()),
        native_dir=str(bench.native_dir.absolute()),
        device_lock=str(bench.device_lock.absolute()),
        wishes=bench.wishes,
        ceilings=dict(machine.ceilings),
    )
