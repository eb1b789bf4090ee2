"""Keys, records and child processes that the tests of the kernel cache share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import kernel_cache
from kernel_cache import CacheUnavailable, KernelCache, KernelKey, NegativeRecord, Record
from kernel_cache.canonical import Json, dumps, sha256

DAY = 86400.0
WORKER = Path(__file__).with_name("cache_worker.py")

EVIDENCE: dict[str, Json] = {
    "verifier": "1",
    "toolchain": "g++ 12.2.0",
    "driver": None,
    "policy": "search",
    "samples": {"candidate": [1.25e-4, 1.5e-4], "inductor": [2e-4, 2.5e-4]},
    "errors": [{"rms_ratio": 0.75}],
}


def task(number: int = 0) -> str:
    return dumps({"target": "cpu", "number": number})


def key(number: int = 0, arch: str = "avx512") -> KernelKey:
    flags: dict[str, str | bool | int] = {"float32": "ieee", "fast_reductions": False}
    return KernelKey.of(sha256(task(number).encode()), "cpu", arch, flags, False)


def binary(number: int = 0) -> bytes:
    return f"binary {number} ".encode() * 500


def record(number: int = 0, *, code: bytes | None = None, created: float = 1000.0) -> Record:
    return Record(
        key=key(number),
        task=task(number),
        language="c++",
        origin="sketch",
        label="rows",
        source=f"// kernel {number}",
        plan='{"version":1}',
        binary_digest=sha256(binary(number) if code is None else code),
        evidence=EVIDENCE,
        created=created,
    )


def negative(number: int = 0, *, created: float = 1000.0, lasts: float = DAY) -> NegativeRecord:
    budget: dict[str, Json] = {"seconds": 60}
    return NegativeRecord(key(number), "search", budget, "at the limit", created, created + lasts)


def opened(path: Path, **options: float) -> KernelCache:
    cache = KernelCache.open(path, **options)  # type: ignore[arg-type]
    assert isinstance(cache, KernelCache), cache
    return cache


def refused(path: Path) -> CacheUnavailable:
    answer = KernelCache.open(path, timeout_s=1.0)
    assert isinstance(answer, CacheUnavailable), answer
    assert answer.reason and answer.remedy
    return answer


def start(*arguments: object) -> subprocess.Popen[str]:
    """A child that runs the worker program with these arguments; its output is piped."""
    root = str(Path(kernel_cache.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, str(WORKER), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, str(WORKER.parent)])},
    )


def finish(*children: subprocess.Popen[str]) -> list[str]:
    """Wait for children that must end well; the output of each."""
    outputs = []
    for child in children:
        output, errors = child.communicate(timeout=120)
        assert child.returncode == 0, errors
        outputs.append(output)
    return outputs
