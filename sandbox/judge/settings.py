"""What a judge is told when it is made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox.memory.device import CudaMemory, DeviceMemory, Unlimited
from sandbox.memory.footprint import FRUGAL_BYTES, KEPT_SHARE
from sandbox.task import flags as torch_flags
from sandbox.timing.machine import Ceilings
from sandbox.timing.turns import TurnsOver


def _own_cores() -> int:
    return len(os.sched_getaffinity(0))


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Timeouts:
    """Seconds: start of a worker, preparation (Inductor's compilation), compilation of a candidate,
    one call of anything.

    is_over: asked between the steps of a check and of a race; where nobody waits for their end any more, they are left.
    """

    start: float = 180.0
    prepare: float = 300.0
    compile: float = 120.0
    run: float = 20.0
    is_over: Callable[[], bool] = _never

    def go_on(self) -> None:
        """Raises `TurnsOver` where nobody waits any more."""
        if self.is_over():
            raise TurnsOver("nobody waits for it any more")


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """All folders are the caller's."""

    target: str = field(kw_only=False)
    """"cpu" or "cuda"."""
    scratch_dir: Path | str
    """What workers and compilers write to."""
    native_dir: Path | str | None = None
    """Keeps the operator library; without it the operators serve in Python."""
    arch: str = "native"
    """For cuda "sm_90a" and the like."""
    threads: int = field(default_factory=_own_cores)
    """Of each worker; by default the cores this process may use."""
    flags: Mapping[str, Any] = field(default_factory=torch_flags.current)
    """See `sandbox.task.flags`; by default those of this process."""
    inductor: Mapping[str, Any] = field(default_factory=dict)
    """A patch of Inductor's configuration, for baseline and wrapper."""
    consent: bool = False
    """Whether C++ written by a policy may run."""
    cxx_flags: Sequence[str] = ()
    """For the C++ compiler, beside its own."""
    timeouts: Timeouts = Timeouts()
    ceilings: Ceilings | None = None
    """Of this machine; measured when first needed where they are not given."""
    memory_bytes: int | None = None
    """What a worker for cpu may call its own; by default a share of the machine's."""
    device_lock: Path | None = None
    """A file by which processes take turns on the device (see `sandbox.timing.device_lock`), and beside which leases on
    its memory lie (`sandbox.memory.leases`); None where this one is alone."""
    frugal_from: int | None = None
    """Bytes of a task's inputs and outputs from which a session is sparing of the device's memory; by default
    `FRUGAL_BYTES` on cuda, and never on cpu."""
    kept_share: float = KEPT_SHARE
    """Of the device's memory on cuda, how much a quick check may keep between candidates of a task."""
    memory: DeviceMemory | None = None
    """The device's memory; by default that of the first GPU on cuda, and one without limit on cpu."""

    @property
    def scratch(self) -> Path:
        """The absolute folder that workers and compilers write to."""
        return Path(self.scratch_dir).resolve()

    @property
    def frugal_bytes(self) -> int | None:
        """As `frugal_from`, with its default; None for never."""
        usual = FRUGAL_BYTES if self.target == "cuda" else None
        return usual if self.frugal_from is None else self.frugal_from

    @property
    def device_memory(self) -> DeviceMemory:
        """As `memory`, with its default."""
        return self.memory or (CudaMemory() if self.target == "cuda" else Unlimited())

    @property
    def native(self) -> str:
        """The absolute folder of the operator library; empty where there is none."""
        return str(Path(self.native_dir).resolve()) if self.native_dir else ""
