"""What a compiler and a worker may see of the file system: system libraries and headers, their own sources, scratch.

No home folders, no /etc but what the loader needs, no other process in /proc, no /tmp, and of this project only the
package `sandbox`. Neither earlier candidates nor the kernel cache nor the oracle's values are in a view.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

from sandbox.isolation.landlock import View

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
LOADER = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/localtime",
)
MACHINE = (
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/self",
    "/sys/devices/system",
    "/sys/fs/cgroup",
)
THREAD_NAMES = "/proc/self/task"
"""CUDA's driver does not start unless it can name its threads there."""
BY_NAME = ("cc", "gcc", "g++", "c++", "clang", "clang++", "ld", "as", "ptxas")
NULLS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
CUDA_FACTS = (
    "/proc/driver",
    "/proc/devices",
    "/proc/modules",
    "/proc/sys/vm",
    "/proc/sys/kernel",
    "/proc/version",
    "/proc/filesystems",
    "/sys/bus/pci",
    "/sys/class",
    "/sys/devices",
    "/sys/module",
    "/etc/nvidia",
    "/etc/vulkan",
    "/etc/OpenCL",
)


def compiler_view(folder: Path, compilers: Sequence[Path], extra: Iterable[Path] = ()) -> View:
    """For compilers that work in `folder`. extra: folders with headers or libraries."""
    folders = [*SYSTEM, *LOADER, *map(str, extra)]
    folders += [place for compiler in compilers for place in installation(compiler, Path.home())]
    return View(read=_unique(folders), write=(str(folder),), devices=NULLS)


def shell_view(
    folders: Sequence[Path], compilers: Sequence[Path], gpu: bool, extra: Iterable[Path] = ()
) -> View:
    """For an agent's shell: its folders, where it may start what it has built, compilers, facts of the machine.

    extra: more to read, and to start programs from. gpu: whether it may use the GPU.
    """
    own = [str(folder) for folder in folders]
    read = [*SYSTEM, *LOADER, *MACHINE, *map(str, extra), *own]
    for compiler in (*compilers, *_found_by_name()):
        read += installation(compiler, Path.home())
    devices = list(NULLS)
    if gpu:
        read += CUDA_FACTS
        devices += [*_gpu_devices(), THREAD_NAMES]
    return View(_unique(read), _unique(own), _unique(devices))


def python_folders() -> tuple[str, ...]:
    """Where Python and the installed packages are, as this process found them."""
    packages = [
        *site.getsitepackages(),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
    ]
    torch = importlib.util.find_spec("torch")
    shared = str(Path(torch.origin).parents[1]) if torch and torch.origin else ""
    own = str(Path(__file__).resolve().parents[1])
    return _unique([sys.prefix, sys.base_prefix, *packages, shared, own])


def worker_view(
    target: str,
    scratch: Path,
    inbox: Path,
    compilers: Sequence[Path],
    native: str,
    extra: Iterable[Path] = (),
) -> View:
    """For a worker: Python, torch, and the compilers that Inductor calls, those given and those that it finds itself.

    inbox: where candidates' binaries are put.

    native: the folder of the operator library, empty where there is none. extra: more to read.
    """
    read = [*SYSTEM, *LOADER, *MACHINE, *python_folders(), str(inbox), *map(str, extra)]
    for compiler in (*compilers, *_found_by_name()):
        read += installation(compiler, Path.home())
    read += [native] if native else []
    read += [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
    devices = list(NULLS)
    if target == "cuda":
        read += [*CUDA_FACTS, *_from_environment("CUDA_HOME", "CUDA_PATH")]
        devices += [*_gpu_devices(), THREAD_NAMES]
    return View(_unique(read), (str(scratch),), _unique(devices))


def installation(program: Path, home: Path) -> list[str]:
    """The folder that a program is installed in, with its libraries: /opt/x of /opt/x/bin/g++.

    Only the program's own folder where that would be a home folder, a top folder, or one that holds them.
    """
    found = []
    for place in (program.parent, program.resolve().parent):
        root = place.parent
        too_much = len(root.parts) < 3 or home.is_relative_to(root) or root.parent == Path("/home")
        found.append(str(place if too_much else root))
    return sorted(set(found))


def _found_by_name() -> list[Path]:
    """What Inductor and Triton start by name or by a variable."""
    names = [*BY_NAME, *_from_environment("CC", "CXX", "TRITON_PTXAS_PATH")]
    return [Path(path) for path in map(shutil.which, names) if path]


def _from_environment(*names: str) -> list[str]:
    return [os.environ[name] for name in names if os.environ.get(name)]


def _gpu_devices() -> list[str]:
    return sorted(str(path) for path in Path("/dev").glob("nvidia*"))


def _unique(paths: Iterable[str]) -> tuple[str, ...]:
    """Absolute paths, each once; the root folder is not for anyone to give."""
    return tuple(dict.fromkeys(p for p in paths if p.startswith("/") and p.strip("/")))
