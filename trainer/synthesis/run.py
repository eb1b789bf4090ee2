"""The run: seed numbers decided side by side, kept in a journal, and taken into the set in their order."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from cuda_agent_backend.json_values import plain, write_json
from trainer.synthesis import pace
from trainer.synthesis.compose import sized
from trainer.synthesis.compose.task import Composer, Wishes
from trainer.synthesis.dataset import card, journal, parquet
from trainer.synthesis.dataset.rows import row_of
from trainer.synthesis.filters.similarity import Program
from trainer.synthesis.machine import Machine
from trainer.synthesis.one_task import NO_ROOM, Limits, decided, dropped
from trainer.synthesis.probe.client import Prober, lock_of
from trainer.synthesis.tally import Tally

log = logging.getLogger(__name__)

REPORT = "report.json"

SEEDS_PER_TASK, MORE_SEEDS = 30, 200
"""A run gives up after so many seed numbers for each task wanted, and so many more."""
AHEAD = 64
"""For each job so many seed numbers may be decided before one that takes long."""
CORES_PER_JOB = 1.0
DEVICE_BYTES = {"cuda": 16 << 30, "cpu": 8 << 30}
"""What a task's process may take of the GPU's or the machine's memory: the same on all machines."""
BYTES_PER_JOB = {"cuda": 8 << 30, "cpu": 8 << 30}
"""About what a task's process takes at a time: what is reckoned for the middle one of cuda's tasks is 5 GiB, and few
are at their largest together. One that finds no memory because of others is asked again, at the latest in the next run.
"""
SPARE = 1.08
"""A piece makes so many times its share of the tasks: some are like those of other pieces."""


@dataclass(frozen=True)
class Settings:
    """What to make. first: the first seed number is this times a million, so that sets of other seeds are others.

    name: of the device, in the file's name (see `short_name`). part: which piece, from 1, and of how many; a piece
    looks at every so-manieth seed number. seconds: after these it ends and keeps what is done.
    """

    out: Path
    count: int
    first: int
    jobs: int
    limit_s: float
    wishes: Wishes
    programs: tuple[Program, ...] = ()
    name: str = ""
    part: tuple[int, int] = (1, 1)
    seconds: float = math.inf

    @property
    def file(self) -> Path:
        """Where the rows go."""
        return self.out / f"ops-{self.name or self.wishes.device}.parquet"

    @property
    def share(self) -> int:
        """Tasks that this piece makes."""
        pieces = self.part[1]
        return self.count if pieces == 1 else math.ceil(SPARE * self.count / pieces) + 4

    @property
    def start(self) -> int:
        """Its first seed number."""
        return self.first * 1_000_000 + self.part[0] - 1


def short_name(device: str, machine: Machine) -> str:
    """``h100`` of NVIDIA H100 80GB HBM3; ``cpu`` or ``cuda`` where there is no such word."""
    found = re.search(r"\b[A-Z]{1,3}\d{2,4}[A-Z]?\b", machine.names["device_name"])
    return found.group().lower() if found and device == "cuda" else device


def jobs_of(device: str, machine: Machine) -> int:
    """Tasks side by side. On cpu compilers disturb what is timed, so there is one."""
    if device == "cpu":
        return 1
    by_memory = machine.memory_bytes // BYTES_PER_JOB[device]
    return max(1, min(int(machine.cores / CORES_PER_JOB), by_memory, 32))


def run(
    settings: Settings,
    composer: Composer,
    machine: Machine,
    tell: Callable[[Tally], None],
    last: int | None = None,
) -> Tally | journal.OtherRun:
    """Make the set, or its piece. What was decided before is not repeated. An interruption keeps what is done.

    tell: is told how it stands after each task. last: the seed number to end before. May raise OSError where the
    journal cannot be written.
    """
    kept = journal.Journal(settings.out / journal.NAME, identity(settings, composer, machine))
    other = kept.open()
    if other is not None:
        return other
    began, known = time.time(), set(kept.entries)
    tally = Tally.of(settings.share, settings.programs)
    limits = Limits(settings.limit_s, DEVICE_BYTES[settings.wishes.device])
    work = Work(settings, composer, machine, limits, kept)
    try:
        with _probers(settings) as probers:
            try:
                for entry in _in_order(settings, lambda seed: work.entry(seed, probers), last):
                    tally.take(entry)
                    tell(tally)
                    if len(tally.kept) >= settings.share:
                        break
            finally:
                work.stopped.set()
    finally:
        # A copy: what is under way may still be decided.
        new = [entry for seed, entry in list(kept.entries.items()) if seed not in known]
        own = [pace.run_of(new, began, time.time(), settings.jobs, machine)] if new else []
        write_set(settings, tally, machine, [*pace.runs_in(settings.out / REPORT), *own])
    return tally


@dataclass
class Work:
    """Decides seed numbers, in threads, and keeps what was decided at once: a run may be killed at any time."""

    settings: Settings
    composer: Composer
    machine: Machine
    limits: Limits
    kept: journal.Journal

    def __post_init__(self) -> None:
        self.stopped = threading.Event()
        self._writing = threading.Lock()

    def entry(self, seed: int, probers: SimpleQueue[Prober]) -> dict[str, Any]:
        """The entry of a seed number, from the journal where it is there. May raise OSError."""
        if seed in self.kept.entries:
            return self.kept.entries[seed]
        prober = probers.get()
        try:
            found = decided(
                seed, self.composer, prober.probe, self.settings.wishes, self.machine, self.limits
            )
        except Exception as error:  # a bug of ours with one task, which is not to end hours of work
            log.exception("seed %d", seed)
            found = dropped(seed, "error of ours", f"{type(error).__name__}: {error}")
        finally:
            probers.put(prober)
        with self._writing:
            # What fails after the end fails because its process was ended, and is asked again next time; so is what
            # others left no memory for.
            if not self.stopped.is_set() and found.get("filter") != NO_ROOM:
                self.kept.add(plain(found))
        return found


def identity(settings: Settings, composer: Composer, machine: Machine) -> dict[str, Any]:
    """What a run that goes on must have in common with what was done before; a larger count goes on."""
    return {
        "seed": settings.first,
        "composer": composer.name,
        **machine.names,
        "window": [settings.wishes.least_s, settings.wishes.most_s],
        "part": list(settings.part),
        "sizes": sized.RULE if settings.wishes.device == "cuda" else 0,
    }


@contextmanager
def _probers(settings: Settings) -> Iterator[SimpleQueue[Prober]]:
    lock = lock_of(settings.out, settings.wishes.device)
    every = [Prober(lock) for _ in range(settings.jobs)]
    free: SimpleQueue[Prober] = SimpleQueue()
    for prober in every:
        free.put(prober)
    try:
        yield free
    finally:
        with ThreadPoolExecutor(max_workers=settings.jobs) as threads:
            list(threads.map(Prober.stop, every))


def _in_order(
    settings: Settings, work: Callable[[int], dict[str, Any]], last: int | None
) -> Iterator[dict[str, Any]]:
    """Entries in the order of their seed numbers, with some more under way than are asked for. Ends when the time is
    over."""
    ends = time.monotonic() + settings.seconds
    following, step = settings.start, settings.part[1]
    if last is None:
        last = following + step * (SEEDS_PER_TASK * settings.count + MORE_SEEDS)
    threads = ThreadPoolExecutor(max_workers=settings.jobs)
    waiting: list[Future[dict[str, Any]]] = []
    try:
        while following < last or waiting:
            while following < last and len(waiting) < AHEAD * settings.jobs:
                waiting.append(threads.submit(work, following))
                following += step
            left = None if math.isinf(ends) else max(0.0, ends - time.monotonic())
            try:
                yield waiting[0].result(timeout=left)
            except TimeoutError:
                return
            waiting.pop(0)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def write_set(settings: Settings, tally: Tally, machine: Machine, runs: Sequence[pace.Run]) -> None:
    """The rows, the card and the report of what there is now; of a piece the report alone (see `merge`).

    runs: what each that worked on it came to.
    """
    report = {**tally.report(), pace.RUNS: list(runs)}
    if settings.part[1] > 1:
        write_json(settings.out / REPORT, report)
        return
    rows = [row_of(entry, machine.names) for entry in tally.kept]
    if rows:
        write_rows(rows, report, settings.file)


def write_rows(rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any], file: Path) -> None:
    """The file and its report, and the card of all sets in its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write(rows, file, report["dropped"])
    card.write(file.parent)
    write_json(file.parent / REPORT, report)
