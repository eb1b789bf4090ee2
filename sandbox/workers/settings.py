"""How a worker is started: its folders, environment, limits and confinement."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sandbox.compile.toolchain import Toolchain, find_cuda, find_cxx
from sandbox.isolation import confine
from sandbox.isolation.views import worker_view
from sandbox.workers.worker import BYTECODE, places

KEEP = (
    "PATH",
    "LD_LIBRARY_PATH",
    "LANG",
    "LC_ALL",
    "CC",
    "CXX",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "TRITON_PTXAS_PATH",
    BYTECODE,
)
"""What a worker inherits of the environment. Everything else is left behind."""


_STEADY_THREADS = {"GOMP_SPINCOUNT": "5000", "OMP_PROC_BIND": "close", "OMP_PLACES": "threads"}


FILE_BYTES = 1 << 30
"""Of each file that a worker writes, its log included."""


OPEN_FILES = 1 << 14


MEMORY_SHARE = 0.5
"""Of the machine's memory: so much may a worker for cpu call its own."""


@dataclass(frozen=True)
class WorkerSettings:
    """How to start a worker. `folder` is its own; `hello` is its first command.

    memory_bytes: what it may call its own, None for a share of the machine's; not limited on cuda.
    """

    role: str
    folder: Path
    threads: int
    hello: dict[str, Any]
    start_seconds: float = 180.0
    memory_bytes: int | None = None

    @property
    def scratch(self) -> Path:
        """Where it may write: caches and temporary files."""
        return self.folder / "scratch"

    @property
    def inbox(self) -> Path:
        """Where it finds candidates' binaries."""
        return self.folder / "inbox"


def steady_threads(target: str) -> dict[str, str]:
    """Variables that keep each OpenMP thread where it is, where such threads are what is timed.

    One that wakes beside the one that woke it would make a call take twice its time, by chance. The first thread stays
    on the first core, with all that it starts: on cuda compilers of all processes would share that one.
    """
    return dict(_STEADY_THREADS) if target == "cpu" else {}


def environment(settings: WorkerSettings) -> dict[str, str]:
    """The allow-listed environment of a worker.

    Between parallel regions threads spin for 0.1 to 0.3 ms only: enough that several regions in one
    call cost what they do in a user's process, too short to slow the other worker's next call.

    The allocator keeps what is freed: whether a large output lies in pages that are mapped already is otherwise an
    accident of earlier allocations, differs between workers, and can cost more than the kernel.
    """
    kept = {name: os.environ[name] for name in KEEP if name in os.environ}
    threads = str(settings.threads)
    return kept | {
        **places(settings.scratch),
        # Python would run what lies in a home folder, which a worker may write to, before anything is confined.
        "PYTHONNOUSERSITE": "1",
        # gcc asks whether it may use a folder in a way that knows no capabilities; this is its next choice.
        "TMP": ".",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # Torch would import our entry point, which lies where a worker sees nothing, and with it itself fail.
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        **steady_threads(settings.hello["target"]),
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }


def resource_limits(settings: WorkerSettings, memory: int) -> dict[str, int]:
    """The worker's resource limits on a machine with so many bytes of memory."""
    found = {"core": 0, "fsize": FILE_BYTES, "nofile": OPEN_FILES}
    if settings.hello["target"] == "cuda":
        return found  # the driver maps far more than it uses
    return found | {"data": settings.memory_bytes or int(MEMORY_SHARE * memory)}


def isolation_policy(
    settings: WorkerSettings, uid: int | None, extra: Iterable[Path] = ()
) -> confine.Policy:
    """How to confine the worker on this machine. uid: an unused one, if this process may give it. extra: what it may
    read besides."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    target, native = settings.hello["target"], settings.hello["native"]
    view = worker_view(target, settings.scratch, settings.inbox, compilers(), native, extra)
    found = confine.policy(confine.offered(), view, resource_limits(settings, memory), uid)
    return replace(found, for_cuda=target == "cuda")


def compilers() -> list[Path]:
    return [tool.path for tool in (find_cxx(), find_cuda()) if isinstance(tool, Toolchain)]
