"""What tests of the bench share: a task, a run's settings, and children that answer at once."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from cuda_agent_backend.bench import runner
from cuda_agent_backend.bench.children import Failed
from cuda_agent_backend.bench.discovery import TaskFile
from cuda_agent_backend.bench.request import Request, Wishes
from cuda_agent_backend.bench.runner import Bench, Machine

GOOD = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale, self.bias = scale, nn.Parameter(torch.randn(64))
        self.register_buffer("steps", torch.arange(3))

    def forward(self, x, count):
        return torch.softmax(torch.tanh(x * self.scale) + self.bias, dim=-1) * count

def get_inputs():
    return [torch.randn(256, 64), 2]

def get_init_inputs():
    return [0.5]
"""
WISHES = Wishes("cpu", budget_s=10.0, seconds=0.5, rounds=10)


def task(path: Path, text: str = GOOD) -> TaskFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return TaskFile(path.stem, path.parent.name, path)


def request(tmp_path: Path) -> Request:
    return Request("", "", str(tmp_path), str(tmp_path), str(tmp_path / "lock"), WISHES)


def bench_of(tmp_path: Path, **change: Any) -> Bench:
    known = {"out": tmp_path / "out", "wishes": WISHES, "jobs": 2, "limit_s": 60.0}
    folders = {"native_dir": tmp_path / "native", "device_lock": tmp_path / "lock"}
    return Bench(**{**known, **folders, **change})


class Played:
    """Children that answer at once. Phases of tasks whose name begins with "bad" fail."""

    def __init__(self, die_at: str = "", seconds: float = 0.02) -> None:
        self.ran: list[str] = []
        self.die_at = die_at
        self.seconds = seconds
        self.stopped = False
        self.lock = threading.Lock()
        self.measuring = 0

    def run(self, phase: str, request: Request, folder: Path, limit_s: float) -> Any:
        with self.lock:
            self.ran.append(f"{phase} {folder.name}")
            self.measuring += phase == "measure"
            assert self.measuring < 2, "two were measured at once"
        time.sleep(self.seconds)
        with self.lock:
            self.measuring -= phase == "measure"
        if folder.name == self.die_at:
            raise KeyboardInterrupt
        if folder.name.startswith("bad"):
            return Failed(phase, "it broke", "log")
        return {"seconds": 1.0} if phase == "search" else {"samples": {}}

    def rest(self) -> None:
        self.ran.append("rest")

    def stop(self) -> None:
        self.stopped = True


def run_played(bench: Bench, tasks: list[TaskFile], played: Played) -> list[dict[str, Any]]:
    machine = Machine({"cpu": "x"}, {}, bench.device_lock)
    return runner.run(bench, tasks, machine, "sources", played, lambda one: None)  # type: ignore[arg-type]
