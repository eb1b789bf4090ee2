"""Episodes in processes that are killed: ``python episode_process.py FOLDER KILLS SECONDS SEED``.

Runs the episode of `episode_kit.winning`, and one of the search policy, each in a child of its own that is killed after
a random time and started again until it has had KILLS deaths; the last one may finish. "late" are deaths between the
episode's end and its answer, after which it begins anew: what ended is not taken up. Lines are written a few bytes
at a time, so that many deaths tear one. Prints one JSON line for each episode.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import episode_kit as kit

from cuda_agent_backend.agent import resume
from cuda_agent_backend.agent.loop import Budget, run_episode
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.trajectories import file as trajectory_file
from cuda_agent_backend.agent.trajectories import store as trajectory_store

PIECE = 400


def pause() -> None:
    time.sleep(0.003)


def slowly(descriptor: int, data: bytes) -> int:
    """A write of a few bytes: `os.write` may always write less than it was asked to."""
    time.sleep(0.0002)
    return REAL_WRITE(descriptor, data[:PIECE])


REAL_WRITE = os.write


def scripted() -> tuple[Callable[[], Any], Any]:
    steps = [s for s in kit.winning() if getattr(s, "content", "") != "A shell."]
    return (lambda: kit.Script(steps, delay=pause)), kit.Tools(delay=pause)


def searching() -> tuple[Callable[[], Any], Any]:
    import test_tools

    from cuda_agent_backend.agent.tools.toolbox import Toolbox

    return SearchPolicy, Toolbox(test_tools.TASK, test_tools.Scripted(judged="too_slow"))


EPISODES: dict[str, Callable[[], tuple[Callable[[], Any], Any]]] = {
    "scripted": scripted,
    "searching": searching,
}


def episode(folder: Path, name: str, make: Callable[[], Any], tools: Any) -> dict[str, Any]:
    """One life: go on, or begin."""
    begun = resume.begin(folder, kit.header(policy=name), make, tools.schemas)
    assert begun.record is not None
    with begun.record as record:
        result = run_episode(begun.policy, tools, Budget(1e9), record=record, past=begun.past)
    return {
        "said": kit.said(result.trajectory),
        "stop": result.stop,
        "reward": result.reward,
        "reason": result.reason,
        "turns": result.turns,
        "best": result.best and result.best[0].digest,
    }


def life(folder: Path, name: str, seconds: float | None, made: tuple[Any, Any]) -> int:
    """A child that is killed after so many seconds; its exit status, negative for a death by a signal."""
    child = os.fork()
    if child == 0:
        trajectory_file.os.write = slowly  # type: ignore[attr-defined, assignment]
        status = 1
        try:
            answer = json.dumps(episode(folder, name, *made))
            (folder / "part").write_text(answer)
            (folder / "part").rename(folder / "answer")
            status = 0
        finally:
            os._exit(status)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    folder, kills, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    chance = random.Random(int(sys.argv[4]))
    resume.MAX_FRUITLESS = kills + 1  # here it is never the episode that kills its process
    for name, build in EPISODES.items():
        plain = episode(folder / f"plain-{name}", name, *build())
        made = build()  # children have copies of it, and it is never used here
        place = folder / name
        place.mkdir()
        deaths = torn = late = 0
        while deaths < kills:
            status = life(place, name, chance.uniform(0.0, seconds), made)
            if status == 0:
                break
            assert status == -signal.SIGKILL, status
            deaths += 1
            torn += any(not p.read_bytes().endswith(b"\n") for p in place.glob("*.jsonl"))
            if (place / "answer").exists():
                break
            late = sum(trajectory_store.ended(p) for p in place.glob("*.jsonl"))
        if not (place / "answer").exists():
            assert life(place, name, None, made) == 0
        answer = json.loads((place / "answer").read_text())
        facts = {"name": name, "deaths": deaths, "torn": torn, "late": late}
        print(json.dumps({**facts, "answer": answer, "plain": plain}), flush=True)


if __name__ == "__main__":
    main()
