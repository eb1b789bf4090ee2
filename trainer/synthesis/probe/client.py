"""This process's end of a probe server: started when first needed and again after it died."""

from __future__ import annotations

import os
import queue
from pathlib import Path
from typing import Any

from cuda_agent_backend.runtime.child_process import Child
from trainer.synthesis.probe.request import ProbeRequest

SPARE_S = 600.0
"""What a server may take beyond a task's own limit: importing torch, and turns of others on the device."""


class Prober:
    """Probes one task at a time."""

    def __init__(self, lock: Path) -> None:
        self._lock = lock
        self._child: Child | None = None
        self._stopped = False

    def probe(self, request: ProbeRequest) -> dict[str, Any]:
        """The facts of a task; what went wrong is among them."""
        if self._child is None or not self._child.alive:
            self._child = Child("trainer.synthesis.probe.server", [str(self._lock)])
        child = self._child
        if not child.send(request.to_json()):
            return self._lost("its server could not be reached")
        try:
            found = child.receive(request.limit_s + SPARE_S)
        except queue.Empty:
            return self._lost("its server gave no answer")
        return found if found is not None else self._lost("its server ended")

    def _lost(self, reason: str) -> dict[str, Any]:
        self.stop()
        return {"failed": reason, "stage": "server"}

    def stop(self) -> None:
        """End the server and what it runs."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()


def lock_of(out: Path, device: str) -> Path:
    """Where processes take turns on the device: one file for each user and device, else beside the set."""
    if device == "cuda":
        import tempfile

        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "all").replace(os.sep, "_")
        return Path(tempfile.gettempdir()) / f"cuda_agent-{os.getuid()}-synthesis-{seen}.lock"
    return out / "device.lock"
