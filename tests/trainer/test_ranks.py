"""Several processes: advantages are whitened, and losses divided, by what all of them have; and they keep in step."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from update_ranks_process import updated

from trainer.ppo.ranks import Alone, first_finds
from trainer.stages import checkpoint
from trainer.stages.best import best_of

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def in_two_processes(program: str, *words: str) -> None:
    """Run a program of this folder as two processes that know each other, to their end."""
    port = str(free_port())
    running = []
    for rank in ("0", "1"):
        env = {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "PYTHONPATH": f"{HERE.parents[1]}:{HERE}", "PATH": "/usr/bin:/bin", "ACCELERATE_USE_CPU": "true",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, str(HERE / program), *words]
        running.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
    try:
        for process in running:
            _, error = process.communicate(timeout=500)
            assert process.returncode == 0, error
    finally:
        for process in running:
            process.kill()  # one that failed leaves the other waiting


def together(tmp_path: Path, what: str) -> list[dict[str, torch.Tensor]]:
    """What each of two processes has after an update that they make together."""
    in_two_processes("update_ranks_process.py", str(tmp_path), what)
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


def test_a_process_that_looks_late_does_the_stage_with_the_first(tmp_path: Path) -> None:
    """It found the checkpoint that the first one had just written, and so missed a place where all meet."""
    in_two_processes("stage_ranks_process.py", str(tmp_path))
    first, late = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert first["asked"] == late["asked"] and first["asked"].count("_keep") == 3
    assert first["asked"].count("score") == 3 and best_of(tmp_path / "warmup") is not None
    assert checkpoint.steps_in(tmp_path / "warmup") == [0, 2, 3]
    assert (tmp_path / "warmup" / "done.json").is_file()


def test_the_first_process_finds_for_all() -> None:
    class Second(Alone):
        def everyones(self, value: Any) -> list[Any]:
            assert value is None
            return [7, value]

    second = Second()
    second.rank, second.world = 1, 2
    assert first_finds(second, lambda: pytest.fail("it looked itself")) == 7
    assert first_finds(Alone(), lambda: 3) == 3
