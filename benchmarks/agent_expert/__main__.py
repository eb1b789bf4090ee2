"""A scripted expert against the faster of eager and Inductor, through the agent's tools: ``agent-expert.json``.

    python -m benchmarks.agent_expert --target cuda [--only conv] [--seconds 600]

For each task of `plays`: the practice file's task, a workspace, an episode of `ExpertPolicy` with the real judge. The
expert writes raw source and launch plans, no sketches. Trajectories go to ``build/agent-expert`` unless told otherwise
(`cuda-agent trajectory show FILE`). Goes on where it was when it is run again.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.agent_expert import cpu
from benchmarks.agent_expert.plays import PLAYS
from benchmarks.agent_expert.policy import ExpertPolicy
from benchmarks.agent_expert.script import Play, Version
from benchmarks.agent_expert.tasks import offered_here
from benchmarks.regions import WithEager
from benchmarks.store import ROOT, Facts, Results, arguments
from cuda_agent_backend.agent.environment import open_environment
from cuda_agent_backend.agent.loop import Budget, EpisodeResult, run_episode
from cuda_agent_backend.agent.protocol import Message
from cuda_agent_backend.agent.tools.toolbox import Toolbox
from cuda_agent_backend.agent.trajectories.file import Recorder
from cuda_agent_backend.runtime.machine import arch_of
from cuda_agent_backend.search.episode import header_of
from cuda_agent_backend.settings import Settings
from sandbox.judge import Judge
from sandbox.judge.settings import JudgeSettings

FILES = {"cpu": "cpu-agent-expert", "cuda": "agent-expert"}
TRAJECTORIES = ROOT / "build" / "agent-expert"
WANTED = 8
"""Promotions of ten tasks that are the target."""


def plays_of(target: str) -> Mapping[str, Play]:
    """The plays for a target."""
    return PLAYS if target == "cuda" else cpu.PLAYS


def run_play(
    play: Play,
    judge: Judge,
    budget_s: float,
    trajectories: Path,
    expert: Callable[[Sequence[Version]], ExpertPolicy] = ExpertPolicy,
) -> Facts:
    """One episode; what came of it. Raises `Unfit` or `NotOneTask` where the task is not what was written for."""
    found = offered_here(play.name, judge.target)
    policy = expert(play.versions(found.task))
    bench = WithEager(judge, found.eager)
    bench.baselines(found.task)  # compiling the baselines is not charged to the expert
    with (
        tempfile.TemporaryDirectory(prefix="agent-expert-") as folder,
        open_environment(found.task, bench, Path(folder)) as environment,
    ):
        tools, budget, waited = environment.tools, Budget(budget_s), judge.waited_s
        path = trajectories / f"{play.name.replace('/', '-')}.jsonl"
        path.unlink(missing_ok=True)
        header = header_of(found.task, policy.name, "", tools.schemas, judge.settings.flags, budget)
        with Recorder.create(path, header) as record:
            result = run_episode(
                policy,
                tools,
                budget,
                clock=lambda: time.monotonic() - (judge.waited_s - waited),
                record=record,
            )
        facts = facts_of(play, policy, tools, result)
    return {**facts, "task": found.task.digest}


def facts_of(play: Play, policy: ExpertPolicy, tools: Toolbox, result: EpisodeResult) -> Facts:
    """What the result file says of an episode."""
    facts: Facts = {
        "promoted": result.best is not None,
        "reason": result.reason,
        "why": play.why,
        "turns": result.turns,
        "seconds": round(result.seconds, 1),
        "versions": versions_tried(result.trajectory),
        "profiles": policy.speeds,
    }
    if tools.baselines is not None:
        facts |= {"room": tools.baselines.room, "baselines": asdict(tools.baselines)}
    verdicts = [v for v in tools.verdicts.values() if v.speed is not None]
    verdict = result.best[1] if result.best else max(verdicts, key=_low, default=None)
    if result.best:
        facts["language"] = result.best[0].language
    if verdict is not None and verdict.speed is not None:
        facts |= {
            "status": verdict.status,
            "reward": verdict.reward,
            "speedup": verdict.speed.speedup.median,
            "low": verdict.speed.speedup.low,
            "high": verdict.speed.speedup.high,
            "baseline": verdict.speed.baseline,
            "error_ratio": verdict.accuracy.error_ratio if verdict.accuracy else None,
            "evidence": verdict.evidence,
        }
    facts["verdicts"] = {name: [v.status, v.reason] for name, v in tools.verdicts.items()}
    return facts


def _low(verdict: Any) -> float:
    return float(verdict.speed.speedup.low)


def versions_tried(messages: Sequence[Message]) -> list[Facts]:
    """Of each compilation: what the expert said, the candidate and its machine code's facts, or why there is none."""
    calls = {
        call["id"]: (message["content"], json.loads(call["function"]["arguments"]))
        for message in messages
        for call in message.get("tool_calls", ())
        if call["function"]["name"] == "compile"
    }
    found = []
    for message in messages:
        if message["role"] == "tool" and message["tool_call_id"] in calls:
            say, arguments_ = calls[message["tool_call_id"]]
            answer = json.loads(message["content"])
            kept = {k: answer[k] for k in ("candidate", "facts", "error") if k in answer}
            found.append({"say": say, "source": arguments_["source"], **kept})
    return found


def summarise(samples: Mapping[str, Facts]) -> Facts:
    """The figures of the table's row."""
    won = {name: facts for name, facts in samples.items() if facts.get("promoted")}
    return {
        "tasks": len(samples),
        "promoted": len(won),
        "wanted_of_ten": WANTED,
        "in_triton": sorted(n for n, facts in won.items() if facts.get("language") == "triton"),
        "geomean_of_promoted": (
            statistics.geometric_mean(f["speedup"] for f in won.values()) if won else None
        ),
        "not_promoted": {n: f.get("reason") for n, f in samples.items() if n not in won},
    }


def main() -> None:
    """Play the tasks that are not done."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, dest="limit", help="the same as --limit")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds of each episode")
    parser.add_argument("--trajectories", type=Path, default=TRAJECTORIES)
    args = parser.parse_args()
    chosen = {n: play for n, play in plays_of(args.target).items() if args.only in n}
    results = Results(FILES[args.target], summarise, args.folder)
    settings = Settings.from_environment()
    with (
        tempfile.TemporaryDirectory() as scratch,
        Judge(
            JudgeSettings(
                args.target,
                scratch_dir=scratch,
                native_dir=settings.native_dir,
                device_lock=settings.device_lock,
                arch=arch_of(args.target),
                consent=True,
            )
        ) as judge,
    ):

        def run(name: str) -> Facts:
            try:
                return run_play(chosen[name], judge, args.budget, args.trajectories)
            except ValueError as error:  # another task than was written for: the rest goes on
                return {"promoted": False, "reason": f"{type(error).__name__}: {error}"}

        samples = results.collect(chosen, run, keep=args.keep, limit_s=args.limit)
    print(json.dumps(summarise(samples), indent=1))


if __name__ == "__main__":
    main()
