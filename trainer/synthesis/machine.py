"""``python -m trainer.synthesis.machine DEVICE``: what the device is and what it can do at most, as one line of JSON.

A process of its own, so that none that forks has woken CUDA's driver.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LIMIT_S = 600.0
DTYPES = {"cuda": ("float32", "float16", "bfloat16"), "cpu": ("float32",)}


@dataclass(frozen=True)
class Machine:
    """names: of the device, torch and transformers. ceilings: by dtype, with ``call_s``. memory_bytes: the device's.
    cores: of this machine."""

    names: Mapping[str, str]
    ceilings: Mapping[str, Mapping[str, Any]]
    memory_bytes: int
    cores: int

    def ceilings_for(self, dtype: str) -> Mapping[str, Any]:
        """Those of a dtype; of float32 where it was not measured."""
        return self.ceilings.get(dtype, self.ceilings["float32"])


@dataclass(frozen=True)
class NoDevice:
    """It cannot be used, and why."""

    reason: str


def look(device: str) -> Machine | NoDevice:
    """Ask a child."""
    from cuda_agent_backend.runtime.child_process import child_environment

    command = [sys.executable, "-m", "trainer.synthesis.machine", device]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=child_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return NoDevice(f"the {device} device did not answer for {LIMIT_S:.0f} s")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return NoDevice(f"the {device} device cannot be used: {last}")
    return Machine(**json.loads(done.stdout.splitlines()[-1]))


def main(device: str) -> None:
    """Entry point of the child."""
    import os
    from importlib.metadata import PackageNotFoundError, version

    import torch

    from cuda_agent_backend.runtime.clocks import least_call
    from sandbox.timing.machine import ceilings, facts

    found = facts()
    call_s = least_call(device)
    rates = {
        name: {**ceilings(device, name).to_dict(), "call_s": call_s} for name in DTYPES[device]
    }
    try:
        transformers = version("transformers")
    except PackageNotFoundError:
        transformers = ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = {
        "device": device,
        "device_name": found["gpu"] if device == "cuda" else found["cpu"],
        "torch": torch.__version__,
        "transformers": transformers,
    }
    print(
        json.dumps(
            {
                "names": names,
                "ceilings": rates,
                "memory_bytes": found["gpu_memory"] if device == "cuda" else memory,
                "cores": found["cores"],
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
