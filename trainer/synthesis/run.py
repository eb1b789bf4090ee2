"""The run: seed numbers decided side by side, kept in a journal, and taken into the set in their order."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from cuda_agent_backend.json_values import plain, write_json
from trainer.synthesis.compose.task import Composer, Wishes
from trainer.synthesis.dataset import card, journal, parquet
from trainer.synthesis.dataset.rows import row_of
from trainer.synthesis.filters.duplicates import Known
from trainer.synthesis.filters.similarity import Program
from trainer.synthesis.machine import Machine
from trainer.synthesis.one_task import PASSED, Limits, decided, dropped
from trainer.synthesis.probe.client import Prober, lock_of

log = logging.getLogger(__name__)

SEEDS_PER_TASK, MORE_SEEDS = 30, 200
"""A run gives up after so many seed numbers for each task wanted, and so many more."""
CORES_PER_JOB, BYTES_PER_JOB = 1.0, 5 << 30


@dataclass(frozen=True)
class Settings:
    """What to make. first: the first seed number is this times a million, so that sets of other seeds are others.

    name: of the device, in the file's name (see `short_name`).
    """

    out: Path
    count: int
    first: int
    jobs: int
    limit_s: float
    wishes: Wishes
    programs: tuple[Program, ...] = ()
    name: str = ""

    @property
    def file(self) -> Path:
        """Where the rows go."""
        return self.out / f"ops-{self.name or self.wishes.device}.parquet"


@dataclass
class Tally:
    """How a run stands. kept: entries in the set. dropped: by filter."""

    kept: list[dict[str, Any]]
    dropped: Counter[str]
    looked_at: int = 0

    def report(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "looked_at": self.looked_at,
            "kept": len(self.kept),
            "dropped": dict(self.dropped.most_common()),
        }


def short_name(device: str, machine: Machine) -> str:
    """``h100`` of NVIDIA H100 80GB HBM3; ``cpu`` or ``cuda`` where there is no such word."""
    found = re.search(r"\b[A-Z]{1,3}\d{2,4}[A-Z]?\b", machine.names["device_name"])
    return found.group().lower() if found and device == "cuda" else device


def jobs_of(device: str, machine: Machine) -> int:
    """Tasks side by side. On cpu compilers disturb what is timed, so there is one."""
    if device == "cpu":
        return 1
    return max(
        1, min(int(machine.cores / CORES_PER_JOB), machine.memory_bytes // BYTES_PER_JOB, 32)
    )


def run(
    settings: Settings,
    composer: Composer,
    machine: Machine,
    tell: Callable[[Tally], None],
    last: int | None = None,
) -> Tally | journal.OtherRun:
    """Make the set. What was decided before is not repeated. An interruption keeps what is done, and goes on upwards.

    tell: is told how it stands after each task. last: the seed number to end before. May raise OSError where the
    journal cannot be written.
    """
    kept = journal.Journal(settings.out / journal.NAME, _identity(settings, composer, machine))
    other = kept.open()
    if other is not None:
        return other
    tally, known = Tally([], Counter()), Known(settings.programs)
    limits = Limits(settings.limit_s, int(0.9 * machine.memory_bytes / settings.jobs))
    try:
        with _probers(settings) as probers:

            def work(seed: int) -> dict[str, Any]:
                if seed in kept.entries:
                    return kept.entries[seed]
                prober = probers.get()
                try:
                    return decided(seed, composer, prober.probe, settings.wishes, machine, limits)
                except (
                    Exception
                ) as error:  # a bug of ours with one task, which is not to end hours of work
                    log.exception("seed %d", seed)
                    return dropped(seed, "error of ours", f"{type(error).__name__}: {error}")
                finally:
                    probers.put(prober)

            for entry in _in_order(settings, work, last):
                if entry["seed"] not in kept.entries:
                    kept.add(plain(entry))
                _take(entry, tally, known)
                tell(tally)
                if len(tally.kept) >= settings.count:
                    break
    finally:
        write_set(settings, tally, machine)
    return tally


def _identity(settings: Settings, composer: Composer, machine: Machine) -> dict[str, Any]:
    """What a run that goes on must have in common with what was done before; a larger count goes on."""
    return {
        "seed": settings.first,
        "composer": composer.name,
        **machine.names,
        "window": [settings.wishes.least_s, settings.wishes.most_s],
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
        for prober in every:
            prober.stop()


def _in_order(
    settings: Settings, work: Callable[[int], dict[str, Any]], last: int | None
) -> Iterator[dict[str, Any]]:
    """Entries in the order of their seed numbers, with some more under way than are asked for."""
    first = settings.first * 1_000_000
    last = last if last is not None else first + SEEDS_PER_TASK * settings.count + MORE_SEEDS
    threads = ThreadPoolExecutor(max_workers=settings.jobs)
    waiting: list[Future[dict[str, Any]]] = []
    following = first
    try:
        while following < last or waiting:
            while following < last and len(waiting) < 4 * settings.jobs:
                waiting.append(threads.submit(work, following))
                following += 1
            yield waiting.pop(0).result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _take(entry: Mapping[str, Any], tally: Tally, known: Known) -> None:
    tally.looked_at += 1
    if entry["status"] != PASSED:
        tally.dropped[entry["filter"]] += 1
        return
    task = entry["task"]
    found = known.why_dropped(task["id"], task["code"], entry["facts"], task["training"])
    if found is not None:
        tally.dropped[found.filter] += 1
    else:
        tally.kept.append(dict(entry))


def write_set(settings: Settings, tally: Tally, machine: Machine) -> None:
    """The rows, the card and the report of what there is now."""
    rows = [row_of(entry, machine.names) for entry in tally.kept]
    if not rows:
        return
    write_rows(rows, tally.report(), settings.file)


def write_rows(rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any], file: Path) -> None:
    """The file, its card, its plots and the report beside it."""
    parquet.write(rows, file)
    plots = card.plot(rows, file.parent)
    text = card.card(rows, report["dropped"], file.name, plots)
    (file.parent / "README.md").write_text(text, encoding="utf-8")
    write_json(file.parent / "report.json", report)
