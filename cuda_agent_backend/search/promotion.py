"""From a task to the kernel cache: run the agent with the judge, and keep what came of it with its evidence."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cuda_agent_backend.json_values import plain
from kernel_cache import (
    KernelCache,
    KernelKey,
    NegativeRecord,
    Record,
    Stored,
)
from kernel_cache.canonical import sha256
from sandbox.task.task import Task

if TYPE_CHECKING:
    from cuda_agent_backend.agent.loop import Budget
    from cuda_agent_backend.agent.policies.spec import PolicySpec
    from cuda_agent_backend.agent.trajectories.events import Header
    from sandbox.plan.candidate import Candidate
    from sandbox.verdict import Verdict

SEARCHED_OUT_S = 30 * 86400.0
CUT_SHORT_S = 86400.0
"""How long a failed search is remembered: one that tried all it knew, and one that the budget ended."""
DECIDED = ("search", "bayesian")
"""Policies that do the same another time: a model that gave up may not."""


@dataclass(frozen=True)
class SearchResult:
    """A kernel that won, its verdict and its compiled form. policy: what found it."""

    candidate: Candidate
    verdict: Verdict
    binary: bytes
    toolchain: str
    policy: str
    reason: str = ""
    turns: int = 0


@dataclass(frozen=True)
class NothingFound:
    """No kernel won, and why. `exhausted`: looking longer would not have changed that."""

    reason: str
    exhausted: bool = False
    turns: int = 0
    keep: bool = True
    """Whether it says something about the task, not about the machine's state just now."""


Searched = SearchResult | NothingFound


class HasFolders(Protocol):
    """The part of `service.Setup` used here."""

    @property
    def cache_dir(self) -> Path: ...
    @property
    def native_dir(self) -> Path: ...
    @property
    def policy(self) -> PolicySpec: ...
    @property
    def allow_policy_cpp(self) -> bool: ...
    @property
    def flags(self) -> Mapping[str, Any]: ...
    @property
    def device_lock(self) -> Path | None: ...
    @property
    def memory(self) -> bool: ...


def stands(known: object) -> bool:
    """Whether what the cache holds under a key is a kernel to use as it is."""
    from cuda_agent_backend.runtime.machine import why_doubted

    return isinstance(known, Record) and not why_doubted(known)


def keep(
    cache: KernelCache,
    key: KernelKey,
    task: Task,
    found: Searched,
    policy: str,
    budget_s: float,
    graph_s: float | None = None,
) -> str:
    """Write the record or the negative record; "" or why that failed. Durable when this returns.

    budget_s: seconds that the search had, a share of ``graph_s``; None where nobody knows of a graph.
    """
    now = time.time()
    if isinstance(found, SearchResult):
        record = record_of(key, task, found, now)
        stored = cache.put(record, found.binary)
        return "" if isinstance(stored, Stored) else f"not kept: {stored}"
    if found.keep:
        lasts = SEARCHED_OUT_S if found.exhausted else CUT_SHORT_S
        budget: dict[str, Any] = {"seconds": budget_s}
        if graph_s is not None and not found.exhausted:  # what more seconds might help
            budget["graph_seconds"] = graph_s
        cache.put_negative(NegativeRecord(key, policy, budget, found.reason, now, now + lasts))
    return ""


def record_of(key: KernelKey, task: Task, found: SearchResult, created: float) -> Record:
    """The record of a kernel that won, with the verdict as evidence."""
    from cuda_agent_backend.runtime.machine import LIBRARIES, PROCESSORS, libraries, processors

    verdict, candidate = found.verdict, found.candidate
    evidence: dict[str, Any] = {
        "driver": None,
        "samples": {},
        "errors": verdict.accuracy.to_dict() if verdict.accuracy else {},
        **verdict.evidence,
        "toolchain": found.toolchain,
        "policy": found.policy,
    }
    if candidate.plan.calls:
        evidence[LIBRARIES] = libraries()
    if any(launch.cooperative for launch in candidate.plan.launches()):
        evidence[PROCESSORS] = processors()
    evidence.setdefault("verifier", "unknown")
    if verdict.speed is not None:
        evidence["speedup"] = verdict.speed.speedup.to_dict()
        evidence["baseline"] = verdict.speed.baseline
    if verdict.accuracy is not None:
        evidence["error_ratio"] = verdict.accuracy.error_ratio
    return Record(
        key=key,
        task=task.to_json(),
        language=candidate.language,
        origin=candidate.origin,
        label=candidate.label,
        source=candidate.source,
        plan=candidate.plan.to_json(),
        binary_digest=sha256(found.binary),
        evidence=plain(evidence),
        created=created,
    )


def make_judge(target: str, setup: HasFolders, scratch: str) -> Any:
    """The sandbox's judge for a target: a context manager that owns the worker processes."""
    from cuda_agent_backend.runtime.machine import arch_of
    from sandbox.judge import Judge

    return Judge(
        target,
        scratch_dir=scratch,
        native_dir=setup.native_dir,
        arch=arch_of(target),
        threads=int(setup.flags["threads"]),
        flags=setup.flags["torch"],
        consent=setup.allow_policy_cpp,
        device_lock=setup.device_lock,
    )


def uncovered(task: Task, policy: PolicySpec) -> NothingFound | None:
    """Nothing, where no sketch covers a task that is for a policy of sketches alone.

    To know its baselines would bring nothing, and of a loop that was written out Inductor takes longer to make code
    than most searches last.
    """
    from cuda_agent_backend.codegen.api import analyse
    from cuda_agent_backend.codegen.ir.failure import NotCovered

    form = analyse(task) if policy.name in DECIDED else None
    if not isinstance(form, NotCovered):
        return None
    return NothingFound(f"no sketch covers it: {form.reason}", exhausted=True)


def run_agent(
    task: Task,
    judge: Any,
    setup: HasFolders,
    budget_s: float,
    recorded: Sequence[Any] | None,
    say: Callable[[str], None],
) -> Searched:
    """One episode of the agent on one task."""
    from cuda_agent_backend.agent.environment import open_environment
    from cuda_agent_backend.agent.loop import Budget, run_episode
    from cuda_agent_backend.agent.memory.recall import recall
    from cuda_agent_backend.agent.policies.registry import closed, make_policy, works_with_files
    from cuda_agent_backend.agent.policies.search.prefetch import Ahead, proposals
    from cuda_agent_backend.agent.resume import begin
    from cuda_agent_backend.agent.trajectories.store import folder_beside, prune
    from cuda_agent_backend.runtime.machine import key_of
    from sandbox.compile.candidate import Compiled
    from sandbox.isolation.trees import temporary

    bench: Any = WithRecorded(judge, recorded) if recorded else judge
    folder = folder_beside(setup.cache_dir)
    budget = Budget(budget_s)
    near = recall(setup.cache_dir, task, key_of(task)) if setup.memory else []
    with ExitStack() as closing:
        if (
            setup.policy.name in DECIDED and task.target == "cuda"
        ):  # on cpu it would disturb what is timed
            bench = closing.enter_context(Ahead(bench, proposals(task), compile_jobs()))
        place = None
        if works_with_files(setup.policy):
            place = Path(closing.enter_context(temporary("cuda-agent-task-")))
        environment = open_environment(
            task, bench, place, compile_jobs=compile_jobs(), neighbours=near
        )
        tools = closing.enter_context(environment).tools
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
        )
    prune(folder)
    if result.best is None:
        unsettled = any(v.status in ("noisy", "failed") for v in tools.verdicts.values())
        unsettled = unsettled or result.reason.startswith("baselines:")
        unsettled = unsettled or result.stop in ("infrastructure", "bug")
        of_plan = setup.policy.name in DECIDED
        exhausted = of_plan and result.stop == "gave_up" and result.seconds < budget_s
        return NothingFound(result.reason, exhausted, result.turns, keep=not unsettled)
    candidate, verdict = result.best
    compiled = judge.compile(candidate)
    if not isinstance(compiled, Compiled):
        return NothingFound(f"the winner does not compile again: {compiled}", keep=False)
    return SearchResult(
        compiled.launched(candidate),
        verdict,
        compiled.path.read_bytes(),
        compiled.toolchain.version,
        setup.policy.label,
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


def evidence_text(record: Record) -> str:
    """A record's evidence as JSON text, for people."""
    return json.dumps(dict(record.evidence), indent=1, sort_keys=True)
