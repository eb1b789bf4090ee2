"""Facts of a machine that schedules depend on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CpuFacts:
    """A processor: vector width in floats and last-level cache in bytes."""

    width: int = 8
    cache_bytes: int = 32 << 20


@dataclass(frozen=True)
class DeviceFacts:
    """A GPU; the defaults are an H200's."""

    sm_count: int = 132
    l2_bytes: int = 60 << 20
    shared_per_block_bytes: int = 227 << 10
    arch: str = "sm_90a"


def cpu_facts() -> CpuFacts:
    """Facts of this machine's processor, from the operating system."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        flags = ""
    name = "SC_LEVEL3_CACHE_SIZE"
    cache = os.sysconf(name) if name in os.sysconf_names else 0
    return CpuFacts(16 if " avx512f" in flags else 8, cache if cache > 0 else 32 << 20)
