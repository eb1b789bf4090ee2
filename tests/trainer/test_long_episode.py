"""Long episodes: 150 turns through sampling, masking and an update, within a stated memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
HIDDEN, INNER, LAYERS = 16, 32, 1


def allowed_mb(ids: int) -> float:
    """A constant for pieces of logits, masks and code, and 4 bytes for each id of 40 times the model's width a layer:
    linear in the length. Attention of length squared would be 4 GB for 32,768 ids, all logits 360 MB."""
    return 220 + ids * 4 * 40 * (HIDDEN + INNER) * LAYERS / 2**20


@pytest.mark.parametrize("ids", [16_384, pytest.param(32_768, marks=pytest.mark.slow)])
def test_a_long_episode_is_sampled_and_learnt_from_within_memory(ids: int) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("long_process.py")), str(ids)],
        cwd=PROJECT,
        env={"PYTHONPATH": str(PROJECT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["ids"] >= 0.97 * ids and told["actions"] >= 150
    assert told["gap"] < 1e-3
    assert told["all_mb"] < allowed_mb(ids), told
