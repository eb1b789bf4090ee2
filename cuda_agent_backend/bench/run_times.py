"""How long the runs into one folder took, kept as their tasks are done: a run may be stopped at any time."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from cuda_agent_backend.json_values import write_json

log = logging.getLogger(__name__)
MOST_IMPORTS_S = 600.0
"""What a process may have taken until it asks how old it is: where `/proc` says more, its clock is another one."""


def process_began(stat: Path = Path("/proc/self/stat")) -> float:
    """When this process began, by `time.monotonic`; where nobody says so, the least that it has worked ago."""
    least = time.process_time()
    try:
        ticks = int(stat.read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        age = least
    return time.monotonic() - (age if least <= age <= MOST_IMPORTS_S else least)


def of(out: Path) -> list[dict[str, Any]]:
    """The runs into ``out`` in order: wall time in seconds up to the last task done, tasks done, jobs side by side."""
    try:
        found: list[dict[str, Any]] = json.loads(_file(out).read_text(encoding="utf-8"))["runs"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return found if isinstance(found, list) else []


class RunClock:
    """The wall time of a run, which begins here."""

    def __init__(self, out: Path) -> None:
        self.out, self.before = out, of(out)
        self.started, self.names = time.monotonic(), set[str]()

    def task_done(self, name: str, jobs: int) -> None:
        """Keep the time so far, if that can be written."""
        self.names.add(name)
        seconds = time.monotonic() - self.started
        this = {"seconds": seconds, "tasks": len(self.names), "jobs": jobs}
        try:
            write_json(_file(self.out), {"runs": [*self.before, this]})
        except OSError as error:
            log.warning("the time of this run was not written: %s", error)


def _file(out: Path) -> Path:
    return out / "work" / "runs.json"
