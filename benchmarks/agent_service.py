"""Many episodes over one judge: how busy is it? ``agent-service.json``.

    python -m benchmarks.agent_service [--episodes 64] [--seconds LOW HIGH] [--window S] [--beside TEXT]

Each episode is a policy that takes as long for a turn as a model does (it sleeps), and does what a model does with the
tools: it looks, makes kernels, profiles them, has the best one judged. Judge and machine are real. Busy is the share of
the wall time, from the first episode's beginning to the last one's end, in which the judge compiled, ran or judged
anything; the device's share leaves compiling out. With a window all is cut after so many seconds, and the shares are
those of the window.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.sandbox_candidates import task
from benchmarks.store import Facts, Results, arguments
from cuda_agent_backend.agent.fleet import Fleet
from cuda_agent_backend.agent.loop import Budget
from cuda_agent_backend.agent.protocol import Message, Schema, ToolCall, Turn
from cuda_agent_backend.agent.trajectories.events import Header, Trajectory
from cuda_agent_backend.agent.trajectories.file import read
from cuda_agent_backend.runtime.machine import all_flags, arch_of, toolchain_of
from cuda_agent_backend.settings import Settings
from sandbox.judge import Judge
from sandbox.judge.pool import Pool
from sandbox.judge.settings import JudgeSettings
from sandbox.task.task import Task
from sandbox.verdict import VERIFIER_VERSION

EPISODES = 64
LATENCY_S = (2.0, 6.0)
"""What a turn takes to make, between these."""
SIZES = ((256, 512), (512, 512), (512, 1024), (1024, 1024))
KERNELS = 2
BUSY = 0.80
"""The share that is wanted."""


@dataclass
class Modelled:
    """A policy with the latency of a model. What it does follows from the messages."""

    chance: random.Random
    latency: tuple[float, float] = LATENCY_S
    name: str = "modelled"

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
        """Sleep, then take the next step."""
        time.sleep(self.chance.uniform(*self.latency))
        return next_step(messages)


def next_step(messages: Sequence[Message]) -> Turn:
    """Look, sketch, profile, submit the fastest; whatever comes of that ends the episode."""
    names = [message["name"] for message in messages if message["role"] == "tool"]
    answers = [json.loads(m["content"]) for m in messages if m["role"] == "tool"]
    made = [
        a["candidate"] for n, a in zip(names, answers, strict=True) if n == "sketch" and a["ok"]
    ]
    if not names:
        return _calls("look", [{}])
    if names[-1] == "look" and answers[-1].get("sketch"):
        chosen = answers[-1]["schedules"][:KERNELS]
        return _calls("sketch", [{"schedule": schedule} for schedule in chosen])
    if names[-1] == "sketch" and made:
        return _calls("profile", [{"candidate": name} for name in dict.fromkeys(made)])
    if names[-1] == "profile":
        speeds = [a.get("speedup", {}).get("median", 0.0) for a in answers[-len(set(made)) :]]
        return _calls(
            "submit", [{"candidate": max(zip(speeds, dict.fromkeys(made), strict=True))[1]}]
        )
    return _calls("submit", [{"reason": "that was all"}])


def _calls(name: str, arguments: list[dict[str, Any]]) -> Turn:
    made = (ToolCall.of(f"{name}_{n}", name, **given) for n, given in enumerate(arguments))
    return Turn(f"Now {name}.", tuple(made))


def headers(target: str) -> Any:
    """Makes the headers of trajectories; what is the same for all is found out once."""
    toolchain, flags = toolchain_of(target) or "none", all_flags()

    def header_of(of: Task, policy: str, schemas: Sequence[Schema]) -> Header:
        return Header(
            task=of.to_json(),
            task_digest=of.digest,
            target=target,
            policy=policy,
            spec=policy,
            tools="",
            machine={},
            toolchain=toolchain,
            verifier=VERIFIER_VERSION,
            flags=flags,
            started=time.time(),
            budget_s=float("inf"),
            turns=20,
        )

    return header_of


def measure(
    target: Any, episodes: int, latency: tuple[float, float], window: float, beside: str
) -> Facts:
    """All episodes at once; one judgement before them, so that workers and baselines are warm."""
    tasks = [task(target, *SIZES[number % len(SIZES)]) for number in range(episodes)]
    chances = iter([random.Random(number) for number in range(episodes)])
    before, settings = os.getloadavg(), Settings.from_environment()
    with (
        tempfile.TemporaryDirectory() as scratch,
        tempfile.TemporaryDirectory() as folder,
        Judge(
            JudgeSettings(
                target,
                scratch_dir=scratch,
                native_dir=settings.native_dir,
                device_lock=settings.device_lock,
                arch=arch_of(target),
            )
        ) as judge,
    ):
        judge.baselines(tasks[0])
        pool = Pool(judge)
        fleet = Fleet(
            pool,
            lambda of: Modelled(next(chances), latency),
            Budget(float("inf"), turns=20),
            at_once=episodes,
            policy_calls=episodes,
            folder=Path(folder),
            header_of=headers(target),
        )
        started = time.monotonic()
        reading: list[tuple[float, float, float]] = []

        def read_off() -> None:
            reading.append((time.monotonic() - started, pool.working_s, pool.judging_s))

        def cut() -> None:
            read_off()  # before what has begun is finished
            pool.end()

        timer = threading.Timer(min(window, threading.TIMEOUT_MAX), cut)
        timer.daemon = True
        timer.start()
        ended, stops, turns, whole = list[float](), Counter[str](), 0, 0
        left = 0
        for finished in fleet.run(tasks):
            if finished.result.stop == "interrupted":
                left += 1
                continue
            ended.append(time.monotonic() - started)
            stops[finished.result.stop] += 1
            turns += finished.result.turns
            kept = None if finished.path is None else read(finished.path)
            whole += isinstance(kept, Trajectory) and kept.finished
        timer.cancel()
        if not left:
            reading.clear()
            read_off()
        wall, working, judging = reading[0]
        found = [read(path) for path in Path(folder).glob("*.jsonl")]
        verdicts = Counter(
            v.status for t in found if isinstance(t, Trajectory) for v in t.gains.verdicts.values()
        )
    return {
        "episodes": episodes,
        "latency_seconds": list(latency),
        "wall_seconds_of_all": wall,
        "working_seconds": working,
        "judging_seconds": judging,
        "busy": working / wall,
        "device_busy": judging / wall,
        "policies_seconds": sum(
            e.seconds for t in found if isinstance(t, Trajectory) for e in acted(t)
        ),
        "turns": turns,
        "stops": dict(stops),
        "verdicts": dict(verdicts),
        "whole_trajectories": whole,
        "ended_after_seconds": ended,
        "cut_by_the_window": left,
        "load_before": list(before),
        "load_after": list(os.getloadavg()),
        "beside": beside,
    }


def acted(found: Trajectory) -> list[Any]:
    """The events in which the policy made a turn."""
    from cuda_agent_backend.agent.trajectories.events import Acted

    return [event for event in found.events if isinstance(event, Acted)]


def summarise(samples: dict[str, Facts]) -> Facts:
    """The figure of the table's row."""
    return {
        name: {
            "busy": facts["busy"],
            "device_busy": facts["device_busy"],
            "wanted": BUSY,
            "reached": facts["busy"] > BUSY,
            "episodes": facts["episodes"],
            "ended": len(facts["ended_after_seconds"]),
            "beside": facts["beside"],
        }
        for name, facts in samples.items()
    }


def main() -> None:
    """Run it."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument(
        "--seconds",
        type=float,
        nargs=2,
        default=LATENCY_S,
        metavar=("LOW", "HIGH"),
        help="of a turn",
    )
    parser.add_argument(
        "--window", type=float, default=float("inf"), help="cut after so many seconds"
    )
    parser.add_argument("--beside", default="", help="what else ran on the machine meanwhile")
    args = parser.parse_args()
    results = Results("agent-service", summarise, args.folder)
    name = f"{args.target}-{args.episodes}"

    def run(_: str) -> Facts:
        return measure(args.target, args.episodes, tuple(args.seconds), args.window, args.beside)

    samples = results.collect([name], run, keep=args.keep, limit_s=args.limit)
    print(json.dumps(summarise(samples), indent=1))


if __name__ == "__main__":
    main()
