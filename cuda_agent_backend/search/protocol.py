"""What the pass asks of the search process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cuda_agent_backend.acceptance.whole_graph import WholeGraph
from sandbox.task.task import Task


class Searcher(Protocol):
    """Searches kernels and measures whole graphs. No method raises; all promote into the kernel cache.

    waited_s: of what it was asked, the seconds that went by while other processes had the device or its memory.
    """

    waited_s: float

    def search(
        self,
        tasks: Sequence[Task],
        budget_s: float,
        recorded: Mapping[str, str] | None = None,
        promises: Mapping[str, float] | None = None,
        rests: Mapping[str, Task] | None = None,
    ) -> dict[str, Any]:
        """Search kernels for tasks, coming back when all are done or the budget ends; what became of each, by digest.

        recorded: folders with real inputs. promises: what kernels for a task may save, in any unit. rests: what is
        searched after all others where nothing wins for a task. All are by task digest.
        """

    def enqueue(self, tasks: Sequence[Task], later: WholeGraph | None) -> None:
        """Search later, without being waited for, and then measure the whole graph."""

    def accept(self, whole: WholeGraph, budget_s: float) -> dict[str, Any] | str:
        """Measure a graph; what was decided, which is kept if it is final, or why it was not measured."""
