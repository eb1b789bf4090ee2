"""Compile what a search will most likely ask for next, beside what it waits for on the device.

A policy of sketches tries the proposals in their order, some at a time. So the first are compiled while the baselines
are made and timed, and the next while those are. Who asks for anything else ends it: then nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

from cuda_agent_backend.agent.tools.judge_protocol import Bench
from cuda_agent_backend.codegen.api import analyse, generate, schedules
from cuda_agent_backend.codegen.ir.failure import NotCovered
from sandbox.failures import Failure
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task
from sandbox.verdict import Baselines, Outcome

MOST = 4
"""Candidates compiled before they are asked for."""


class PrefetchingBench:
    """A bench around another one; a context manager. Candidates may be compiled from several threads, as always.

    proposals: candidates in the order in which they will be asked for. jobs: compilers at once.
    """

    def __init__(self, bench: Bench, proposals: Iterable[Candidate], jobs: int) -> None:
        self._bench, self._proposals = bench, iter(proposals)
        self._threads = ThreadPoolExecutor(max_workers=jobs)
        self._begun: dict[str, Future[Any]] = {}
        self._asked: set[str] = set()

    def __enter__(self) -> PrefetchingBench:
        return self

    def __exit__(self, *_: object) -> None:
        """Begin nothing more, and wait for the compilers that are at work."""
        self._threads.shutdown(cancel_futures=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bench, name)

    def baselines(self, task: Task) -> Baselines | Failure:
        """See `Judge.baselines`."""
        self._begin()
        return self._bench.baselines(task)

    def profile(self, task: Task, candidate: Candidate, *, worth: float) -> Outcome:
        """See `Judge.profile`."""
        self._begin()
        return self._bench.profile(task, candidate, worth=worth)

    def compile(self, candidate: Candidate) -> Any:
        """See `Judge.compile`. What failed and is asked for again is compiled again."""
        again = candidate.digest in self._asked
        self._asked.add(candidate.digest)
        begun = self._begun.get(candidate.digest)
        if begun is None or (again and hasattr(begun.result(), "reason")):
            return self._bench.compile(candidate)
        return begun.result()

    def _begin(self) -> None:
        """Compile the next ones, unless something else was asked for."""
        unasked = self._begun.keys() - self._asked
        if self._asked <= self._begun.keys():
            for candidate in islice(self._proposals, MOST - len(unasked)):
                if (
                    candidate.digest not in self._begun
                ):  # schedules may differ in what changes nothing
                    work = self._threads.submit(self._bench.compile, candidate)
                    self._begun[candidate.digest] = work


def proposals(task: Task) -> Iterator[Candidate]:
    """The candidates of a task's sketch for this machine, best guess first; none where no sketch covers it."""
    form = analyse(task)
    if isinstance(form, NotCovered):
        return
    for schedule in schedules(form):
        made = generate(form, schedule)
        if isinstance(made, Candidate):
            yield made
