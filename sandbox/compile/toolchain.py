"""Find the compilers on this machine."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from sandbox.isolation.limits import SYSTEM_PATH

CUDA_ROOTS = (Path("/usr/local/cuda"), Path("/opt/cuda"))
NVRTC_PATTERNS = (
    "lib64/libnvrtc.so.1[2-9]",
    "lib/libnvrtc.so.1[2-9]",
    "cuda_nvrtc/lib/libnvrtc.so.1[2-9]",
)
TRITON_ASSEMBLER = "backends/nvidia/bin/ptxas"
INCLUDE_FOLDERS = ("include", "cuda_runtime/include")
VERSION_S, AGAIN_S = 30.0, 60.0
"""A compiler that does not tell its version in so many seconds is asked again after so many."""


@dataclass(frozen=True)
class Toolchain:
    """A compiler. `version` is its own words and goes into the evidence. `include` is given to it with -I."""

    kind: Literal["c++", "nvcc", "nvrtc", "triton"]
    path: Path
    version: str
    include: Path | None = None


@dataclass(frozen=True)
class Missing:
    """Something this machine lacks, and what to do about it; `log` is a failed build's output."""

    reason: str
    remedy: str
    log: str = ""


def find_cxx() -> Toolchain | Missing:
    """The C++ compiler: g++, else clang++."""
    for name in ("g++", "clang++"):
        path = shutil.which(name)
        version = _version(path) if path else None
        if path and version:
            return Toolchain("c++", Path(path), version.splitlines()[0])
    return Missing("no C++ compiler", "install g++ (Debian, Ubuntu: apt install g++)")


def find_cuda() -> Toolchain | Missing:
    """The CUDA compiler: nvcc where a C++ compiler is found too, else the NVRTC library."""
    if isinstance(find_cxx(), Toolchain):
        for path in _nvcc_paths():
            version = _version(str(path))
            if version:
                return Toolchain("nvcc", path, _release(version))
    return find_nvrtc() or Missing(
        "no CUDA compiler (neither nvcc nor NVRTC)",
        "install the CUDA toolkit, or the nvidia-cuda-nvrtc package of torch's CUDA version",
    )


@lru_cache
def find_triton() -> Toolchain | Missing:
    """The folder of the Triton package, which is not imported. Looked up once per process."""
    spec = importlib.util.find_spec("triton")
    file = Path(spec.origin) if spec and spec.origin else None
    if file is not None and file.is_file():
        version = re.search(r"""^__version__ = ['"]([^'"]+)""", file.read_text(), re.MULTILINE)
        if version and (file.parent / TRITON_ASSEMBLER).is_file():
            return Toolchain("triton", file.parent, f"triton {version.group(1)}")
    return Missing("no Triton for CUDA", "install it: pip install 'triton>=3.6'")


def find_nvrtc() -> Toolchain | None:
    """The NVRTC library of the installed wheels or of a CUDA toolkit."""
    for library, include in _nvrtc_paths():
        return Toolchain("nvrtc", library, f"NVRTC {library.resolve().name}", include)
    return None


def find_cuda_tool(name: str, folders: Sequence[str] = ("bin",)) -> Path | None:
    """A program of the CUDA toolkit: on the path, in nvcc's toolkit, in the usual places, in the wheels.

    folders: where to look for it below a root.
    """
    on_path = shutil.which(name)
    nvcc = find_cuda()
    roots = [*CUDA_ROOTS, *wheel_roots()]
    if isinstance(nvcc, Toolchain) and nvcc.kind == "nvcc":
        roots = [nvcc.path.parents[1], nvcc.path.resolve().parents[1], *roots]
    places = [Path(on_path)] if on_path else []
    places += [root / folder / name for root in roots for folder in folders]
    return next((place for place in places if place.is_file()), None)


def _nvcc_paths() -> Iterator[Path]:
    on_path = shutil.which("nvcc")
    if on_path:
        yield Path(on_path)
    for root in (*CUDA_ROOTS, *wheel_roots()):
        if (root / "bin/nvcc").is_file():
            yield root / "bin/nvcc"


def _nvrtc_paths() -> Iterator[tuple[Path, Path | None]]:
    for root in (*wheel_roots(), *CUDA_ROOTS):
        for pattern in NVRTC_PATTERNS:
            for library in sorted(root.glob(pattern), reverse=True):
                yield library, cuda_include(root)


def cuda_include(root: Path) -> Path | None:
    """The folder with cuda_fp16.h below a toolkit's or the wheels' root."""
    folders = (root / folder for folder in INCLUDE_FOLDERS)
    return next((f for f in folders if (f / "cuda_fp16.h").is_file()), None)


def torch_headers() -> tuple[Path, ...]:
    """The folder with torch's own C++ headers, which is there wherever its wheel is. torch is not imported."""
    spec = importlib.util.find_spec("torch")
    places = [Path(p) / "include" for p in (spec.submodule_search_locations or [])] if spec else []
    return tuple(place for place in places if place.is_dir())


def wheel_roots() -> tuple[Path, ...]:
    """Folders where the nvidia-* wheels put their parts: one per CUDA version for 13 and up, one for all before."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    return tuple(
        root for place in places for root in (*sorted(place.glob("cu[0-9]*"), reverse=True), place)
    )


class _SaysNothing(Exception):
    """A compiler did not tell its version."""


_failed_at: dict[str, float] = {}
"""When a compiler last did not tell its version, by `time.monotonic`."""


def _version(path: str) -> str | None:
    if time.monotonic() < _failed_at.get(path, -AGAIN_S) + AGAIN_S:
        return None
    try:
        return _told_version(path)
    except (_SaysNothing, OSError, subprocess.SubprocessError):
        _failed_at[path] = time.monotonic()
        return None


@lru_cache
def _told_version(path: str) -> str:
    """Asked once per process; a failure is not kept, since it may pass. No file is written: torch asks for compilers'
    versions in each compilation of a user, also where the disk is full."""
    done = subprocess.run(
        [path, "--version"],
        cwd="/",
        env={"PATH": SYSTEM_PATH, "LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=VERSION_S,
        check=False,
    )
    if done.returncode != 0 or not done.stdout.strip():
        raise _SaysNothing
    return done.stdout.strip()


def _release(text: str) -> str:
    match = re.search(r"V(\d+\.\d+\.\d+)", text)
    return f"nvcc {match.group(1)}" if match else text.splitlines()[-1]
