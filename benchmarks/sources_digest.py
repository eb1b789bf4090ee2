"""Digests of all kernel sources that are proposed for the regions of a graph, on devices that are made up.

Nothing here asks the machine: what schedules depend on is given, and source and plan depend on nothing else.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torch.fx import Graph

from benchmarks.sources_subjects import DTYPES, Subject, make_of
from benchmarks.tracing import TooLong, Wishes, limited, trace
from cuda_agent_backend.codegen import bugs
from cuda_agent_backend.codegen.api import Analysis, NotCovered, analyse, generate, schedules
from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts
from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.graph.layouts import inductor_layouts
from cuda_agent_backend.options import Options
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.partition.regions import partition
from sandbox.plan.candidate import Candidate
from sandbox.task.flags import threads
from sandbox.task.task import Task

OPTIONS = Options(Path("kernels"), Path("native"), search="cached")
"""Not those of the environment. Nothing is read or written in these folders."""
CPU = CpuFacts(width=16, cache_bytes=32 << 20)
GPU = DeviceFacts()
TF32 = DeviceFacts(tf32=("matmul", "conv", "rnn"))
THREADS = 2
"""Torch's, whatever there are here: with a single one Inductor has loops for sums of scattered values, too."""
LIMIT_S = 180
LENGTH = 16
REFUSED = "-"
"""In the place of a digest: the schedule is proposed, and then refused."""
FAILED = "!"


@dataclass(frozen=True)
class Way:
    """A schedule by its label, and the digest of what it stands for."""

    label: str
    digest: str


@dataclass(frozen=True)
class Digested:
    """A region. task: its digest, or "" where it is no task. ways: one for each schedule; tf32: the same where TF32 is
    allowed, empty where that changes no schedule. reasons: why it, or a schedule, has no source."""

    task: str = ""
    family: str = ""
    ways: tuple[Way, ...] = ()
    tf32: tuple[Way, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def covered(self) -> bool:
        """Whether a sketch covers it."""
        return bool(self.family)


@dataclass(frozen=True)
class Outcome:
    """An entry: its regions, or the problem that kept them from being known. seconds: of the process's own time."""

    name: str
    regions: tuple[Digested, ...] = ()
    problem: str = ""
    seconds: float = 0.0


def digested(subject: Subject) -> Outcome:
    """All regions of a subject, each followed by its rest. Whatever goes wrong is the outcome's problem."""
    started = time.process_time()
    with threads(THREADS):
        return replace(_digested(subject), seconds=time.process_time() - started)


def _digested(subject: Subject) -> Outcome:
    wishes = Wishes(subject.target, DTYPES[subject.dtype], subject.training)
    try:
        with limited(LIMIT_S):
            graphs = trace(make_of(subject.task), OPTIONS, wishes).graphs
            found = tuple(one for graph in graphs for one in _of_graph(graph))
    except TooLong:
        return Outcome(subject.name, problem=f"not done in {LIMIT_S} s")
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        return Outcome(subject.name, problem=f"{type(error).__name__}: {text}")
    return Outcome(subject.name, found)


def _of_graph(graph: Graph) -> Iterator[Digested]:
    with inductor_layouts(graph):
        for region in partition(graph):
            yield _of_region(region)
            if region.rest is not None:
                yield _of_region(region.rest)


def _of_region(region: Region) -> Digested:
    form = canonical(region.nodes, region.outputs, region.target)
    if not isinstance(form, Canonical):
        return Digested(reasons=(region.reason or form.reason,))
    if region.reason:
        return Digested(form.task.digest[:LENGTH], reasons=(region.reason,))
    return _of_task(form.task.to_json())


@functools.lru_cache(maxsize=1024)
def _of_task(text: str) -> Digested:
    """Layers of a network are often the same task."""
    task = Task.from_json(text)
    digest = task.digest[:LENGTH]
    found = analyse(task)
    if isinstance(found, NotCovered):
        return Digested(digest, reasons=(found.reason,))
    reasons: list[str] = []
    ways = _ways(found, CPU if task.target == "cpu" else GPU, reasons)
    fast = _ways(found, TF32, reasons) if _differs(found) else ()
    return Digested(digest, found.family, ways, fast, tuple(reasons))


def _differs(found: Analysis) -> bool:
    """Whether other schedules are proposed where TF32 is allowed."""
    if found.task.target == "cpu":
        return False
    return schedules(found, TF32) != schedules(found, GPU)


def _ways(found: Analysis, device: DeviceFacts | CpuFacts, reasons: list[str]) -> tuple[Way, ...]:
    before = bugs.count()
    proposed = schedules(found, device)
    made = [Way("", f"{FAILED}schedules")] if bugs.count() > before else []
    for schedule in proposed:
        one = generate(found, schedule, device)  # type: ignore[arg-type]
        if isinstance(one, NotCovered):
            reasons.append(one.reason)
            text = (
                f"{FAILED}{one.error.partition(':')[0]}" if isinstance(one, bugs.Bug) else REFUSED
            )
        else:
            text = digest_of(one)
        made.append(Way(schedule.to_json(), text))
    return tuple(made)


def digest_of(candidate: Candidate) -> str:
    """16 hex digits of all that a candidate says: language, source, plan, and the schedule that is its label."""
    content = [candidate.language, candidate.source, candidate.plan.to_json(), candidate.label]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:LENGTH]
