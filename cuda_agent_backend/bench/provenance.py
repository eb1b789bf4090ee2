"""What a result was made with: the commit, the sources, the versions."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import cuda_agent_backend
import kernel_cache
import sandbox

PACKAGES = ("torch", "triton", "numpy", "cuda_agent")


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python and of the packages that timings depend on, as far as they are installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit that our sources are checked out from, "-dirty" where they differ from it; "unknown" without one."""
    root = _folder(cuda_agent_backend).parent
    ours = [_folder(package).name for package in (cuda_agent_backend, sandbox, kernel_cache)]
    head = _git(root, "rev-parse", "HEAD")
    inside = _git(root, "ls-files", "--", *ours)
    if not head or not inside:
        return "unknown"
    return head + ("-dirty" if _git(root, "status", "--porcelain", "--", *ours) else "")


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _folder(package: object) -> Path:
    return Path(str(getattr(package, "__file__", ""))).parent
