"""Region families against the faster of eager and Inductor: ``cpu-regions.json`` or ``h200-regions.json``.

Each case goes the way of any model: Inductor's post-grad graph, region, task, agent, judge. See ``docs/benchmarks.md``.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.cases import Case, cases
from benchmarks.store import Facts, Results, arguments
from cuda_agent_backend.agent.loop import Budget, run_episode
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.tools.toolbox import Toolbox
from cuda_agent_backend.graph.canonical import Canonical, canonical, linear
from cuda_agent_backend.options import Options
from cuda_agent_backend.partition.regions import partition
from cuda_agent_backend.runtime.machine import arch_of
from cuda_agent_backend.settings import Settings
from cuda_agent_backend.tools.capture import capture
from cuda_agent_backend.tools.warm import options_from
from sandbox.judge import Judge
from sandbox.judge.settings import JudgeSettings
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task
from sandbox.verdict import Verdict

FILES = {"cpu": "cpu-regions", "cuda": "h200-regions"}
ROOM = 1.10
"""Above it a case has something to win."""
LIMIT_TURNS = 3


@dataclass(frozen=True)
class Offered:
    """A case's largest region as a task, the number of its regions, and what eager mode runs in its place."""

    task: Task
    regions: int
    eager: Task | None


def offered(case: Case, options: Options) -> Offered | str:
    """The case's task, or why it has none."""
    module, inputs = case.make()
    found: list[tuple[int, Canonical]] = []
    reasons = []
    for graph in capture(module, inputs, options):
        places = [node for node in graph.module.graph.nodes if node.op == "placeholder"]
        for region in partition(graph.module.graph):
            form = canonical(region.nodes, region.outputs, region.target)
            if region.reason or not isinstance(form, Canonical):
                reasons.append(region.reason or form.reason)
            else:
                found.append((region.moved, form))
    if not found:
        return f"no region is offered: {'; '.join(reasons) or 'there is none'}"
    _, form = max(found, key=lambda item: item[0])
    order = [places.index(node) if (node := _root(n)) in places else -1 for n in form.inputs]
    eager = eager_task(module, inputs, order, form.task) if len(found) == 1 else None
    return Offered(form.task, len(found), eager)


def _root(node: Node) -> Node:
    """The node that a chain of views starts from."""
    while node.op == "call_function" and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node


def eager_task(
    module: nn.Module, inputs: Sequence[Tensor], order: Sequence[int], task: Task
) -> Task | None:
    """What eager mode runs, before decompositions, on the task's inputs for its outputs; None if it is no such task.

    order: which of the module's inputs each input of the task is, perhaps in another shape.
    """
    if sorted(order) != list(range(len(inputs))) or len(task.output_specs) != 1:
        return None
    if any(inputs[i].numel() != spec.numel for i, spec in zip(order, task.inputs, strict=True)):
        return None  # the graph takes its inputs in another order than the module

    def eager(*given: Tensor) -> Tensor:
        own = [_shaped(given[order.index(i)], x.shape) for i, x in enumerate(inputs)]
        return _shaped(module(*own), task.output_specs[0].shape)

    given = [_shaped(inputs[i], spec.shape) for i, spec in zip(order, task.inputs, strict=True)]
    with torch.no_grad():
        graph = make_fx(eager, tracing_mode="fake")(*given).graph
    places = [node for node in graph.nodes if node.op == "placeholder"]
    body = [node for node in graph.nodes if node.op == "call_function"]
    form = linear(body, places, graph.output_node().all_input_nodes, task.target)
    same = isinstance(form, Task) and form.inputs == task.inputs
    return form if same and form.output_specs == task.output_specs else None


def _shaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """In that shape, without an operator where it has it already."""
    return x if tuple(x.shape) == tuple(shape) else x.reshape(shape)


class WithEager:
    """A judge whose eager baseline is what eager mode really runs."""

    def __init__(self, judge: Judge, eager: Task | None) -> None:
        self.judge_, self.eager = judge, eager

    def baselines(self, task: Task) -> Any:
        return self.judge_.baselines(task, eager_task=self.eager)

    def profile(self, task: Task, candidate: Candidate, **options: Any) -> Any:
        return self.judge_.profile(task, candidate, eager_task=self.eager, **options)

    def judge(self, task: Task, candidate: Candidate) -> Verdict:
        return self.judge_.judge(task, candidate, eager_task=self.eager)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.judge_, name)


def run_case(case: Case, judge: Judge, options: Options, budget_s: float) -> Facts:
    """Let the agent work on the case; what came of it."""
    found = offered(case, options)
    if isinstance(found, str):
        return {"wins": False, "reason": found}
    bench = WithEager(judge, found.eager)
    bench.baselines(found.task)  # compiling the baselines is not charged to the agent
    tools = Toolbox(found.task, bench)
    result = run_episode(SearchPolicy(), tools, Budget(budget_s))
    verdicts = [v for v in tools.verdicts.values() if v.speed is not None]
    verdict = result.best[1] if result.best else max(verdicts, key=_low, default=None)
    facts: Facts = {
        "shapes": [list(shape) for shape in case.shapes],
        "task": found.task.digest,
        "regions": found.regions,
        "eager_operators": [node.op for node in found.eager.nodes] if found.eager else None,
        "wins": result.best is not None,
        "reason": result.reason,
        "turns": result.turns,
        "candidates": len(tools.candidates),
        "best_profile": max(tools.profiles.values(), default=None),
        "search_seconds": round(result.seconds, 1),
    }
    if tools.baselines is not None:
        facts |= {"room": tools.baselines.room, "baselines": asdict(tools.baselines)}
    if verdict is not None and verdict.speed is not None:
        facts |= {
            "speedup": verdict.speed.speedup.median,
            "low": verdict.speed.speedup.low,
            "high": verdict.speed.speedup.high,
            "baseline": verdict.speed.baseline,
            "status": verdict.status,
            "evidence": verdict.evidence,
        }
        facts["error_ratio"] = verdict.accuracy.error_ratio if verdict.accuracy else None
    if result.best:
        facts["schedule"] = result.best[0].label
    return facts


def _low(verdict: Verdict) -> float:
    return verdict.speed.speedup.low if verdict.speed else 0.0


def summarise(samples: dict[str, Facts]) -> Facts:
    """The figures of the table's row. Where nothing wins Inductor's code runs, which counts as 1."""
    found = list(samples.values())
    wins = [facts for facts in found if facts["wins"]]
    with_room = [facts for facts in found if facts.get("room", 0.0) >= ROOM]
    at_limit = [facts for facts in found if "room" in facts and facts["room"] < ROOM]
    gains = [facts["speedup"] if facts["wins"] else 1.0 for facts in found]
    return {
        "cases": len(found),
        "wins": len(wins),
        "geomean": statistics.geometric_mean(gains) if gains else None,
        "geomean_of_wins": (
            statistics.geometric_mean(facts["speedup"] for facts in wins) if wins else None
        ),
        "with_room": len(with_room),
        "wins_with_room": sum(facts["wins"] for facts in with_room),
        "share_of_wins_with_room": (
            sum(facts["wins"] for facts in with_room) / len(with_room) if with_room else None
        ),
        "without_room": len(at_limit),
        "at_the_limit_within_3_turns": sum(
            not facts["wins"]
            and "at the limit" in facts["reason"]
            and facts["turns"] <= LIMIT_TURNS
            for facts in at_limit
        ),
        "failed": sorted(name for name, facts in samples.items() if "room" not in facts),
    }


def main() -> None:
    """Run the cases that are not done."""
    run_cases(__doc__.partition("\n")[0], cases, FILES, summarise)


def run_cases(
    description: str,
    cases_of: Callable[[str], Sequence[Case]],
    files: Mapping[str, str],
    summary: Callable[[dict[str, Facts]], Facts],
    also: Callable[[Facts], Facts] = lambda facts: facts,
) -> None:
    """Judge the cases of a target that are not done. files: result file by target. also: what is added to the facts."""
    parser = arguments(description)
    parser.add_argument("--budget", type=float, default=90.0, help="seconds of search per case")
    args = parser.parse_args()
    chosen = {case.name: case for case in cases_of(args.target) if args.only in case.name}
    settings = Settings.from_environment()
    options = replace(options_from(None, None), search="cached", min_bytes=0)
    results = Results(files[args.target], summary, args.folder)
    with (
        tempfile.TemporaryDirectory() as scratch,
        Judge(
            JudgeSettings(
                args.target,
                scratch_dir=scratch,
                native_dir=settings.native_dir,
                arch=arch_of(args.target),
            )
        ) as judge,
    ):

        def run(name: str) -> Facts:
            return also(run_case(chosen[name], judge, options, args.budget))

        samples = results.collect(chosen, run, keep=args.keep, limit_s=args.limit)
    print(summary(samples))


if __name__ == "__main__":
    main()
