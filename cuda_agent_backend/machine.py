"""What of this process and machine goes into a kernel's key: architecture, precision flags, compiler."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kernel_cache import KernelKey
from sandbox.task import Task


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
    """`sm_90a` and the like for cuda; for cpu the machine type and a digest of the instruction sets it has."""
    if target == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"
    digest = hashlib.sha256(_cpu_features().encode()).hexdigest()[:12]
    return f"{platform.machine()}-{digest}"


def _cpu_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return " ".join(sorted(flags.partition(":")[2].split()))


def precision_flags() -> dict[str, str | bool | int]:
    """The user's precision flags, by name; "unset" where torch will not say (two ways of setting them were mixed)."""
    return {
        "float32_matmul": _read(torch.get_float32_matmul_precision),
        "cuda_tf32": _read(lambda: torch.backends.cuda.matmul.allow_tf32),
        "cudnn_tf32": _read(lambda: torch.backends.cudnn.allow_tf32),
        "fp16_reduced": _read(
            lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
        ),
        "bf16_reduced": _read(
            lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        ),
    }


def _read(read: Any) -> str:
    try:
        return str(read())
    except RuntimeError:
        return "unset"


def all_flags() -> dict[str, Any]:
    """What another process needs to compile and measure as this one would."""
    return {
        "precision": precision_flags(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
    }


def apply_flags(flags: Mapping[str, Any]) -> None:
    """Make another process's flags ours."""
    _set_precision(flags["precision"])
    torch.use_deterministic_algorithms(bool(flags["deterministic"]))
    torch.set_num_threads(int(flags["threads"]))


def _set_precision(flags: Mapping[str, Any]) -> None:
    if flags.get("float32_matmul", "unset") != "unset":
        torch.set_float32_matmul_precision(flags["float32_matmul"])
    for name, (owner, attribute) in {
        "cuda_tf32": (torch.backends.cuda.matmul, "allow_tf32"),
        "cudnn_tf32": (torch.backends.cudnn, "allow_tf32"),
        "fp16_reduced": (
            torch.backends.cuda.matmul,
            "allow_fp16_reduced_precision_reduction",
        ),
        "bf16_reduced": (
            torch.backends.cuda.matmul,
            "allow_bf16_reduced_precision_reduction",
        ),
    }.items():
        if flags.get(name) in ("True", "False"):
            setattr(owner, attribute, flags[name] == "True")


@functools.cache
def toolchain_of(target: str) -> str | None:
    """The version of the compiler for a target, or None where there is none."""
    from sandbox.toolchain import Toolchain, find_cuda, find_cxx

    found = find_cxx() if target == "cpu" else find_cuda()
    return found.version if isinstance(found, Toolchain) else None
