"""How much of a device a phase held at most, as far as its process can know.

This is the one place where a phase's memory is asked for. Whoever gives memory out by leases knows more, such as what
was asked for: that belongs into the same facts.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Collection
from typing import Any

from sandbox.isolation.descendants import descendants

LOOK_S = 0.5
"""Between two looks at the device. Asking it takes some microseconds, of which what is timed beside it sees nothing."""
ASK_S = 2.0
"""Between two calls of ``nvidia-smi``, which is a process of its own."""
ASK_LIMIT_S = 5.0
MIB = 1 << 20
COMMAND = (
    "nvidia-smi",
    "--query-compute-apps=pid,used_gpu_memory",
    "--format=csv,noheader,nounits",
)


class PhaseMemory:
    """Watches the device while a phase runs within it.

    `facts`, in bytes: ``allocated`` and ``reserved`` are the most that torch's allocator held in this process;
    ``processes`` the most that this process and all below it held with their contexts, as the driver says; ``device``
    the most that anybody held, and ``device_before`` what was held when the phase began: alone on a device, their
    difference is the phase's own. None for what cannot be known; nothing at all without a device in use.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._device: list[int] = []
        self._processes: list[int] = []

    def __enter__(self) -> PhaseMemory:
        if self._target == "cuda":
            import torch

            if torch.cuda.is_initialized():
                torch.cuda.reset_peak_memory_stats()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(ASK_LIMIT_S + ASK_S)

    def facts(self) -> dict[str, int | None]:
        """See the class."""
        if self._target != "cuda":
            return {}
        import torch

        if not torch.cuda.is_initialized():
            return {}
        return {
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "processes": max(self._processes, default=None),
            "device": max(self._device, default=None),
            "device_before": self._device[0] if self._device else None,
        }

    def _watch(self) -> None:
        looks = 0
        while True:
            self._look(ask=looks % round(ASK_S / LOOK_S) == 0)
            looks += 1
            if self._ended.wait(LOOK_S):
                self._look(ask=False)
                return

    def _look(self, *, ask: bool) -> None:
        import torch

        if (
            not torch.cuda.is_initialized()
        ):  # asking would make a context, which costs half a gigabyte
            return
        try:
            free, total = torch.cuda.mem_get_info()
        except RuntimeError:  # a fault of the task's kernels: nothing more can be known here
            return
        self._device.append(total - free)
        if ask:
            held = held_by(_said(), {os.getpid(), *descendants(os.getpid())})
            if held is not None:
                self._processes.append(held)


def held_by(said: str, pids: Collection[int]) -> int | None:
    """Bytes that some processes hold, by what `COMMAND` says; None where it names none of them.

    In a container the driver may know processes by other numbers, or not say what they hold.
    """
    held = []
    for line in said.splitlines():
        pid, _, mib = (part.strip() for part in line.partition(","))
        if pid.isdecimal() and mib.isdecimal() and int(pid) in pids:
            held.append(int(mib) * MIB)
    return sum(held) if held else None


def _said() -> str:
    try:
        done = subprocess.run(
            COMMAND, capture_output=True, text=True, check=True, timeout=ASK_LIMIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def peak_of(memory: Any) -> int | None:
    """The most that a phase itself held, by its facts: what the driver says, or else what the device had more."""
    if not memory:
        return None
    if memory.get("processes") is not None:
        return int(memory["processes"])
    if memory.get("device") is None:
        return None
    return int(memory["device"] - memory["device_before"])
