"""What of this process and machine goes into a kernel's key: architecture, precision flags, compiler."""

from __future__ import annotations

import errno
import functools
import hashlib
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from kernel_cache import KernelKey, Record, needs_reverification
from sandbox.task import flags
from sandbox.task.task import Task

LIBRARIES = "libraries"
"""What evidence calls the versions of libraries that a plan calls; without calls it has none."""

PROCESSORS = "processors"
"""What evidence calls the multiprocessors that blocks of a cooperative launch were at once on; others have none."""


def key_of(task: Task) -> KernelKey:
    """The key under which a kernel for the task is kept, under the flags set now."""
    return KernelKey.of(
        task.digest,
        task.target,
        arch_of(task.target),
        precision_flags(),
        torch.are_deterministic_algorithms_enabled(),
    )


@functools.cache
def arch_of(target: str) -> str:
    """`sm_90a` and the like for cuda; for cpu the machine type and a digest of the instruction sets it has. Raises
    OSError where what the system says of it cannot be read now."""
    if target == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"
    digest = hashlib.sha256(_cpu_features().encode()).hexdigest()[:12]
    return f"{platform.machine()}-{digest}"


def _cpu_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:  # another one may pass, and the answer is kept
        return platform.processor()
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return " ".join(sorted(flags.partition(":")[2].split()))


def precision_flags() -> dict[str, str | bool | int]:
    """The user's flags that are part of a key, by name. Those that few people touch are only where somebody did."""
    found = flags.without_defaults(flags.current())
    return {name: value for name, value in found.items() if not name.startswith("deterministic")}


def all_flags() -> dict[str, Any]:
    """What another process needs to compile and measure as this one would."""
    return {"torch": flags.current(), "threads": torch.get_num_threads()}


def apply_flags(wanted: Mapping[str, Any]) -> None:
    """Make another process's flags ours."""
    flags.apply(wanted["torch"])
    torch.set_num_threads(int(wanted["threads"]))


def why_doubted(record: Record) -> str | None:
    """Why a record must be verified anew before it is used here, or None: another compiler, of a plan that calls
    libraries others than those that its evidence names, or of one with cooperative launches a smaller device."""
    now = toolchain_of(record.key.target, record.language)
    doubt = needs_reverification(record.toolchain, now)
    if not doubt and PROCESSORS in record.evidence:
        doubt = _too_small(record.evidence[PROCESSORS], processors())
    if doubt or LIBRARIES not in record.evidence:
        return doubt
    then, here = record.evidence[LIBRARIES], libraries()
    return None if then == here else f"verified with {then}, this machine has {here}"


def why_unfit(record: Record) -> str | None:
    """Why a record's binary cannot run on this machine, or None. What compiled it does not matter: it is compiled."""
    target = record.key.target
    if target == "cuda" and not torch.cuda.is_available():
        return "it is for a GPU, and there is none"
    if record.key.arch != (here := arch_of(target)):
        return f"it is for {record.key.arch}, this machine is {here}"
    if PROCESSORS in record.evidence:
        return _too_small(record.evidence[PROCESSORS], processors())
    return None


def _too_small(then: object, here: int) -> str | None:
    if not isinstance(then, int) or not 0 < here < then:
        return None
    return f"verified on {then} multiprocessors, this device has {here}"


def processors() -> int:
    """Multiprocessors of the current GPU; 0 where there is none."""
    if not torch.cuda.is_available():
        return 0
    return int(torch.cuda.get_device_properties().multi_processor_count)


@functools.cache
def libraries() -> str:
    """Versions of what a plan's library calls run: torch, which makes them, and cuBLAS and cuDNN where it has them.
    Raises OSError where nothing installed can be read."""
    found = [f"torch {torch.__version__}"]
    if torch.version.cuda is not None:
        owned = {d.metadata["Name"]: d.version for d in metadata.distributions()}
        if not owned:  # folders that cannot be read are passed over, and the answer is kept
            raise OSError(errno.EMFILE, "no installed package is to be seen")
        blas = sorted(f"{n} {v}" for n, v in owned.items() if n and n.startswith("nvidia-cublas"))
        # installed with the system, cuBLAS comes with CUDA
        found += blas or [f"CUDA {torch.version.cuda}"]
        found.append(f"cuDNN {torch.backends.cudnn.version()}")
    return ", ".join(found)


def toolchain_of(target: str, language: str = "") -> str | None:
    """The version of the compiler for a target, or None where there is none. language: of the source, "" for any but
    Triton, which brings a compiler of its own."""
    from sandbox.compile.toolchain import Toolchain, find_cuda, find_cxx, find_triton

    find = find_triton if language == "triton" else find_cxx if target == "cpu" else find_cuda
    found = find()
    return found.version if isinstance(found, Toolchain) else None
