"""What candidates may leave behind: processes, descriptors, files, shared memory, GPU memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sandbox.isolation.privileges import uids_of
from sandbox.judge import Judge

GPU_GRAIN = 64 << 20
"""Bytes. Contexts of processes differ by less."""


@dataclass(frozen=True)
class Snapshot:
    """Counts at one moment. processes: in the judge's folder, or of users that this process's sandbox took.

    Other processes' sandboxes on the machine are not looked at.
    """

    processes: int
    zombies: int
    descriptors: int
    temporary_files: int
    shared_memory_files: int
    gpu_memory: int

    def beyond(self, before: Snapshot) -> dict[str, int]:
        """What there is more of, by kind."""
        mine, theirs = asdict(self), asdict(before)
        return {name: max(0, value - theirs[name]) for name, value in mine.items()}


def snapshot(judges: Sequence[Judge]) -> Snapshot:
    """Count, while all workers are at rest. GPU memory in use is in grains of 64 MiB."""
    workers = [worker for judge in judges for worker in judge.roles.all]
    for worker in workers:
        worker.ready()
    processes = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    servers = (worker._server.process_id for worker in workers)
    folders = [judge.settings.scratch for judge in judges]
    parents = {os.getpid(), *filter(None, servers)}
    return Snapshot(
        processes=sum(_is_ours(entry, folders) for entry in processes),
        zombies=sum(_is_zombie(entry, parents) for entry in processes),
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
        temporary_files=_sandbox_files(Path(tempfile.gettempdir())),
        shared_memory_files=_sandbox_files(Path("/dev/shm")),
        gpu_memory=_gpu_grains() if judges[0].target == "cuda" else 0,
    )


def _is_ours(entry: Path, folders: Sequence[Path]) -> bool:
    try:
        if _state(entry) == "Z":
            return False
        place = (entry / "cwd").readlink()
        return entry.stat().st_uid in uids_of(os.getpid()) or any(
            place.is_relative_to(f) for f in folders
        )
    except OSError:
        return False


def _is_zombie(entry: Path, parents: Collection[int]) -> bool:
    """One that a process of the judge has left, or that ran as a user of the sandbox, whoever should reap it."""
    try:
        text = (entry / "stat").read_text().rpartition(")")[2].split()
        mine = int(text[1]) in parents or entry.stat().st_uid in uids_of(os.getpid())
        return text[0] == "Z" and mine
    except OSError:
        return False


def _state(entry: Path) -> str:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0]


def _sandbox_files(folder: Path) -> int:
    """Of a user of the sandbox, or, where it has none, of this one."""
    mine = uids_of(os.getpid()) if os.geteuid() == 0 else (os.geteuid(),)
    try:
        return sum(entry.lstat().st_uid in mine for entry in folder.iterdir())
    except OSError:
        return 0


def _gpu_grains() -> int:
    import torch

    free, total = torch.cuda.mem_get_info()
    return int((total - free) // GPU_GRAIN)
