"""What machine this is, and what its memory and arithmetic can do at most."""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

COPY_BYTES = 1 << 28
GPU_COPY_BYTES = 1 << 31
WIDTH, GPU_WIDTH = 1024, 8192
"""Of the matrices that are multiplied."""
FEW_BYTES, NARROW = 1 << 20, 128
"""To load what measures: bytes that are read, and a width of matrices."""
REPEATS = 5
REPEATABLE = 1.01
"""A rate measured twice, on a machine at rest: higher by less than this factor."""


@dataclass(frozen=True)
class Ceilings:
    """Best rates seen. Bytes per second: `bytes_per_s` copying (read plus written), `read_bytes_per_s`
    reading only. `flops_per_s`: multiplications and additions of a large matrix product, in float32 unless said."""

    bytes_per_s: float
    read_bytes_per_s: float
    flops_per_s: float
    cache_bytes: int
    """Last-level cache: so much of what is written may not have reached memory when a call returns."""

    @classmethod
    def of(cls, rates: Mapping[str, Any]) -> Ceilings:
        """From JSON, whatever else that holds. Raises KeyError for a rate that is missing."""
        return cls(**{field.name: rates[field.name] for field in fields(cls)})

    def seconds_to_move(self, read: float, written: float) -> float:
        """Least seconds for so many bytes: reading alone is faster than copying, whose rate that of writing is."""
        return read / self.read_bytes_per_s + written / self.bytes_per_s

    def best_of(self, other: Ceilings) -> Ceilings:
        """The higher of each, from two measurements."""
        return Ceilings(
            max(self.bytes_per_s, other.bytes_per_s),
            max(self.read_bytes_per_s, other.read_bytes_per_s),
            max(self.flops_per_s, other.flops_per_s),
            max(self.cache_bytes, other.cache_bytes),
        )

    def exceeds(self, other: Ceilings) -> bool:
        """Whether some rate is higher than the other's by more than `REPEATABLE` says."""
        return any(
            getattr(self, name) > REPEATABLE * getattr(other, name)
            for name in ("bytes_per_s", "read_bytes_per_s", "flops_per_s")
        )

    def to_dict(self) -> dict[str, float]:
        """As JSON."""
        return asdict(self)


@cache
def _processor() -> tuple[str, str]:
    model, flags = platform.processor() or platform.machine(), ""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            elif key.strip() == "flags":
                flags = value.strip()
                break
    return model, flags


def facts() -> dict[str, Any]:
    """The machine as JSON: processor, cores, system, compilers, torch, and the first GPU if any.

    Not cached as a whole: load and GPU state change.
    """
    import torch

    from sandbox.compile.toolchain import Toolchain, find_cuda, find_cxx

    model, flags = _processor()
    compilers = {"c++": find_cxx(), "cuda": find_cuda()}
    vectors = [f for f in flags.split() if f.startswith(("avx", "amx", "sse4", "fma"))]
    found: dict[str, Any] = {
        "cpu": model,
        "cpu_flags": vectors,
        "cores": len(os.sched_getaffinity(0)),
        "load": list(os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "compilers": {
            name: item.version if isinstance(item, Toolchain) else None
            for name, item in compilers.items()
        },
    }
    if torch.cuda.is_available():
        found |= _gpu_facts()
    return found


def _gpu_facts() -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    driver = None
    with suppress(OSError):
        driver = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    return {
        "gpu": properties.name,
        "gpu_arch": f"sm_{properties.major}{properties.minor}",
        "gpu_memory": properties.total_memory,
        "gpu_sms": properties.multi_processor_count,
        "driver": driver,
    }


def cache_bytes(target: str) -> int:
    """Size of the last-level cache (L2 on a GPU); 32 MiB where it cannot be found."""
    import torch

    if target == "cuda":
        return int(torch.cuda.get_device_properties(0).L2_cache_size)
    sizes = []
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with suppress(OSError, ValueError):
            text = index.read_text().strip()
            sizes.append(int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]])
    return max(sizes, default=1 << 25)


def ceilings(target: str, dtype: str = "float32") -> Ceilings:
    """Measure the ceilings; a second or two. The best of some repeats, as noise only slows down.

    dtype: of the matrix product.
    """
    size, width = (GPU_COPY_BYTES, GPU_WIDTH) if target == "cuda" else (COPY_BYTES, WIDTH)
    try:
        return _ceilings(target, dtype, size, width)
    finally:
        release_memory(target)


def ceilings_bytes(target: str) -> int:
    """What `ceilings` holds of a GPU's memory at most: what it copies, twice, and three matrices; 0 on cpu."""
    return 2 * GPU_COPY_BYTES + 3 * 4 * GPU_WIDTH**2 if target == "cuda" else 0


def load_for_ceilings(target: str) -> None:
    """Do on cuda, with next to no data, what `ceilings` does: importing and compiling its kernel take seconds, which
    belong in nobody's turn on the device. What goes wrong here comes up again there."""
    if target == "cuda":
        with suppress(RuntimeError, ZeroDivisionError):
            _ceilings(target, "float32", FEW_BYTES, NARROW)


def _ceilings(target: str, dtype: str, size: int, width: int) -> Ceilings:
    """size: bytes that are read or copied."""
    import torch

    device = torch.device("cuda", 0) if target == "cuda" else torch.device("cpu")
    source = torch.ones(size // 4, device=device)
    sink = torch.empty_like(source)
    a, b = (torch.randn(width, width, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
    copy = _best(lambda: sink.copy_(source), target)
    # Eight partial maxima keep the reduction from being bound by arithmetic.
    read = _best(lambda: source.view(torch.int32).amax(), target)
    if target == "cuda":
        read = min(read, _streamed(source))
    product = _best(lambda: torch.mm(a, b), target)
    return Ceilings(
        bytes_per_s=2 * size / copy,
        read_bytes_per_s=max(size / read, size / copy),
        flops_per_s=2 * width**3 / product,
        cache_bytes=cache_bytes(target),
    )


def _streamed(source: Any) -> float:
    """Seconds of a read by a kernel of ours; infinite where Triton does not work, as torch's rates do then."""
    import torch

    try:
        from sandbox.timing import streaming

        sums = torch.empty(source.numel() // streaming.BLOCK, device=source.device)
        streaming.read(source, sums)  # compiled by its first call
        return _best(lambda: streaming.read(source, sums), "cuda")
    except Exception as error:  # whichever of Triton, its backend and the C compiler is missing
        log.warning(
            "reading is measured with torch's own kernels: %s: %s", type(error).__name__, error
        )
        return float("inf")


def release_memory(target: str) -> None:
    """Give back what torch keeps of the device's memory for this process to use again."""
    import torch

    if target == "cuda" and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def peak_bytes(target: str) -> int:
    """The most that this process had of the device's memory for tensors since this was asked last; 0 on cpu."""
    import torch

    if target != "cuda" or not torch.cuda.is_initialized():
        return 0
    peak = int(torch.cuda.max_memory_allocated())
    torch.cuda.reset_peak_memory_stats()
    return peak


def _best(work: Callable[[], Any], target: str) -> float:
    """Seconds, by the device's own clock where it has one."""
    seconds = _device_seconds if target == "cuda" else _seconds
    return min(seconds(work) for _ in range(REPEATS))


def _seconds(work: Callable[[], Any]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def _device_seconds(work: Callable[[], Any]) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e-3
