"""Bugs of the code generator: caught at its edge, logged once, counted, and handed on as a value.

`ir.failure` has the rule. The user's model must run whatever goes wrong here, so the edge catches every `Exception`.
None of it is silent: `count` and `found` say what was caught in this process.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cuda_agent_backend import log
from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.task.task import Task

T = TypeVar("T")
REASON = "a bug of the code generator"
"""What the reason of a `Bug` begins with."""
MOST_KEPT = 256
"""How many different bugs are kept; what comes after them is only counted."""


@dataclass(frozen=True)
class Bug(NotCovered):
    """Something failed that should not have. It can be handled like any `NotCovered`.

    task: the task's digest. doing: what was being done. error: the exception's type and text. place: the file and line
    that raised it.
    """

    task: str
    doing: str
    error: str
    place: str


_lock = threading.Lock()
_counts: dict[Bug, int] = {}
_beyond = 0


def attempt_for(
    task: Task, doing: str, find: Callable[[], T], schedule: Schedule | None = None
) -> T | NotCovered:
    """What ``find`` gives for a task; `NotCovered` where it gives up, and a `Bug` where it fails in another way.

    doing: what is being done, in a few words; schedule: under which schedule. Both are for the log.
    """
    try:
        return find()
    except Unsupported as error:
        return NotCovered(str(error))
    except MemoryError:
        raise  # the machine's failure, not ours
    except Exception as error:
        return _caught(task, doing, error, schedule)


def found() -> dict[Bug, int]:
    """The bugs that were caught in this process, with how often each was."""
    with _lock:
        return dict(_counts)


def count() -> int:
    """How often a bug was caught in this process."""
    with _lock:
        return sum(_counts.values()) + _beyond


def forget() -> None:
    """Begin to count anew."""
    global _beyond
    with _lock:
        _counts.clear()
        _beyond = 0


def _caught(task: Task, doing: str, error: Exception, schedule: Schedule | None) -> Bug:
    what = f"{type(error).__name__}: {error}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{frame.filename.rpartition('cuda_agent_backend/')[2]}:{frame.lineno}"
    bug = Bug(f"{REASON}: {what}", task.digest, doing, what, place)
    if _is_first(bug):
        under = f" under {schedule.to_json()}" if schedule else ""
        log.once(
            "codegen",
            f"a bug while {doing} task {bug.task}{under}: {what} at {place}; the model runs without this kernel",
        )
        log.logger("codegen").debug("".join(traceback.format_exception(error)))
    return bug


def _is_first(bug: Bug) -> bool:
    """Count a bug, and say whether it was not met before."""
    global _beyond
    with _lock:
        seen = _counts.get(bug, 0)
        if seen or len(_counts) < MOST_KEPT:
            _counts[bug] = seen + 1
            return not seen
        _beyond += 1
        return False
