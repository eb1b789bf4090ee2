"""``python -m trainer.synthesis.probe.server LOCK``: JSON lines in, requests; JSON lines out, facts.

Torch is imported once. Tasks run in a process that is forked from here (see `process`). One that is ours looks at many
tasks, since waking the device, finding out what the processor can do and compiling headers take more time than most
tasks. Code of others gets a process for each task, so that no row can change what is found of another.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from sandbox.timing.device_lock import DeviceLock
from sandbox.workers.fork_server import preload
from sandbox.workers.vector_checks import find_instructions
from sandbox.workers.worker import BYTECODE
from trainer.synthesis.probe.process import TIME, ParentGone, TaskProcess
from trainer.synthesis.probe.request import CROWDED, ProbeRequest

TRIES, LATER_S = 3, 5.0
"""A task that found no memory because of others is tried so many times more, so many seconds apart."""
TASKS = 50
"""Of one process: what it holds of earlier tasks does not grow without end."""
PRELOADED = (
    "torch._inductor.compile_fx",
    "torch._inductor.graph",
    "torch._inductor.codegen.cpp",
    "trainer.synthesis.probe.work",
    "trainer.synthesis.probe.regions",
)


def main() -> None:
    """Entry point."""
    from cuda_agent_backend.runtime.child_process import own_stdout

    out = own_stdout()
    preload(PRELOADED, if_there=("transformers",))
    os.environ.pop(BYTECODE, None)
    server = Server(DeviceLock(Path(sys.argv[1])), out.fileno())
    try:
        for line in sys.stdin:
            request = ProbeRequest.from_json(json.loads(line))
            print(json.dumps(server.answered(request)), file=out, flush=True)
    except ParentGone:
        pass
    finally:
        server.end()


class Server:
    """closed: a descriptor that task processes do not get."""

    def __init__(self, lock: DeviceLock, closed: int) -> None:
        self._lock, self._closed = lock, closed
        self._process: TaskProcess | None = None

    def answered(self, request: ProbeRequest) -> dict[str, Any]:
        """The facts of a task. What fails in a process that has looked at others before is tried in a new one: what
        they left behind may be why. What found no memory because of others is tried again a little later."""
        used = self._process is not None and self._process.served > 0
        facts = self._looked_at(request)
        for _ in range(TRIES):
            if facts.get("stage") != CROWDED:
                break
            time.sleep(LATER_S)
            facts = self._looked_at(request)
        if "failed" in facts and used and not request.alone and facts.get("stage") != TIME:
            facts = self._looked_at(request)
        return facts

    def _looked_at(self, request: ProbeRequest) -> dict[str, Any]:
        if self._process is not None and (request.alone or self._process.served >= TASKS):
            self.end()
        if self._process is None:
            if request.target == "cpu":
                find_instructions()  # once, here
            self._process = TaskProcess(request, self._lock, self._closed)
        facts = self._process.look(request)
        if request.alone or "failed" in facts:
            self.end()
        return facts

    def end(self) -> None:
        """End the process, and whatever it started."""
        process, self._process = self._process, None
        if process is not None:
            process.end()


if __name__ == "__main__":
    main()
