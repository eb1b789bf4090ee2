"""What came of each task: one JSON file each, written at once, below the output folder.

A result counts as done as long as what it depends on is the same: our sources, the wishes, the machine, and the task's
own text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cuda_agent_backend.bench.discovery import TaskFile
from cuda_agent_backend.bench.figures import MEASURED, TIMED_OUT
from cuda_agent_backend.bench.provenance import commit
from cuda_agent_backend.bench.request import Wishes
from cuda_agent_backend.json_values import write_json
from sandbox.verdict import OUT_OF_MEMORY

Facts = dict[str, Any]
VARYING = ("load",)
"""Facts of a machine that do not make it another one."""


@dataclass(frozen=True)
class Identity:
    """What results of a run depend on, beside the tasks: the same identity, the same results."""

    sources: str
    wishes: Wishes
    machine: Mapping[str, Any]
    cache_dir: str = ""

    @property
    def digest(self) -> str:
        """One name for it."""
        steady = {name: value for name, value in self.machine.items() if name not in VARYING}
        whole = [self.sources, asdict(self.wishes), steady, self.cache_dir]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    def of(self, task: TaskFile) -> str:
        """One name for a task's result."""
        text = hashlib.sha256(task.path.read_bytes()).hexdigest()
        return hashlib.sha256(f"{self.digest}:{text}".encode()).hexdigest()


@dataclass(frozen=True)
class Results:
    """The results below a folder."""

    folder: Path
    identity: Identity

    def path(self, task: TaskFile) -> Path:
        """Where a task's result is."""
        return self.folder / "tasks" / f"{task.name}.json"

    def done(self, task: TaskFile) -> Facts | None:
        """A result that counts, if there is one."""
        try:
            found = json.loads(self.path(task).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        now = self.identity_of(task)
        same = isinstance(found, dict) and found.get("identity") == now != ""
        return found if same else None

    def identity_of(self, task: TaskFile) -> str:
        """What a result of the task depends on, as its file is now; "" where that cannot be read: it never counts."""
        try:
            return self.identity.of(task)
        except OSError:
            return ""

    def keep(self, task: TaskFile, facts: Mapping[str, Any], identity: str) -> Facts:
        """Write a task's result. identity: `identity_of` when its run began."""
        known = {
            "name": task.name,
            "group": task.group,
            "file": str(task.path),
            "identity": identity,
            "commit": commit(),
            "wishes": asdict(self.identity.wishes),
        }
        write_json(self.path(task), {**known, **facts})
        found: Facts = json.loads(self.path(task).read_text(encoding="utf-8"))
        return found


def wanted_again(known: Facts | None, again: str) -> bool:
    """Whether a task is to be run. again: "" what is not done, "failed" also what was not measured, or not searched to
    the end, "all" all.

    What found the device's memory full counts as done once it was run alone: a run may be cut before that.
    """
    if known is None or again == "all":
        return True
    if again == "failed":
        return known["status"] != MEASURED or search_was_cut(known) or lacked_memory(known)
    return lacked_memory(known) and not known.get("alone", False)


def may_replace(found: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Whether a task's new result is to stand for the one that there is: a failure does not for what was measured."""
    return bool(found["status"] == MEASURED or known["status"] != MEASURED)


def lacked_memory(facts: Mapping[str, Any] | None) -> bool:
    """Whether some part of a task's run, if there was one, found the device's memory full."""
    return facts is not None and bool(OUT_OF_MEMORY.search(json.dumps(facts)))


def search_was_cut(facts: Mapping[str, Any]) -> bool:
    """Whether a task's search was ended at the limit, so that it was measured with what there was."""
    return (facts.get("search") or {}).get("status") == TIMED_OUT
