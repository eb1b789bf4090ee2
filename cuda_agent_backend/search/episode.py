"""One episode of the agent on one task, from its judge to what it found."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent_backend.agent.policies.registry import DETERMINISTIC
from cuda_agent_backend.json_values import plain
from cuda_agent_backend.search.budget import judgement_reserve
from cuda_agent_backend.search.durations import JUDGEMENT, Durations
from cuda_agent_backend.search.judges import JudgeSource
from cuda_agent_backend.search.outcome import NothingFound, SearchOutcome, SearchResult
from cuda_agent_backend.search.passing_failures import WatchedJudge, met_before
from cuda_agent_backend.search.setup import Setup
from kernel_cache.canonical import sha256
from sandbox.task.task import Task

if TYPE_CHECKING:
    from cuda_agent_backend.agent.environment import Environment
    from cuda_agent_backend.agent.loop import Budget, EpisodeResult
    from cuda_agent_backend.agent.policies.spec import PolicySpec
    from cuda_agent_backend.agent.tools.toolbox import Toolbox
    from cuda_agent_backend.agent.trajectories.events import Header
    from sandbox.plan.candidate import Candidate

Say = Callable[[str], None]
Search = Callable[[Task, JudgeSource, Setup, float, Sequence[Any] | None, Say], SearchOutcome]
"""What works on one task: see `search_task`."""


def search_task(
    task: Task,
    judges: JudgeSource,
    setup: Setup,
    budget_s: float,
    recorded: Sequence[Any] | None,
    say: Say,
) -> SearchOutcome:
    """Run the agent on one task; recorded: real inputs, if there are any."""
    judges.start(task.target, setup)
    if (nothing := uncovered(task, setup.policy)) is not None:
        return nothing
    begun = time.monotonic() - judges.unpaid_s
    judge = judges.get(task, setup)  # a new one takes seconds to start, which are the task's
    no_room = getattr(judge, "no_room", lambda _: None)(task)
    if no_room is not None:
        return NothingFound(no_room.reason, keep=False)
    started_s = max(0.0, time.monotonic() - judges.unpaid_s - begun)
    return run_agent(task, judge, setup, max(0.0, budget_s - started_s), recorded, say)


def uncovered(task: Task, policy: PolicySpec) -> NothingFound | None:
    """Nothing, where no sketch covers a task that is for a policy of sketches alone.

    To know its baselines would bring nothing, and of a loop that was written out Inductor takes longer to make code
    than most searches last.
    """
    from cuda_agent_backend.codegen.api import analyse
    from cuda_agent_backend.codegen.bugs import Bug
    from cuda_agent_backend.codegen.ir.failure import NotCovered

    form = analyse(task) if policy.name in DETERMINISTIC else None
    if not isinstance(form, NotCovered):
        return None
    # a bug may be mended before a search that has tried all is forgotten
    lasting = not isinstance(form, Bug)
    return NothingFound(f"no sketch covers it: {form.reason}", exhausted=lasting)


def run_agent(
    task: Task,
    judge: Any,
    setup: Setup,
    budget_s: float,
    recorded: Sequence[Any] | None,
    say: Say,
) -> SearchOutcome:
    """One episode of the agent on one task. recorded: real inputs on which it verifies, too."""
    from cuda_agent_backend.agent.loop import Budget, run_episode
    from cuda_agent_backend.agent.policies.registry import make_policy
    from cuda_agent_backend.agent.protocol import closed
    from cuda_agent_backend.agent.resume import begin
    from cuda_agent_backend.agent.trajectories.store import folder_beside, prune

    folder = folder_beside(setup.cache_dir)
    kept_s = judgement_reserve(budget_s, Durations(setup.cache_dir).took(JUDGEMENT))
    budget = Budget(budget_s - kept_s)
    watched = WatchedJudge(judge)
    with ExitStack() as closing:
        tools = closing.enter_context(_environment(task, watched, setup, recorded)).tools
        spec = json.dumps(setup.policy.to_json(), sort_keys=True)
        header = header_of(task, setup.policy.label, spec, tools.schemas, setup.flags, budget)
        begun = begin(folder, header, lambda: make_policy(setup.policy), tools.schemas)
        closing.enter_context(closed(begun.policy))
        if begun.record is not None:
            closing.enter_context(begun.record)
        result = run_episode(
            begun.policy,
            tools,
            budget,
            say,
            lambda: time.monotonic() - judge.waited_s,
            record=begun.record,
            past=begun.past,
            cancelled=getattr(judge, "is_over", lambda: False),
        )
    prune(folder)
    if result.best is None:
        passing = watched.passing or (met_before(begun.past.messages) if begun.past else "")
        return _nothing(result, tools, setup.policy, budget_s, passing)
    return _winner(result, judge, setup.policy)


@contextmanager
def _environment(
    task: Task, judge: Any, setup: Setup, recorded: Sequence[Any] | None
) -> Iterator[Environment]:
    """What the policy acts in: the judge with all that works ahead of it, files where it needs them, its memory."""
    from cuda_agent_backend.agent.environment import open_environment
    from cuda_agent_backend.agent.memory.recall import recall
    from cuda_agent_backend.agent.policies.registry import works_with_files
    from cuda_agent_backend.agent.policies.search.prefetch import PrefetchingBench, proposals
    from cuda_agent_backend.runtime.machine import key_of
    from sandbox.scratch import folder

    near = recall(setup.cache_dir, task, key_of(task)) if setup.memory else []
    bench: Any = WithRecorded(judge, recorded) if recorded else judge
    jobs = compile_jobs()
    with ExitStack() as closing:
        # on cpu it would disturb what is timed
        if setup.policy.name in DETERMINISTIC and task.target == "cuda":
            bench = closing.enter_context(PrefetchingBench(bench, proposals(task), jobs))
        place = None
        if works_with_files(setup.policy):
            place = Path(closing.enter_context(folder("task")))
        made = open_environment(task, bench, place, compile_jobs=jobs, neighbours=near)
        yield closing.enter_context(made)


def _nothing(
    result: EpisodeResult, tools: Toolbox, policy: PolicySpec, budget_s: float, passing: str
) -> NothingFound:
    """Of an episode without a winner: whether more time would help, and whether it says something about the task.

    passing: a failure that it met and that says nothing of the task, or "".
    """
    unsettled = any(v.status in ("noisy", "failed", "no_memory") for v in tools.verdicts.values())
    unsettled = unsettled or result.reason.startswith("baselines:")
    unsettled = unsettled or result.stop in ("infrastructure", "bug")
    late = result.stop == "interrupted" or (result.stop == "time" and not tools.profiles)
    gave_up = policy.name in DETERMINISTIC and result.stop == "gave_up"
    exhausted = gave_up and result.seconds < budget_s
    reason = f"{result.reason} ({passing})" if passing else result.reason
    keep = not (unsettled or passing or late)
    return NothingFound(reason, exhausted, result.turns, keep, late and not passing)


def _winner(result: EpisodeResult, judge: Any, policy: PolicySpec) -> SearchOutcome:
    from sandbox.compile.candidate import Compiled

    assert result.best is not None
    candidate, verdict = result.best
    compiled = judge.compile(candidate)
    if not isinstance(compiled, Compiled):
        return NothingFound(f"the winner does not compile again: {compiled}", keep=False)
    return SearchResult(
        compiled.launched(candidate),
        verdict,
        compiled.path.read_bytes(),
        compiled.toolchain.version,
        policy.label,
        result.reason,
        result.turns,
    )


def header_of(
    task: Task,
    policy: str,
    spec: str,
    schemas: Sequence[Any],
    flags: Mapping[str, Any],
    budget: Budget,
) -> Header:
    """The header of an episode's trajectory, as of now."""
    from cuda_agent_backend.agent.trajectories.events import Header
    from cuda_agent_backend.runtime.machine import toolchain_of
    from sandbox.timing.machine import facts
    from sandbox.verdict import VERIFIER_VERSION

    return Header(
        task=task.to_json(),
        task_digest=task.digest,
        target=task.target,
        policy=policy,
        spec=spec,
        tools=sha256(json.dumps(schemas, sort_keys=True).encode()),
        machine=plain(facts()),
        toolchain=toolchain_of(task.target) or "none",
        verifier=VERIFIER_VERSION,
        flags=plain(flags),
        started=time.time(),
        budget_s=budget.seconds,
        turns=budget.turns,
    )


def compile_jobs() -> int:
    """Compilers that one search runs at once: several searches may go side by side on a large machine."""
    return min(4, max(2, len(os.sched_getaffinity(0)) // 4))


class WithRecorded:
    """A judge that also tries real inputs whenever it verifies."""

    def __init__(self, judge: Any, recorded: Sequence[Any]) -> None:
        self._judge, self._recorded = judge, recorded

    def verify(self, task: Task, candidate: Candidate) -> Any:
        """See `Judge.verify`."""
        return self._judge.verify(task, candidate, recorded_inputs=[self._recorded])

    def judge(self, task: Task, candidate: Candidate) -> Any:
        """See `Judge.judge`."""
        return self._judge.judge(task, candidate, recorded_inputs=[self._recorded])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._judge, name)
