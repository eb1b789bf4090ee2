"""What a pass has at hand in one compilation: wishes, kernels, a searcher, real inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cuda_agent_backend.options import Options
from cuda_agent_backend.runtime.kernels import Hit, Kernels, NoKernel
from cuda_agent_backend.search.deadline import Deadline
from cuda_agent_backend.search.durations import Durations
from cuda_agent_backend.search.protocol import Searcher
from kernel_cache import KernelKey

MORE_TIME = "a larger cuda_agent.budget_s, or `cuda-agent warm`, goes on"


@dataclass(frozen=True)
class Compilation:
    """One compilation, beside its graph.

    recorded: folders with real inputs of tasks, by task digest. inputs: a folder with those of the whole graph, "" if
    there is none. examples: what the graph is first called with, where no folder has it. deadline: when the user's
    program goes on with what there is.
    """

    options: Options
    kernels: Kernels
    searcher: Searcher | None = None
    recorded: Mapping[str, str] | None = None
    inputs: str = ""
    examples: tuple[Any, ...] = ()
    deadline: Deadline = field(default_factory=Deadline.never)

    @property
    def measurer(self) -> Searcher | None:
        """What measures whole graphs now; None in modes that do not wait for it."""
        return self.searcher if self.options.search == "search" else None

    @cached_property
    def durations(self) -> Durations:
        """What earlier processes noted of this machine and of graphs."""
        return Durations(self.options.cache_dir)

    @property
    def left_s(self) -> float:
        """Seconds that are left for this graph."""
        return min(self.options.budget_s, self.deadline.left_s)

    def find(self, key: KernelKey) -> Hit | NoKernel:
        """The kernel for a key under these options, or why there is none."""
        options = self.options
        found = self.kernels.find(
            key,
            options.min_speedup,
            options.policy_spec.label,
            options.budget_s,
            consent=options.allow_policy_cpp,
        )
        if isinstance(found, NoKernel) and found.passing:
            self.outdate()
        return found

    def outdate(self) -> None:
        """Keep this graph's code from other processes, which with it would never come here: its search is not over."""
        self.deadline.goes_on = True
        self.kernels.outdate()
