"""Facts of a machine that schedules depend on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sandbox.task.flags import tf32_operators


@dataclass(frozen=True)
class CpuFacts:
    """A processor: vector width in floats and last-level cache in bytes."""

    width: int = 8
    cache_bytes: int = 32 << 20


def cpu_facts() -> CpuFacts:
    """Facts of this machine's processor, from the operating system."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        flags = ""
    name = "SC_LEVEL3_CACHE_SIZE"
    cache = os.sysconf(name) if name in os.sysconf_names else 0
    return CpuFacts(16 if " avx512f" in flags else 8, cache if cache > 0 else 32 << 20)


def gpu_facts(given: DeviceFacts | CpuFacts | None = None) -> DeviceFacts:
    """``given`` if it is a GPU's; else facts of the current GPU under the flags that are set, or, where there is none,
    those of an H200 (kernels can be written anywhere)."""
    import torch

    if isinstance(given, DeviceFacts):
        return given

    if not torch.cuda.is_available():
        return DeviceFacts()
    properties = torch.cuda.get_device_properties()
    major, minor = properties.major, properties.minor
    return DeviceFacts(
        tf32=tf32_operators(),
        sm_count=properties.multi_processor_count,
        l2_bytes=properties.L2_cache_size,
        shared_per_block_bytes=int(getattr(properties, "shared_memory_per_block_optin", 227 << 10)),
        arch=f"sm_{major}{minor}" + ("a" if major >= 9 else ""),
    )


WARP = 32


MAX_THREADS = 1024


@dataclass(frozen=True)
class DeviceFacts:
    """What the sketches need to know of a GPU, and what the user's flags allow there; the defaults are an H200's.

    tf32: of which operators ("matmul", "conv", "rnn") float32 may be computed in TF32.
    """

    sm_count: int = 132
    l2_bytes: int = 60 << 20
    shared_per_block_bytes: int = 227 << 10
    arch: str = "sm_90a"
    tf32: tuple[str, ...] = ()

    @property
    def has_clusters(self) -> bool:
        return int("".join(c for c in self.arch if c.isdigit()) or 0) >= 90


def ceildiv(a: int, b: int) -> int:
    return -(-a // b)
