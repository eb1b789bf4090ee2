"""What the tools of an episode work on, and what they have brought so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent_backend.agent.memory.recall import Neighbour
from cuda_agent_backend.agent.tools.judge_protocol import Bench
from cuda_agent_backend.agent.workspace.folder import Workspace
from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.multiply_precision import as_coarse, products_of
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task
from sandbox.verdict import Baselines, Verdict

WORTH_SUBMITTING = 1.04
"""A quick profile's median below this is not worth a full judgement, whose lower bound must exceed 1.05."""
SOUND = ("wins", "too_slow", "noisy")
"""Verdicts after which a candidate's speed is still something to compare with."""


@dataclass
class Workbench:
    """What the tools of an episode work on, and what they have brought.

    bench: the judge. facts: of the device that is written for; None for this machine's. workspace: where files are, if
    there are any. neighbours: kernels that won on like tasks. finished: why the episode is over, once it is.

    By the name of a candidate: its verdict, its profile (median speed-up over the faster baseline), and in `built` what
    compiling told of its kernels.
    """

    task: Task
    bench: Bench
    facts: DeviceFacts | CpuFacts | None = None
    workspace: Workspace | None = None
    neighbours: Sequence[Neighbour] = ()
    candidates: dict[str, Candidate] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    profiles: dict[str, float] = field(default_factory=dict)
    finished: str | None = None
    baselines: Baselines | None = None
    built: dict[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    def best(self) -> tuple[Candidate, Verdict] | None:
        """The winning candidate with the largest proven speed-up."""
        won = [
            (v.speed.speedup.low if v.speed else 0.0, n) for n, v in self.verdicts.items() if v.wins
        ]
        if not won:
            return None
        name = max(won)[1]
        return self.candidates[name], self.verdicts[name]

    def promising(self) -> dict[str, float]:
        """Profiled speed-ups by candidate, of those that no verdict speaks against.

        A verdict speaks against a candidate that was wrong, and against all that multiply as coarsely as a wrong one.
        """
        refused = {name for name, verdict in self.verdicts.items() if verdict.status not in SOUND}
        products = {name: _products(made) for name, made in self.candidates.items()}
        for wrong in [name for name in refused if self.verdicts[name].status == "wrong"]:
            refused |= as_coarse(products, products[wrong])
        return {name: speed for name, speed in self.profiles.items() if name not in refused}


def _products(candidate: Candidate) -> int:
    """In how many parts it multiplies, as a sketch's schedule says; 0 for what somebody wrote."""
    try:
        return products_of(Schedule.from_json(candidate.label))
    except ValueError:
        return 0
