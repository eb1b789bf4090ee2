"""What measures a graph, but does nothing: it takes a turn on the device, works for so many seconds, and answers."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from cuda_agent_backend.acceptance.waits import telling
from sandbox.timing.device_lock import DeviceLock


def emit(message: Any) -> None:
    print(json.dumps(message), flush=True)


Path(os.environ["READY"]).touch()
request = json.loads(sys.stdin.readline())
lock = DeviceLock(Path(request["device_lock"]), telling(emit))
with lock.turn():
    time.sleep(float(os.environ["WORKS_S"]))
emit({"event": "result", "use": [], "final": True})
sys.stdin.read()
