"""The schedules that the generator could make of a region, and which of them are measured."""

from __future__ import annotations

import random
from dataclasses import dataclass

from cuda_agent_backend.codegen.api import analyse, generate, schedules
from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.schedule_space import space_of
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task

MOST = 300
"""Schedules of a space that are looked at."""


@dataclass(frozen=True)
class Variant:
    """A candidate with all schedules that print its source. rank: of the first of them in the space."""

    candidate: Candidate
    schedules: tuple[Schedule, ...]
    rank: int
    proposed: bool

    @property
    def name(self) -> str:
        """As tools say it."""
        return self.candidate.digest[:12]


@dataclass(frozen=True)
class Enumerated:
    """sketch: what the generator calls the task's kernels. space: schedules looked at, legal: all candidates among
    them, in order; refused: those that do not fit, with the reason."""

    sketch: str
    proposals: tuple[Schedule, ...]
    space: int
    legal: tuple[Variant, ...]
    refused: tuple[tuple[Schedule, str], ...]


def enumerate_schedules(
    task: Task, facts: DeviceFacts | CpuFacts | None = None, most: int = MOST
) -> Enumerated | NotCovered:
    """All that the generator could make of a task for a device (None: this machine's)."""
    analysis = analyse(task)
    if isinstance(analysis, NotCovered):
        return analysis
    proposals = schedules(analysis, facts)
    space = space_of(proposals).schedules(most)
    gpu = facts if isinstance(facts, DeviceFacts) else None
    made: dict[str, tuple[Candidate, list[Schedule], int]] = {}
    refused: list[tuple[Schedule, str]] = []
    for rank, schedule in enumerate(space):
        candidate = generate(analysis, schedule, gpu)
        if isinstance(candidate, NotCovered):
            refused.append((schedule, candidate.reason))
        else:
            made.setdefault(candidate.digest, (candidate, [], rank))[1].append(schedule)
    first = frozenset(proposals)
    legal = [
        Variant(candidate, tuple(own), rank, not first.isdisjoint(own))
        for candidate, own, rank in made.values()
    ]
    return Enumerated(analysis.family, tuple(proposals), len(space), tuple(legal), tuple(refused))


def is_whole(digest: str, every: int) -> bool:
    """Whether a task is one of those of which all schedules are measured: every so-manieth (0: none), by its digest, so
    that it is the same in every run."""
    return bool(every) and int(digest[:8], 16) % every == 0


def sampled(found: Enumerated, most: int, seed: str) -> list[Variant]:
    """Up to ``most`` candidates (0: all): what is proposed, and others drawn uniformly; the same for the same seed."""
    first = [one for one in found.legal if one.proposed]
    others = [one for one in found.legal if not one.proposed]
    room = len(others) if not most else max(0, min(len(others), most - len(first)))
    drawn = random.Random(seed).sample(others, room)
    kept = first if not most else first[:most]
    return sorted([*kept, *drawn], key=lambda one: one.rank)
