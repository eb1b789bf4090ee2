"""Policies that say anything, against the tools: ``agent-fuzz.json``.

    python -m benchmarks.agent_fuzz [--episodes 2000] [--real 300] [--only scripted|real]

scripted: against a bench that answers at once, with every verdict that there is. real: against the cpu judge, which
compiles and runs what sketches made. Looked for are crashes, answers that are missing, rewards that are not those of
the verdicts, and what is left behind: threads, descriptors, temporary files.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.agent_fuzz_policies import KINDS, FuzzedPolicy
from benchmarks.sandbox_candidates import task
from benchmarks.store import Facts, Results, arguments
from cuda_agent_backend.agent.loop import Budget, EpisodeResult, run_episode
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.tools.toolbox import Toolbox
from sandbox import scratch
from sandbox.accuracy.report import AccuracyReport
from sandbox.compile.disassembly import Inspection
from sandbox.failures import CompileFailed, Failure
from sandbox.judge import Judge
from sandbox.judge.settings import JudgeSettings
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task
from sandbox.timing.decision import report
from sandbox.verdict import Baselines, Correct, Outcome, Verdict

TURNS = 12
REWARDS: dict[str, float | None] = {
    "wins": 3.0, "too_slow": 1.0, "wrong": -1.0, "crashed": -1.0, "noisy": None, "failed": None
}  # fmt: skip


@dataclass(frozen=True)
class Built:
    """What compiling gives here."""

    facts: Mapping[str, Any] = field(default_factory=dict)


class AnyBench:
    """A bench that answers at once, and anything, by a seed."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def baselines(self, task: Task) -> Baselines | Failure:
        return Baselines(3e-5, 2e-5, 1e-6, 1e-5)

    def compile(self, candidate: Candidate) -> Any:
        return Built() if self._draw.random() < 0.8 else CompileFailed("it does not compile")

    def inspect(self, candidate: Candidate) -> Inspection | Failure:
        return Inspection({}, {}, "nothing to read")

    def verify(self, task: Task, candidate: Candidate) -> Outcome:
        return Correct(AccuracyReport(()))

    def profile(self, task: Task, candidate: Candidate, *, worth: float) -> Outcome:
        mine = self._draw.choice([1e-5, 2e-5, 4e-5])
        speed = report({"eager": [3e-5] * 12, "inductor": [2e-5] * 12, "candidate": [mine] * 12})
        return Correct(AccuracyReport(()), speed)

    def judge(self, task: Task, candidate: Candidate) -> Verdict:
        status = self._draw.choice(list(REWARDS))
        return Verdict(status, status, REWARDS[status])


@dataclass(frozen=True)
class Left:
    """What a process holds."""

    threads: frozenset[threading.Thread]
    descriptors: int
    temporary_files: int

    def beyond(self, before: Left) -> dict[str, int]:
        """What there is more of. What others left before may end meanwhile: a thread of theirs makes up for no new one,
        and fewer descriptors are nothing left behind."""
        return {
            "threads": len(self.threads - before.threads),
            "descriptors": max(0, self.descriptors - before.descriptors),
            "temporary_files": self.temporary_files - before.temporary_files,
        }


@contextmanager
def own_temporary_folder() -> Iterator[Path]:
    """All temporary files of this process and its children in one folder."""
    before, known = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before
            os.environ.pop("TMPDIR")
            if known is not None:
                os.environ["TMPDIR"] = known


def held(folder: Path) -> Left:
    """What this process holds now."""
    gc.collect()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    threads = frozenset(threading.enumerate())
    return Left(threads, descriptors, sum(1 for _ in folder.rglob("*")))


def faults(result: EpisodeResult, tools: Toolbox) -> list[str]:
    """What is not as it should be after an episode."""
    found = []
    won = {name for name, verdict in tools.verdicts.items() if verdict.wins}
    if (result.best is not None) != bool(won) or (
        result.best is not None and result.best[0].digest[:12] not in won
    ):
        found.append("the best candidate is not one that won")
    if result.reward != expected_reward(result, tools):
        found.append(f"the reward is {result.reward}")
    if result.turns > TURNS:
        found.append("too many turns")
    return found + unanswered(result.trajectory)


def unanswered(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Calls without an answer of their own, of messages that were answered at all."""
    found = []
    for place, message in enumerate(messages):
        ids = [call["id"] for call in message.get("tool_calls", ())]
        after = messages[place + 1 : place + 1 + len(ids)]
        if not ids or not after or after[0]["role"] == "user":
            continue
        if [m.get("tool_call_id") for m in after] != ids:
            found.append(f"calls {ids} have other answers")
        elif not all(isinstance(json.loads(m["content"])["ok"], bool) for m in after):
            found.append("an answer does not say whether it went well")
    return found


def expected_reward(result: EpisodeResult, tools: Toolbox) -> float | None:
    """-1 where nothing was verified, else the best verdict's; None where that is not known, or nobody was heard."""
    known = [v.reward for v in tools.verdicts.values() if v.reward is not None]
    unheard = result.turns == 0 and result.stop != "bug"
    unknown = unheard or bool(tools.verdicts) or result.stop == "infrastructure"
    return max(known) if known else (None if unknown else -1.0)


def fuzz(kind: str, seeds: range, bench: Any, of: Task) -> Facts:
    """Episodes of one kind. bench: None for one that answers anything."""
    endings: Counter[str] = Counter()
    wrong: list[str] = []
    turns = calls = 0
    with own_temporary_folder() as folder:
        with scratch.folder(
            "loaded"
        ):  # the process's home among temporary files stays while it lives
            pass
        before = held(folder)
        for seed in seeds:
            tools = Toolbox(of, AnyBench(seed) if bench is None else bench)
            try:
                result = run_episode(FuzzedPolicy(kind, seed), tools, Budget(1e9, TURNS))
            except Exception as error:
                wrong.append(f"{kind} {seed}: {type(error).__name__}: {error}"[:300])
                continue
            wrong += [f"{kind} {seed}: {fault}" for fault in faults(result, tools)]
            turns += result.turns
            calls += sum(m["role"] == "tool" for m in result.trajectory)
            endings[
                "won" if result.best is not None else "verified" if tools.verdicts else "-1"
            ] += 1
        left = held(folder).beyond(before)
    return {
        "episodes": len(seeds),
        "turns": turns,
        "calls_answered": calls,
        "won": endings["won"],
        "judged_without_a_winner": endings["verified"],
        "nothing_judged": endings["-1"],
        "wrong": wrong,
        "left_behind": left,
    }


def wake(judge: Judge, of: Task) -> None:
    """Have a judge do all that it does, so that it has its workers, and the memory that it shares with them."""
    tools = Toolbox(of, judge)
    run_episode(SearchPolicy(), tools, Budget(60.0))
    candidate = next(iter(tools.candidates.values()))
    judge.verify(of, candidate)
    judge.profile(of, candidate)
    judge.judge(of, candidate)


def summarise(samples: Mapping[str, Facts]) -> Facts:
    """All kinds together, for each bench."""
    found: Facts = {}
    for part in ("scripted", "real"):
        mine = [s for name, s in samples.items() if name.startswith(part)]
        if mine:
            left = [s["left_behind"] for s in mine]
            found[part] = {
                "episodes": sum(s["episodes"] for s in mine),
                "calls_answered": sum(s["calls_answered"] for s in mine),
                "won": sum(s["won"] for s in mine),
                "wrong": sum(len(s["wrong"]) for s in mine),
                "left_behind": {key: sum(max(0, one[key]) for one in left) for key in left[0]},
            }
    return found


def main() -> None:
    """Run the kinds that are not done."""
    parser = arguments(__doc__.partition("\n")[0], ("cpu",))
    parser.add_argument("--episodes", type=int, default=2000, help="against the scripted bench")
    parser.add_argument("--real", type=int, default=300, help="against the judge")
    args = parser.parse_args()
    counts = {"scripted": args.episodes // len(KINDS), "real": args.real // len(KINDS)}
    names = [f"{part}-{kind}" for part in counts for kind in KINDS]
    chosen = [name for name in names if name.startswith(args.only)]
    with (
        tempfile.TemporaryDirectory() as scratch,
        Judge(JudgeSettings("cpu", scratch_dir=Path(scratch))) as judge,
    ):

        def run(name: str) -> Facts:
            part, _, kind = name.partition("-")
            seeds, real = range(counts[part]), part == "real"
            # What starts once is there before it is counted.
            if real:
                wake(judge, task("cpu"))
            fuzz(kind, range(1), None, task("cpu"))
            facts = fuzz(kind, seeds, judge if real else None, task("cpu"))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            return {**facts, "peak_mb": round(peak)}

        samples = Results("agent-fuzz", summarise, args.folder).collect(
            chosen, run, keep=args.keep, limit_s=args.limit
        )
    print(json.dumps(summarise(samples)))


if __name__ == "__main__":
    main()
