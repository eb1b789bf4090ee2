"""How long the runs into one folder took, kept as their tasks are done: a run may be stopped at any time."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from cuda_agent_backend.json_values import write_json

log = logging.getLogger(__name__)


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
