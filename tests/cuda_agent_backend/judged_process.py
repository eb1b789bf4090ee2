"""A search with the real judge: ``python judged_process.py CACHE NATIVE``. Prints what it came to."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cuda_agent_backend.runtime.machine import all_flags
from cuda_agent_backend.search.episode import run_agent
from cuda_agent_backend.search.judges import make_judge
from cuda_agent_backend.search.outcome import SearchResult
from cuda_agent_backend.search.setup import Setup
from sandbox import scratch
from sandbox.task.specs import TensorSpec
from sandbox.task.task import InputRef, Node, NodeRef, Task

SPEC = TensorSpec("float32", (512, 512), (512, 1))


def task() -> Task:
    """silu(x)."""
    nodes = (
        Node("aten.sigmoid.default", {"self": InputRef(0)}),
        Node("aten.mul.Tensor", {"self": InputRef(0), "other": NodeRef(0)}),
    )
    return Task("cpu", (SPEC,), nodes, (NodeRef(1),), (SPEC,))


def main() -> None:
    setup = Setup(cache_dir=Path(sys.argv[1]), native_dir=Path(sys.argv[2]), flags=all_flags())
    with scratch.folder("judged") as folder, make_judge("cpu", setup, folder) as judge:
        found = run_agent(task(), judge, setup, 1e6, None, lambda text: None)
    won = isinstance(found, SearchResult)
    print(json.dumps({"won": won, "reason": found.reason, "turns": found.turns}))


if __name__ == "__main__":
    main()
