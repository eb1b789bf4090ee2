"""The search process with a search that is no search: what a test wants to happen stands in the environment."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import splice_kit as kit

from cuda_agent_backend.search.outcome import NothingFound, SearchOutcome
from cuda_agent_backend.search.service import main
from sandbox.task.task import Task
from sandbox.timing.turns import TurnsOver

KNOWN = {"exp": "std::exp(a)", "neg exp": "std::exp(-a)"}
"""What is promoted: expressions by the names of a task's operators."""


def search(
    task: Task, judges: Any, setup: Any, budget_s: float, recorded: Any, say: Any
) -> SearchOutcome:
    """Promote what is known, plainly; hang or die where the test says so."""
    wish = os.environ.get("FAKE_SEARCH", "")
    say(f"recorded {len(recorded)}" if recorded else "nothing recorded")
    if wish == "die":
        os._exit(7)
    if wish == "hang" or (wish == "hang after the first" and len(task.nodes) > 1):
        Path(os.environ["FAKE_NOTE"]).write_text(str(os.getpid()))
        time.sleep(600)
    if wish == "work until left" and len(task.nodes) > 1:
        if note := os.environ.get("FAKE_NOTE"):
            Path(note).write_text(str(os.getpid()))
        while not judges.is_over():
            time.sleep(0.05)
        raise TurnsOver("as a judge does")
    known = KNOWN.get(" ".join(node.op.split(".")[1] for node in task.nodes))
    if known is None:
        return NothingFound("at the limit", exhausted=True, turns=1)
    return kit.result(task, kit.elementwise(task, known), Path(tempfile.mkdtemp()))


if __name__ == "__main__":
    sys.exit(main(search))
