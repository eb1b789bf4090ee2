"""The example with TRL: its trainer plays episodes in our environment, and learns from the rewards of the verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROCESS = Path(__file__).parent / "grpo_process.py"


@pytest.mark.slow(40)
@pytest.mark.skipif(
    find_spec("trl") is None,
    reason='the extra train is not installed: pip install "cuda_agent[train]"',
)
def test_trl_plays_whole_episodes_and_learns_from_their_rewards(tmp_path: Path) -> None:
    """The tiny model cannot speak, so what it says is put into its mouth; all else is TRL's own. And it runs alone."""
    found = os.environ.get("PYTHONPATH", "")
    ours = {"PYTHONPATH": os.pathsep.join([str(ROOT), found]), "TRL_EXPERIMENTAL_SILENCE": "1"}
    subprocess.run([sys.executable, PROCESS, tmp_path], env={**os.environ, **ours}, check=True)
    said = json.loads((tmp_path / "said.json").read_text())
    (plain,) = said["plain"]
    assert plain["reward"] == -1.0 and plain["tools/call_frequency"] == 0.0
    scripted = said["scripted"]
    assert len(scripted["logged"]) == 2
    for step, own, prompt in zip(
        scripted["logged"], scripted["own"], scripted["prompts"][::4], strict=True
    ):
        assert step["reward"] == pytest.approx((own - 1.0) / 2)  # two of four give up
        assert step["tools/call_frequency"] == 1.5 and step["tools/failure_frequency"] == 0.0
        assert "Budget: 10 judgements." in prompt and '"name": "sketch"' in prompt
    assert any(step["reward_std"] > 0 for step in scripted["logged"]) and scripted["moved"]
