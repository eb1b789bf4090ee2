"""One judge for many threads: their candidates compile side by side, their judgements have the device alone.

A pool answers as a `Judge` does, so an episode does not know which of the two it works with. What a candidate is worth
does not depend on who came before it: inputs and seeds are new in each judgement, what is tried out and what is
judged are different processes, and a process that held untrusted host code holds no other.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from sandbox.compile.disassembly import Inspection
from sandbox.compile.outcome import Compiled
from sandbox.failures import Failure, NoMemory
from sandbox.judge.judge import Judge
from sandbox.plan.candidate import Candidate
from sandbox.stopwatch import Stopwatch
from sandbox.task.task import Task
from sandbox.timing.turns import Turns
from sandbox.verdict import Baselines, Outcome, Verdict

JUDGES_CORES = 2
"""Left to the judge and its worker while a GPU is measured."""


class Pool:
    """A judge, shared. The judge stays its owner's, who opens and closes it, and nobody else may use it meanwhile.

    compile_jobs: compilers at once; by default all cores, but two for cuda.
    """

    def __init__(self, judge: Judge, compile_jobs: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0))
        spare = max(1, cores - JUDGES_CORES) if judge.target == "cuda" else cores
        self._judge = judge
        self._turns = Turns(compile_jobs or spare, alone=judge.target == "cpu")
        self._waiting = Stopwatch()
        self._paying = False

    def seat(self, paying: bool = False) -> Pool:
        """The same pool for one episode: what is waited for its turns is counted by itself.

        paying: that waiting is the episode's own time, as where all have one deadline.
        """
        mine = copy.copy(self)
        mine._waiting, mine._paying = Stopwatch(), paying
        return mine

    @property
    def waited_s(self) -> float:
        """Seconds that an episode does not pay for: spent waiting for others' turns; if it pays for those, for turns of
        other processes."""
        return float(self._judge.waited_s) if self._paying else self._waiting.seconds

    @property
    def working_s(self) -> float:
        """Seconds in which anything was compiled, run or judged."""
        return self._turns.working.seconds

    @property
    def judging_s(self) -> float:
        """Seconds in which somebody had the device."""
        return self._turns.judging.seconds

    def end(self) -> None:
        """Let nobody begin anything more: threads that wait get `TurnsOver`, and so does who asks later."""
        self._turns.end()

    @contextmanager
    def _turn(self, turn: AbstractContextManager[None]) -> Iterator[None]:
        """A turn, once it comes."""
        with ExitStack() as stack:
            with self._waiting.running():
                stack.enter_context(turn)
            yield

    @property
    def compile_jobs(self) -> int:
        """Compilers at once."""
        return self._turns.jobs

    @contextmanager
    def beside(self) -> Iterator[None]:
        """For work of an episode that may go on beside compilers, such as a shell's command."""
        with self._turn(self._turns.compiling()):
            yield

    def compile(self, candidate: Candidate) -> Compiled | Failure:
        """See `Judge.compile`."""
        with self._turn(self._turns.compiling()):
            return self._judge.compile(candidate)

    def inspect(self, candidate: Candidate) -> Inspection | Failure:
        """See `Judge.inspect`."""
        with self._turn(self._turns.compiling()):
            return self._judge.inspect(candidate)

    def no_room(self, task: Task) -> NoMemory | None:
        """See `Judge.no_room`."""
        with self._turn(self._turns.device(task.digest)):
            return self._judge.no_room(task)

    def baselines(self, task: Task, **options: Any) -> Baselines | Failure:
        """See `Judge.baselines`."""
        with self._turn(self._turns.device(task.digest)):
            return self._judge.baselines(task, **options)

    def verify(self, task: Task, candidate: Candidate, **options: Any) -> Outcome:
        """See `Judge.verify`."""
        return self._try_out(self._judge.verify, task, candidate, options)

    def profile(self, task: Task, candidate: Candidate, **options: Any) -> Outcome:
        """See `Judge.profile`."""
        return self._try_out(self._judge.profile, task, candidate, options)

    def _try_out(
        self,
        run: Callable[..., Outcome],
        task: Task,
        candidate: Candidate,
        options: Mapping[str, Any],
    ) -> Outcome:
        """What does not compile needs no turn on the device."""
        built = self.compile(candidate)
        if not isinstance(built, Compiled):
            return built
        with self._turn(self._turns.device(task.digest)):
            return run(task, candidate, **options)

    def judge(self, task: Task, candidate: Candidate, **options: Any) -> Verdict:
        """See `Judge.judge`. What has to be compiled anew for it is, before the turn on the device."""
        with self._turn(self._turns.compiling()):
            built = self._judge.build_to_judge(candidate)
        with self._turn(self._turns.device(task.digest)):
            return self._judge.judge(task, candidate, built=built, **options)

    def judge_all(
        self, work: Sequence[tuple[Task, Candidate]], **options: Any
    ) -> Iterator[tuple[int, Verdict]]:
        """Judge all; verdicts come as they are ready, each with its number in `work`. Whoever stops listening, stops
        what has not begun."""
        threads = ThreadPoolExecutor(max_workers=2 * self.compile_jobs + 1)
        try:
            futures = {
                threads.submit(self.judge, task, candidate, **options): number
                for number, (task, candidate) in enumerate(work)
            }
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            threads.shutdown(cancel_futures=True)
