"""From programs to regions: each program is looked at once, in a confined process, and what came of it is kept."""

from __future__ import annotations

import fcntl
import json
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

from sandbox.failures import passing_words
from trainer.synthesis.dataset import journal
from trainer.synthesis.probe.client import Prober
from trainer.synthesis.probe.request import CROWDED, ProbeRequest
from trainer.world.sources import REGIONS, Region, Source, regions_in

log = logging.getLogger(__name__)

LIMIT_S = 60.0
"""Of one program."""
AHEAD = 8
"""Programs that are looked at, or were, before their regions are asked for, beside one for each job."""
PASSING_STAGES = ("server", "time", "process", CROWDED)
"""Where a program was cut short, which says little of it."""


class RegionFinder:
    """Finds regions of programs, several side by side. A context manager.

    What a program is found to have, or why it cannot be looked at, is kept in the run's folder; what may pass, such as
    a server that died or a limit of time, is not.
    """

    def __init__(self, out: Path, target: str, jobs: int, memory_bytes: int, lock: Path) -> None:
        """lock: the file by which processes take turns on the device."""
        self.path, self.target, self.memory_bytes = out / REGIONS, target, memory_bytes
        self.jobs, self.failed = jobs, 0
        """failed: programs that could not be looked at in this run."""
        self._free: SimpleQueue[Prober] = SimpleQueue()
        self._probers: list[Prober] = []
        self._known: dict[str, dict[str, Any]] = {}
        self._lock = lock

    def __enter__(self) -> RegionFinder:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._alone() as file:
            whole = file.read()
            kept = whole[: whole.rfind(b"\n") + 1]
            if kept != whole:  # a kill cut the last line off
                file.truncate(len(kept))
        # Without lines that a full disk spoilt.
        readable = (one for one in journal.lines(kept) if {"source", "regions"} <= set(one))
        self._known = {line["source"]: line for line in readable}
        self._probers = [Prober(self._lock) for _ in range(self.jobs)]
        for prober in self._probers:
            self._free.put(prober)
        return self

    def __exit__(self, *_: object) -> None:
        """Ends what looks at programs, all at once: each may take seconds."""
        with ThreadPoolExecutor(max_workers=self.jobs) as threads:
            list(threads.map(lambda prober: prober.stop(), self._probers))

    @contextmanager
    def _alone(self) -> Iterator[BinaryIO]:
        """The file, to be read and added to while no other run of this folder does."""
        with self.path.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                file.seek(0)
                yield file
            finally:  # closing alone would not do: a child forked meanwhile may have it
                fcntl.flock(file, fcntl.LOCK_UN)

    def find(self, found: Sequence[Source | Region]) -> Iterator[list[Region]]:
        """The regions of each, as soon as they are known, in their order where they are at once, some being looked at
        ahead."""
        threads = ThreadPoolExecutor(max_workers=self.jobs)
        following = iter(found)
        waiting: list[Future[list[Region]]] = []
        try:
            while True:
                room = self.jobs + AHEAD - len(waiting)
                waiting += [threads.submit(self._or_none, o) for o in islice(following, room)]
                if not waiting:
                    return
                done = wait(waiting, return_when=FIRST_COMPLETED).done
                ready = [future.result() for future in waiting if future in done]
                waiting = [future for future in waiting if future not in done]
                yield from ready
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def _or_none(self, one: Source | Region) -> list[Region]:
        """A bug of ours with one program, or a file that cannot be written, is not to end hours of work."""
        try:
            return self._regions(one)
        except Exception:
            log.exception("%s", one.name if isinstance(one, Source) else one.source)
            self.failed += 1
            return []

    def _regions(self, one: Source | Region) -> list[Region]:
        if isinstance(one, Region):
            return [one]
        line = self._known.get(one.name)
        if line is None:
            line = self._look(one)
        return regions_in(line)

    def _look(self, one: Source) -> dict[str, Any]:
        prober = self._free.get()
        try:
            facts = prober.probe(self._request(one))
        finally:
            self._free.put(prober)
        texts = facts.get("regions", [])
        regions = [Region(one.name, text, one.families, one.split).to_json() for text in texts]
        line = {"source": one.name, "regions": regions, "left": facts.get("left", [])}
        if "failed" in facts:
            line["failed"] = f"{facts['stage']}: {facts['failed']}"
        self.failed += "failed" in facts
        if not _may_pass(facts):
            self._keep(line)
        return line

    def _request(self, one: Source) -> ProbeRequest:
        return ProbeRequest(
            code=one.code,
            target=self.target,
            training=one.training,
            least_s=0.0,
            most_s=0.0,
            memory_bytes=self.memory_bytes,
            device_bytes=4 * self.memory_bytes,
            limit_s=LIMIT_S,
            alone=not one.is_ours,
            regions=True,
        )

    def _keep(self, line: dict[str, Any]) -> None:
        """Append one line. Several threads may, and other processes: a write of one line is one call."""
        text = (json.dumps(line, sort_keys=True) + "\n").encode()
        with self._alone() as file:
            file.write(text)


def _may_pass(facts: dict[str, Any]) -> bool:
    """Whether a program that could not be looked at may be another time: whatever a device says against it may."""
    said = facts.get("failed", "")
    return facts.get("stage") in PASSING_STAGES or bool(passing_words(said)) or "CUDA" in said
