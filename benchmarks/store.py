"""Result files: written anew after every case, so that a benchmark can be cut at any time and goes on where it was."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent_backend.bench import provenance
from cuda_agent_backend.json_values import write_json
from sandbox.file_locks import lock_at_once

FOLDER = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]
COMMIT_VARIABLE = "BENCHMARK_COMMIT"
PACKAGES = ("torch", "triton", "transformers", "numpy")
SAME = ("gpu", "cpu", "cpu_flags", "cores", "machine", "torch", "cuda")
"""Facts that are equal on machines of one kind. Of others, such as the kernel's release or the driver, each sample
keeps its own machine's."""

Facts = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """One result file. ``summarise`` turns the samples of all cases so far into the summary.

    head: what else the file says of all its samples.
    """

    name: str
    summarise: Callable[[dict[str, Facts]], Facts]
    folder: Path = FOLDER
    head: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.folder / f"{self.name}.json"

    def done(self, keep: bool) -> dict[str, Facts]:
        """Samples already there that count: of this kind of machine, and of this commit unless ``keep``."""
        if not self.path.is_file():
            return {}
        found, here = json.loads(self.path.read_text(encoding="utf-8")), machine()
        if not same_machine(found["machine"], here):
            return {}
        samples = with_own_facts(found["samples"], found["machine"], here)
        return {n: s for n, s in samples.items() if keep or s["commit"] == commit()}

    def write(self, samples: dict[str, Facts]) -> None:
        """Write all of it anew; half a file is never seen."""
        value = {
            "machine": machine(),
            "versions": versions(),
            "commit": commit(),
            **self.head,
            "samples": samples,
            "summary": self.summarise(samples),
        }
        write_json(self.path, value)

    def collect(
        self, names: Iterable[str], run: Callable[[str], Facts], *, keep: bool, limit_s: float
    ) -> dict[str, Facts]:
        """Run the cases that are not done, for at most ``limit_s`` seconds, writing after each."""
        samples = self.done(keep)
        started = time.monotonic()
        for name in names:
            if name in samples:
                continue
            if time.monotonic() - started > limit_s:
                print(f"{self.name}: time is up; run it again to go on", flush=True)
                break
            begin = time.monotonic()
            facts = run(name)
            seconds = time.monotonic() - begin
            samples[name] = {**facts, "commit": commit(), "wall_seconds": round(seconds, 1)}
            self.write(samples)
            print(f"{self.name} {name}: {brief(facts)} ({seconds:.0f} s)", flush=True)
        return samples


class InUse(Exception):
    """Another process is at work on the same file or folder; the message names it."""


@contextmanager
def only_one(*places: Path) -> Iterator[None]:
    """Within it no other process of this user may say the same of one of these files or folders, which need not exist.

    Raises `InUse` where one does: each would write what it knows over what the other wrote.
    """
    with ExitStack() as stack:
        for place in places:
            name = hashlib.sha256(str(place.resolve()).encode()).hexdigest()[:16]
            lock = Path(tempfile.gettempdir()) / f"cuda_agent-{os.getuid()}-{name}.lock"
            if not lock_at_once(stack.enter_context(lock.open("a")).fileno(), fcntl.LOCK_EX):
                raise InUse(f"another process is at work on {place}")
        yield


def arguments(
    description: str,
    targets: tuple[str, ...] = ("cpu", "cuda"),
    only: str = "cases whose name contains this",
) -> argparse.ArgumentParser:
    """The arguments that every benchmark has. only: which cases are meant by that one."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--target", choices=targets, default="cpu")
    parser.add_argument("--only", default="", help=only)
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="stop after so many seconds"
    )
    parser.add_argument("--keep", action="store_true", help="keep cases of other commits")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where results are written")
    return parser


def brief(facts: Facts) -> str:
    """The figures of a case on one line."""
    shown = {k: v for k, v in facts.items() if isinstance(v, int | float | str | bool)}
    return ", ".join(
        f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items()
    )


def commit() -> str:
    """The commit that is checked out, with "-dirty" where tracked source files differ from it.

    ``BENCHMARK_COMMIT`` says it for a copy of the files without a repository.
    """
    if COMMIT_VARIABLE in os.environ:
        return os.environ[COMMIT_VARIABLE]
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git(
            "status", "--porcelain", "--untracked-files=no", "--", ":!benchmarks/results"
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("-dirty" if changed else "")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def machine() -> Facts:
    """Facts of the machine that timings depend on."""
    from sandbox.timing.machine import facts

    found = facts()
    if "gpu" in found:
        import torch

        found["gpus"] = torch.cuda.device_count()
    return found


def short_name(gpu: str) -> str:
    """The name of a GPU in names of files: "h100" of "NVIDIA H100 80GB HBM3", "cuda" of a name without a number."""
    words = re.findall(r"\w+", gpu.lower())
    return next((word for word in words if re.search(r"\d", word)), "cuda")


def same_machine(one: Facts, other: Facts) -> bool:
    """Whether timings may be compared: the same GPUs, processor and torch. Older files do not say how many GPUs."""
    names = (*SAME, "gpus") if "gpus" in one and "gpus" in other else SAME
    return all(one.get(name) == other.get(name) for name in names)


def with_own_facts(samples: Mapping[str, Facts], own: Facts, head: Facts) -> dict[str, Facts]:
    """Samples of a file for that of another machine of the kind: each says by ``machine`` what differs on its own.

    own, head: facts of the machine that the one file names, and the other.
    """
    found = {}
    for name, facts in samples.items():
        had = {**own, **facts.get("machine", {})}
        differs = {k: v for k, v in had.items() if k != "load" and v != head.get(k)}
        rest = {k: v for k, v in facts.items() if k != "machine"}
        found[name] = {**rest, "machine": differs} if differs else rest
    return found


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that timings depend on."""
    return provenance.versions(PACKAGES)
