"""Several processes: advantages are whitened, and losses divided, by what all of them have."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from update_ranks_process import updated

from trainer.ppo.ranks import Alone

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def together(tmp_path: Path, what: str) -> list[dict[str, torch.Tensor]]:
    """What each of two processes has after an update that they make together."""
    port = str(free_port())
    running = []
    for rank in ("0", "1"):
        env = {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "PYTHONPATH": f"{HERE.parents[1]}:{HERE}", "PATH": "/usr/bin:/bin", "ACCELERATE_USE_CPU": "true",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        words = [sys.executable, str(HERE / "update_ranks_process.py"), str(tmp_path), what]
        running.append(subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True))
    for process in running:
        _, error = process.communicate(timeout=500)
        assert process.returncode == 0, error
    return [load_file(tmp_path / f"{what}-{rank}.safetensors") for rank in (0, 1)]


def same(one: Mapping[str, torch.Tensor], both: list[dict[str, torch.Tensor]]) -> None:
    for name, value in one.items():
        assert torch.equal(both[0][name], both[1][name])
        assert torch.allclose(both[0][name], value, atol=1e-5)


def test_two_processes_make_the_update_of_one(tmp_path: Path) -> None:
    same(updated(Alone()), together(tmp_path, "weights"))


def test_two_processes_make_the_update_of_one_with_adapters(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    one = updated(Alone(), adapters=True)
    assert any(value.abs().max() > 1e-4 for name, value in one.items() if "lora_B" in name)
    same(one, together(tmp_path, "adapters"))
