"""This process's end of a probe server: started when first needed and again after it died."""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path
from typing import Any

from cuda_agent_backend.runtime.child_process import Child
from trainer.synthesis.probe.request import ProbeRequest

SPARE_S = 600.0
"""What a server may take beyond a task's own limit: importing torch, and turns of others on the device."""
SERVER = "server"
"""The stage of a task whose server was lost."""


class Prober:
    """Probes one task at a time."""

    def __init__(self, lock: Path) -> None:
        self._lock = lock
        self._child: Child | None = None
        self._stopped = False
        self._starting = threading.Lock()

    def probe(self, request: ProbeRequest) -> dict[str, Any]:
        """The facts of a task; what went wrong is among them. A server that was lost may have been killed for what
        others do, so the task is asked of another one."""
        found = self._asked(request)
        if found.get("stage") == SERVER and not self._stopped:
            found = self._asked(request)
        return found

    def _asked(self, request: ProbeRequest) -> dict[str, Any]:
        with self._starting:
            if self._stopped:
                return {"failed": "it was stopped", "stage": SERVER}
            if self._child is None or not self._child.alive:
                self._child = Child("trainer.synthesis.probe.server", [str(self._lock)])
            child = self._child
        if not child.send(request.to_json()):
            return self._lost(child, "its server could not be reached")
        try:
            found = child.receive(request.limit_s + SPARE_S)
        except queue.Empty:
            return self._lost(child, "its server gave no answer")
        return found if found is not None else self._lost(child, "its server ended")

    def _lost(self, child: Child, reason: str) -> dict[str, Any]:
        child.kill()
        return {"failed": reason, "stage": SERVER}

    def stop(self) -> None:
        """End the server and what it runs, for good."""
        with self._starting:
            self._stopped = True
            child, self._child = self._child, None
        if child is not None:
            child.stop()


def lock_of(out: Path, device: str) -> Path:
    """Where processes take turns on the device: one file for each user and device, else beside the set."""
    if device == "cuda":
        import tempfile

        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "all").replace(os.sep, "_")
        return Path(tempfile.gettempdir()) / f"cuda_agent-{os.getuid()}-synthesis-{seen}.lock"
    return out / "device.lock"
