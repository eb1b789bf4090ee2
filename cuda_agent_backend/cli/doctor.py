"""What works on this machine, and what to install: every check takes facts and gives a value.

`examine` gathers the facts, the only part with effects; `diagnose` turns them into checks, so every answer can be
tested on any machine.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table

    from sandbox.isolation.mechanisms import Isolation

Status = Literal["ok", "warn", "fail"]

PYTHON_RANGE = ((3, 11), (3, 14))
TORCH_RANGE = ((2, 11), (2, 15))
MIN_CAPABILITY = (8, 0)
STATUS_STYLE = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True)
class Check:
    """One line of the report, with what to do. fail: nothing of ours runs; warn: something runs less well."""

    name: str
    status: Status
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Found:
    """A tool or part that is there; `what` is its version or place."""

    what: str


@dataclass(frozen=True)
class Absent:
    """A tool or part that is not there: why, and what to do about it."""

    reason: str
    remedy: str


Part = Found | Absent


@dataclass(frozen=True)
class Facts:
    """What this machine has. gpu: (name, compute capability) of the first CUDA device, None without one."""

    system: str
    python: tuple[int, int]
    torch: str
    threads: int
    cores: int
    gpu: tuple[str, tuple[int, int]] | None
    cxx: Part
    cuda: Part
    ninja: Part
    launcher: Part
    native: Part
    cache_folder: Part
    entry_point: Part
    isolation: Part = Found("not looked at")
    disassembler: Part = Found("not looked at")
    sanitizer: Part = Found("not looked at")
    triton: Part = Found("not looked at")


def version_pair(text: str) -> tuple[int, int]:
    """(2, 13) of "2.13.0+cpu"; (0, 0) where there is no version in it."""
    parts = text.split("+")[0].split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        return 0, 0


def diagnose(facts: Facts) -> tuple[Check, ...]:
    """The report on these facts, in the order in which it is shown."""
    has_gpu = facts.gpu is not None
    return (
        _system(facts.system),
        _in_range("python", ".".join(map(str, facts.python)), facts.python, PYTHON_RANGE),
        _in_range("torch", facts.torch, version_pair(facts.torch), TORCH_RANGE),
        _threads(facts.threads, facts.cores),
        _gpu(facts.gpu),
        _part("C++ compiler", facts.cxx, "fail"),
        _part("CUDA compiler", facts.cuda, "fail" if has_gpu else "ok"),
        _part("ninja", facts.ninja, "warn"),
        _part("launcher extension", facts.launcher, "fail"),
        _part("native operators", facts.native, "warn"),
        _part("kernel cache folder", facts.cache_folder, "fail"),
        _part("torch.compile entry point", facts.entry_point, "warn"),
        _part("isolation of candidates", facts.isolation, "warn"),
        _part("disassembler", facts.disassembler, "warn"),
        _part("compute-sanitizer", facts.sanitizer, "warn" if has_gpu else "ok"),
        _part("Triton", facts.triton, "ok"),
    )


def worst(checks: Sequence[Check]) -> Status:
    """The gravest status among the checks."""
    order: tuple[Status, ...] = ("fail", "warn", "ok")
    return next((status for status in order if any(c.status == status for c in checks)), "ok")


def _system(system: str) -> Check:
    if system == "Linux":
        return Check("system", "ok", system)
    return Check("system", "fail", system, "cuda_agent runs on Linux")


def _in_range(
    name: str, text: str, version: tuple[int, int], allowed: tuple[tuple[int, int], tuple[int, int]]
) -> Check:
    low, below = allowed
    if low <= version < below:
        return Check(name, "ok", text)
    span = f"{low[0]}.{low[1]} to {below[0]}.{below[1] - 1}"
    status: Status = "fail" if version < low else "warn"
    return Check(name, status, text or "not found", f"install {name} {span}; others are not tested")


def _threads(threads: int, cores: int) -> Check:
    found = f"{threads} on {cores} core{'s' if cores != 1 else ''}"
    if threads <= cores:
        return Check("OpenMP threads", "ok", found)
    remedy = f"more threads than cores: set OMP_NUM_THREADS={cores}, or timings mean nothing"
    return Check("OpenMP threads", "warn", found, remedy)


def _gpu(gpu: tuple[str, tuple[int, int]] | None) -> Check:
    if gpu is None:
        return Check("GPU", "ok", "none: the target is the CPU")
    name, capability = gpu
    found = f"{name}, compute capability {capability[0]}.{capability[1]}"
    if capability < MIN_CAPABILITY:
        return Check("GPU", "warn", found, "too old: 8.0 is needed, models run on Inductor")
    return Check("GPU", "ok", found)


def _part(name: str, part: Part, if_absent: Status) -> Check:
    if isinstance(part, Found):
        return Check(name, "ok", part.what)
    return Check(name, if_absent, part.reason, "" if if_absent == "ok" else part.remedy)


def examine(cache_dir: Path, native_dir: Path, *, build: bool = True) -> Facts:
    """Look at this machine. `build`: compile the native operators if they are not built yet (about a minute, once)."""
    import torch

    gpu = None
    if torch.cuda.is_available():
        gpu = (torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0))
    return Facts(
        system=platform.system(),
        python=(sys.version_info.major, sys.version_info.minor),
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        cores=len(os.sched_getaffinity(0)),
        gpu=gpu,
        cxx=_compiler("c++"),
        cuda=_compiler("cuda"),
        ninja=_ninja(),
        launcher=_launcher(),
        native=_native(native_dir) if build else Absent("not looked at", "leave out --quick"),
        cache_folder=_cache_folder(cache_dir),
        entry_point=_entry_point(),
        isolation=_isolation(),
        disassembler=_tool("cuda" if gpu else "cpu"),
        sanitizer=_tool("sanitizer"),
        triton=_compiler("triton"),
    )


def _compiler(kind: Literal["c++", "cuda", "triton"]) -> Part:
    from sandbox.compile.toolchain import Missing, Toolchain, find_cuda, find_cxx, find_triton

    finders: dict[str, Callable[[], Toolchain | Missing]] = {
        "c++": find_cxx,
        "cuda": find_cuda,
        "triton": find_triton,
    }
    found = finders[kind]()
    if isinstance(found, Toolchain):
        return Found(found.version)
    return Absent(found.reason, found.remedy)


def _tool(kind: Literal["cpu", "cuda", "sanitizer"]) -> Part:
    from sandbox.compile.disassembly import find_disassembler
    from sandbox.sanitizer.tool import find_sanitizer

    found = find_sanitizer() if kind == "sanitizer" else find_disassembler(kind)
    if isinstance(found, Path):
        return Found(str(found))
    return Absent(found.reason, found.remedy)


def _ninja() -> Part:
    import shutil

    beside = Path(sys.executable).with_name("ninja")
    path = shutil.which("ninja") or (str(beside) if beside.is_file() else None)
    return Found(path) if path else Absent("no ninja", "pip install ninja")


def _launcher() -> Part:
    remedy = "run `make setup`, or `pip install -e .` in the checkout: it needs g++ and pybind11"
    try:
        import sandbox._launcher as extension
    except ImportError as error:
        return Absent(f"not built: {error}", remedy)
    return Found(Path(extension.__file__ or "built in").name)


def _native(native_dir: Path) -> Part:
    from sandbox.launcher import Missing, define_ops, ensure_native

    define_ops()
    found = ensure_native(native_dir)
    if isinstance(found, Missing):
        return Absent(f"{found.reason}; the slower Python operators serve", found.remedy)
    return Found("built")


def _isolation() -> Part:
    from sandbox.isolation.confine import offered

    return judge_isolation(offered())


def judge_isolation(found: Isolation) -> Part:
    """What the level in force means to the user."""
    if found.level == "full":
        return Found(found.describe())
    because = f" ({found.why})" if found.why else ""
    reason = f"{found.describe()}; lacking: {', '.join(found.lacking)}{because}"
    remedy = "our sketches run; C++ of a policy is refused. Use Linux 5.13 or above with Landlock, outside of gVisor"
    return Absent(reason, remedy)


def _cache_folder(folder: Path) -> Part:
    from kernel_cache import CacheUnavailable, KernelCache

    cache = KernelCache.open(folder)
    if isinstance(cache, CacheUnavailable):
        return Absent(cache.reason, cache.remedy)
    cache.close()
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Found(str(folder))
    except OSError as error:
        remedy = "make it writable, or name another with CUDA_AGENT_CACHE_DIR"
        return Absent(f"{folder} cannot be written: {error.strerror}", remedy)


def _entry_point() -> Part:
    import torch

    if "cuda_agent" in torch._dynamo.list_backends():
        return Found('torch.compile(model, backend="cuda_agent")')
    return Absent("not registered", "install the package: `pip install -e .` in the checkout")


def check_table(checks: Iterable[Check]) -> Table:
    """The report as a table: one line a check."""
    from rich.text import Text

    from cuda_agent_backend.tools.tables import new_table

    table = new_table("", "check", "", "found", "what to do")
    for check in checks:
        status = Text(check.status, style=STATUS_STYLE[check.status])
        table.add_row(check.name, status, Text(check.found), Text(check.remedy))
    return table
