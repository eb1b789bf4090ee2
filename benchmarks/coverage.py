"""What the sketches cover of the practice set on cuda, and why not the rest. Needs no GPU: tensors hold no memory.

    python -m benchmarks.coverage [FOLDER] [--json FILE] [--only max_pool,conv] [--workers 2] [--training]

Each task of FOLDER (the practice set) goes the way of any model: Dynamo, Inductor's passes, partition, task, sketch.
For each it prints the regions with operators, bytes, family and number of schedules, and what is in no region; at the
end, how many tasks are covered in full, in part or not at all, and the reasons by frequency.

Where torch without CUDA does not trace a task on cuda, it is traced on the cpu and its graph moved; attention and
recurrences are then other operators than on a GPU. Such tasks are marked.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import operator
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path

from torch.fx import Graph, Node

from benchmarks.tracing import PRACTICE, TooLong, Wishes, limited, task_of, trace
from cuda_agent_backend.codegen.api import NotCovered, analyse, generate, schedules
from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.graph.layouts import inductor_layouts
from cuda_agent_backend.operators.kinds import Kind, kind_of
from cuda_agent_backend.options import parse
from cuda_agent_backend.partition.node_values import size_in_bytes
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.partition.regions import partition
from cuda_agent_backend.settings import Settings

LIMIT_S = 240
OUTSIDE = (Kind.BARRIER, Kind.MUTATION, Kind.RANDOM)


@dataclass(frozen=True)
class Part:
    """A region. ``reason``: why it has no kernel of ours, or ""; ``family`` and ``schedules`` where it has."""

    operators: tuple[str, ...]
    moved: int
    family: str = ""
    schedules: int = 0
    kernels: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Outside:
    """Operators of one name in no region: how many, and the bytes of their results."""

    operator: str
    count: int
    made: int


@dataclass
class Covered:
    """A task: its regions, and what is in none. ``problem``: why nothing is known of it, or ""."""

    name: str
    parts: list[Part] = field(default_factory=list)
    outside: list[Outside] = field(default_factory=list)
    problem: str = ""
    traced_on_cpu: bool = False

    @property
    def verdict(self) -> str:
        """full: every operator is in a region with a kernel of ours; part; none."""
        good = [p for p in self.parts if not p.reason]
        whole = len(good) == len(self.parts) and not self.outside
        return "full" if good and whole else "part" if good else "none"

    def reasons(self) -> set[str]:
        """Why not all of it is covered."""
        found = {p.reason for p in self.parts if p.reason}
        found |= {f"in no region: {o.operator}" for o in self.outside}
        return found | ({self.problem} if self.problem else set())


def covered(path: Path, training: bool = False) -> Covered:
    """What is covered of one task; whatever goes wrong is its problem."""
    result = Covered(f"{path.parent.name}/{path.stem}")
    options = parse(Settings.from_environment(), None, None)
    try:
        with limited(LIMIT_S):
            found = trace(task_of(path), options, Wishes(training=training))
            result.traced_on_cpu = found.on_cpu
            for graph in found.graphs:
                with inductor_layouts(graph):
                    regions = partition(graph)
                    result.outside += outside_of(graph, regions)
                    result.parts += [part_of(region) for region in regions]
    except TooLong:
        result.problem = f"not done in {LIMIT_S} s"
    except Exception as error:  # a table of all tasks is worth more than a stack of one
        result.problem = f"{type(error).__name__}: {chr(32).join(str(error).split())[:700]}"
    return result


def outside_of(graph: Graph, regions: list[Region]) -> list[Outside]:
    """Operators of a graph that are in no region."""
    inside = {node for region in regions for node in region.nodes}
    kinds: dict[Node, Kind] = {}
    found: dict[str, list[int]] = collections.defaultdict(list)
    for node in graph.nodes:
        kinds[node] = kind_of(node, kinds)
        wanted = node.op == "call_function" and kinds[node] in OUTSIDE
        if wanted and node not in inside and node.target is not operator.getitem:
            parts = [node, *(u for u in node.users if u.target is operator.getitem)]
            found[_name(node)].append(sum(map(size_in_bytes, parts)))
    return [Outside(name, len(sizes), sum(sizes)) for name, sizes in sorted(found.items())]


def _name(node: Node) -> str:
    return str(node.target).removeprefix("aten.").removesuffix(".default")


def part_of(region: Region) -> Part:
    """What becomes of a region, as far as the source of its first kernel."""
    chosen = [n for n in region.nodes if n.target is not operator.getitem]
    part = Part(tuple(map(_name, chosen)), region.moved)

    def without(reason: str) -> Part:
        return Part(part.operators, part.moved, reason=reason)

    if region.reason:
        return without(region.reason)
    form = canonical(region.nodes, region.outputs, region.target)
    if not isinstance(form, Canonical):
        return without(form.reason)
    found = analyse(form.task)
    if isinstance(found, NotCovered):
        return without(found.reason)
    try:
        ways = schedules(found)
    except Exception as error:
        return without(f"{type(error).__name__}: {error}")
    if not ways:
        return without("no schedule")
    made = generate(found, ways[0])
    if isinstance(made, NotCovered):
        return without(made.reason)
    kernels = len(ways[0].kernels)
    return Part(part.operators, part.moved, found.family, len(ways), kernels)


def _lines(one: Covered) -> Iterator[str]:
    said = "traced on the cpu" if one.traced_on_cpu else ""
    said = one.problem or said
    yield f"{one.name}: {one.verdict}{f' ({said})' if said else ''}"
    for part in one.parts:
        names = collections.Counter(part.operators)
        shown = ", ".join(f"{n} x{c}" if c > 1 else n for n, c in names.items())
        what = part.reason and f"NOT: {part.reason}"
        what = what or f"{part.schedules} schedules, {part.kernels} kernels: {part.family}"
        yield f"    {part.moved / 1e6:.1f} MB [{shown}]\n        {what}"
    for out in one.outside:
        yield f"    in no region: {out.operator} x{out.count}, {out.made / 1e6:.1f} MB"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=PRACTICE)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="parts of names, by commas")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--training", action="store_true", help="with gradients, backward too")
    options = parser.parse_args()
    wanted = options.only.split(",")
    paths = [p for p in sorted(options.folder.rglob("*.py")) if any(w in p.stem for w in wanted)]
    found: list[Covered] = []
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for one in pool.map(functools.partial(covered, training=options.training), paths):
            found.append(one)
            print("\n".join(_lines(one)), flush=True)
            if options.json:
                rows = [{**asdict(c), "verdict": c.verdict} for c in found]
                options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    verdicts = collections.Counter(one.verdict for one in found)
    print("\n" + ", ".join(f"{verdicts[v]} {v}" for v in ("full", "part", "none")))
    for reason, count in collections.Counter(r for c in found for r in c.reasons()).most_common():
        print(f"{count:5}  {reason}")


if __name__ == "__main__":
    main()
