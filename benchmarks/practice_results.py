"""The result file of the practice set, from the folders of one or several runs of `cuda-agent bench` on parts of it.

    python -m benchmarks.practice_results --name h200-practice FOLDER...
    python -m benchmarks.practice_results --set practice_large --name h100-large FILE...

A folder needs `tasks/` and `work/machine.json` only, and `work/runs.json` for how long it took. Its `bench.json`, in
the folder or anywhere else, says all of that by itself. Results of other sources than this checkout's are refused, by
the identity that each one carries: so the commit written is the one that was measured.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks import practice_large_figures
from benchmarks.store import FOLDER, ROOT, commit
from cuda_agent_backend.bench import run_times
from cuda_agent_backend.bench.discovery import TaskFile, discover
from cuda_agent_backend.bench.figures import (
    BOTH,
    TaskFigures,
    geomean,
    grouped,
    is_faster,
    speedup,
    summary,
    task_figures,
)
from cuda_agent_backend.bench.plots import NoPlots, draw
from cuda_agent_backend.bench.request import Wishes
from cuda_agent_backend.bench.results import Identity
from cuda_agent_backend.codegen.alternatives import PARAMETER
from cuda_agent_backend.codegen.registry import family_of
from cuda_agent_backend.json_values import write_json
from cuda_agent_backend.partition.report import HIT
from cuda_agent_backend.sources import source_digest

SETS = ("practice", "practice_large")
PRACTICE = Path(__file__).parent / SETS[0]
ROOM, MARGIN = 1.10, 0.05
NEAR = 1.03
"""Our time over the roofline floor, up to which a task is as fast as the machine allows."""
PRODUCTS = re.compile(r"Linear|Conv|mm\b|matmul|linear|einsum|conv|@")
"""Words of a task that holds a product or a convolution."""
DIGITS = 5

Facts = dict[str, Any]


class Foreign(ValueError):
    """A result of other sources, of another task text, or made in another way than the rest."""


@dataclass(frozen=True)
class Run:
    """What a run left. machine: its "facts" and "ceilings". runs: see `run_times.of`. results: by where they lie."""

    machine: Facts
    runs: list[Facts]
    results: Mapping[str, Facts]


def run_in(place: Path) -> Run:
    """A run, from its folder or its `bench.json`, which is all that is needed of one that ran elsewhere.

    In a folder each task's own file counts, as `bench.json` may be older. Raises `Foreign` where there is neither.
    """
    known = place / "work" / "machine.json"
    if known.is_file():
        paths = sorted((place / "tasks").rglob("*.json"))
        return Run(_machine(_read(known)), run_times.of(place), {str(p): _read(p) for p in paths})
    file = place / "bench.json" if place.is_dir() else place
    try:
        whole = _read(file)
        machine = _machine({"facts": whole["machine"], "ceilings": whole["ceilings"]})
        results = {f"{file}: {name}": facts for name, facts in whole["tasks"].items()}
        return Run(machine, whole["runs"], results)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise Foreign(f"{place}: no folder of a run, and no bench.json: {reason}") from error


def _machine(found: Facts) -> Facts:
    return {name: found[name] for name in ("facts", "ceilings")}


def _read(file: Path) -> Facts:
    found: Facts = json.loads(file.read_text(encoding="utf-8"))
    return found


def results_in(
    place: Path, tasks: Mapping[str, TaskFile], sources: str, cache_dir: str = ""
) -> list[Facts]:
    """All results of a run. place: see `run_in`. cache_dir: of the run, where it was given one. Raises `Foreign`."""
    run = run_in(place)
    found = []
    for where, facts in run.results.items():
        task = tasks.get(Path(facts["file"]).stem)
        if task is None:
            raise Foreign(f"{where}: there is no task {facts['file']}")
        identity = Identity(sources, Wishes(**facts["wishes"]), run.machine["facts"], cache_dir)
        if facts["identity"] != identity.of(task):
            raise Foreign(f"{where}: not measured with these sources, or not as {task.path} is now")
        found.append({**facts, "name": task.name, "group": task.group})
    return found


def one_way(results: Sequence[Facts]) -> Facts:
    """The wishes that all results share. Raises `Foreign` where they differ."""
    ways = {json.dumps(facts["wishes"], sort_keys=True) for facts in results}
    if len(ways) != 1:
        raise Foreign(f"{len(ways)} ways of measuring in one file: {sorted(ways)}")
    wishes: Facts = json.loads(ways.pop())
    return wishes


def whole(
    results: Sequence[Facts],
    tasks: Sequence[TaskFile],
    places: Sequence[Path],
    *,
    large: bool = False,
) -> dict[str, Any]:
    """The content of the file. places: of the runs, see `run_in`. large: of the large set, which has other rows."""
    figures = [task_figures(facts) for facts in results]
    done = {facts["name"] for facts in results}
    if len(done) < len(results):
        names = Counter(facts["name"] for facts in results)
        raise Foreign(f"more than one result: {[name for name, n in names.items() if n > 1]}")
    brought_home = [run_in(place) for place in places]
    runs = [run.runs for run in brought_home]
    if large:
        rows = practice_large_figures.table(results, figures, runs)
    else:
        rows = table(figures, [task.group for task in tasks])
    return {
        "machine": [run.machine for run in brought_home],
        "runs": runs,
        "commit": commit(),
        "sources": source_digest(),
        "wishes": one_way(results),
        "tasks": {
            facts["name"]: brief(facts) | {"figures": figure.to_json()}
            for facts, figure in zip(results, figures, strict=True)
        },
        "missing": [task.name for task in tasks if task.name not in done],
        "summary": {
            "overall": summary(figures),
            "groups": grouped(figures),
            "table": rows,
            "brought": brought(results, figures),
        },
    }


def brief(facts: Facts) -> Facts:
    """A result without what the head of the file says, and samples to as many digits as mean anything."""
    known = ("status", "phase", "reason", "needed", "given", "memory", "search", "measure")
    kept = {name: facts[name] for name in known if name in facts}
    rounded: Facts = json.loads(
        json.dumps(kept), parse_float=lambda x: float(f"{float(x):.{DIGITS}g}")
    )
    return rounded


def table(tasks: Sequence[TaskFigures], groups: Sequence[str]) -> Facts:
    """The rows that the project asks for. groups: of all tasks of the set, those without a result included.

    A task without a result, a wrong one and a noisy one are not faster. Room is known of tasks with times only.
    """
    single = [t for t in tasks if t.group == "single"]
    fused = [t for t in tasks if t.group == "fused" and holds_product(t.name)]
    networks = [t for t in tasks if t.group == "networks"]
    return {
        "measured": {"of": len(groups), "are": len(tasks)},
        "correct": part(tasks, lambda t: t.correct),
        "single_without_times": sum(not t.timed for t in single),
        "single_with_room_faster": part([t for t in single if (t.room or 0) >= ROOM], faster),
        "fused_with_product_faster": part(fused, faster),
        "networks_faster": part(networks, faster),
        "at_limit_near_floor": part([t for t in tasks if t.at_limit], near_floor),
        "geomean_over_inductor": {
            group: geomean(speedup(t, "inductor") for t in tasks if t.group == group)
            for group in ("single", "fused", "networks")
        },
        "slower_than_inductor": [
            t.name for t in tasks if t.timed and not t.fallback and t.over["inductor"].high < 1
        ],
    }


def brought(results: Sequence[Facts], figures: Sequence[TaskFigures]) -> Facts:
    """What each sketch and rewrite brings: the geometric mean over Inductor where all tasks that use it fall back.

    A bound from above, as another sketch might serve some of these tasks. used: tasks with a kernel of it.
    """
    used = [kinds(facts) for facts in results]
    names = sorted(set().union(*used))
    return {"all": geomean(speedup(t, "inductor") for t in figures)} | {
        name: {
            "used": sum(name in mine for mine in used),
            "without": geomean(
                1.0 if name in mine and task.timed else speedup(task, "inductor")
                for mine, task in zip(used, figures, strict=True)
            ),
        }
        for name in names
    }


def kinds(facts: Facts) -> set[str]:
    """What served a task: "sketch NAME" and "rewrite NAME" of the kernels that ran, "eager's layouts"."""
    graphs = facts.get("measure", {}).get("graphs", [])
    regions = (region for graph in graphs for region in graph["regions"])
    schedules = (json.loads(region["label"]) for region in regions if region["status"] == HIT)
    kept = any(graph.get("layouts", {}).get("eager_layouts") for graph in graphs)
    found = {"eager's layouts"} if kept else set()
    for kernels in schedules:
        found |= {f"sketch {family_of(kernel)}" for kernel in kernels}
        rules = kernels[0].get(PARAMETER, "") if kernels else ""
        found |= {f"rewrite {rule}" for rule in rules.split("+") if rule}
    return found


def faster(task: TaskFigures) -> bool:
    """By 5 % than the faster of eager and Inductor, by the lower bound."""
    return is_faster(task, BOTH, MARGIN, lambda found: found.low)


def near_floor(task: TaskFigures) -> bool:
    """Whether ours takes the floor's time, or up to 3 % more."""
    return task.timed and task.of_floor is not None and task.of_floor * NEAR >= 1


def part(tasks: Sequence[TaskFigures], test: Any) -> Facts:
    """How many of how many."""
    return {"of": len(tasks), "are": sum(bool(test(task)) for task in tasks)}


def holds_product(name: str) -> bool:
    """Whether a fused task's text has a matrix product or a convolution."""
    return bool(PRODUCTS.search((PRACTICE / "fused" / f"{name.rpartition('/')[2]}.py").read_text()))


def main() -> int:
    """Exit status 1 where a result does not belong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "places", nargs="+", type=Path, metavar="FOLDER", help="of a run, or its bench.json"
    )
    parser.add_argument("--name", default="h200-practice")
    parser.add_argument("--set", choices=SETS, default=SETS[0], help="the set that was run")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the file is written")
    parser.add_argument(
        "--cache-dirs",
        nargs="+",
        default=(),
        metavar="DIR",
        help="the --cache-dir of each run, absolute on its machine, where the runs were given one",
    )
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw plots, as SVG, there")
    args = parser.parse_args()
    if len(args.cache_dirs) not in (0, len(args.places)):
        parser.error(f"{len(args.cache_dirs)} cache folders for {len(args.places)} runs")
    found = discover([(PRACTICE.parent / args.set).relative_to(ROOT)])
    tasks = {task.path.stem: task for task in getattr(found, "tasks", ())}
    try:
        lists = [
            results_in(place, tasks, source_digest(), cache_dir)
            for place, cache_dir in zip_longest(args.places, args.cache_dirs, fillvalue="")
        ]
        every = [facts for one in lists for facts in one]
        large = args.set == SETS[1]
        content = whole(every, list(tasks.values()), args.places, large=large)
    except Foreign as error:
        print(error, file=sys.stderr)
        return 1
    write_json(args.folder / f"{args.name}.json", content)
    if args.plots:
        drawn = draw([task_figures(facts) for facts in every], args.plots, ("svg",))
        print(drawn.reason if isinstance(drawn, NoPlots) else f"{len(drawn)} plots")
    print(json.dumps(content["summary"]["table"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
