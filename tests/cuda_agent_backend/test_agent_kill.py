"""Processes that are really killed, at random points, until their episode is done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cuda_agent_backend.agent.trajectories.events import Acted, Answered, Resumed, Trajectory
from cuda_agent_backend.agent.trajectories.file import read

HERE = Path(__file__).parent


def killed(folder: Path, kills: int, seconds: float, seed: int) -> list[dict[str, Any]]:
    path = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    done = subprocess.run(
        [sys.executable, "episode_process.py", str(folder), str(kills), str(seconds), str(seed)],
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(folder: Path, found: dict[str, Any]) -> None:
    """The end is that of an episode that nobody disturbed, and the file says everything once."""
    assert found["answer"] == found["plain"]
    read_all = [read(path) for path in (folder / found["name"]).glob("*.jsonl")]
    whole = [t for t in read_all if isinstance(t, Trajectory)]
    assert len(whole) == 1 + found["late"]
    for trajectory in whole:
        events = trajectory.events
        assert trajectory.finished and not trajectory.torn
        assert sum(isinstance(event, Acted) for event in events) == found["plain"]["turns"]
        answers = sum(len(event.messages) for event in events if isinstance(event, Answered))
        assert answers == sum(message["role"] == "tool" for message in found["plain"]["said"])
        assert sum(isinstance(event, Resumed) for event in events) <= found["deaths"]


def test_an_episode_that_is_killed_again_and_again_ends_as_one_that_is_not(tmp_path: Path) -> None:
    found = killed(tmp_path, 25, 0.08, 1)
    assert [facts["name"] for facts in found] == ["scripted", "searching"]
    assert sum(facts["deaths"] for facts in found) > 10
    for facts in found:
        check(tmp_path, facts)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_hundreds_of_deaths_lose_nothing(tmp_path: Path, seed: int) -> None:
    found = killed(tmp_path, 120, 0.02 + 0.01 * seed, seed)
    for facts in found:
        check(tmp_path, facts)


@pytest.mark.slow
def test_a_search_with_the_real_judge_goes_on_after_each_kill(
    tmp_path: Path, native_dir: Path
) -> None:
    cache, folder = tmp_path / "kernels", tmp_path / "kernels-trajectories"
    path = os.pathsep.join([str(HERE), str(HERE.parents[1])])

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "judged_process.py", str(cache), str(native_dir)],
            cwd=HERE,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )

    before: bytes = b""
    for more in (3, 1):  # the first line of one that goes on says so
        process, lines = start(), before.count(b"\n") + more
        while written(folder).count(b"\n") < lines and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        process.communicate()
        found = written(folder)
        assert found.startswith(before)
        before = found
    said = json.loads(start().communicate()[0])
    whole = written(folder)
    assert whole.startswith(before)
    (file,) = folder.glob("*.jsonl")
    kept = read(file)
    assert isinstance(kept, Trajectory) and kept.finished and kept.end is not None
    assert sum(isinstance(event, Resumed) for event in kept.events) == 2
    assert len(kept.turns) == said["turns"] == kept.end.turns
    assert bool(kept.end.promoted) is said["won"]
    calls = [c["id"] for m in kept.messages for c in m.get("tool_calls", ())]
    answered = [m["tool_call_id"] for m in kept.messages if m["role"] == "tool"]
    assert calls == answered and len(set(calls)) == len(calls)


def written(folder: Path) -> bytes:
    """What the one file holds, in whole lines."""
    content = b"".join(path.read_bytes() for path in folder.glob("*.jsonl"))
    return content[: content.rfind(b"\n") + 1]
