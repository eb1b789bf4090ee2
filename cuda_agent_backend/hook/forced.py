"""The option `cuda_agent.force`, for tests: each region runs the first kernels that are proposed for it, however fast.

No cache is asked and none is written: what is compiled here is loaded, bound under a key that no record has, and lives
as long as the process. The pass names no `uuid` then, so torch keeps nothing either. What came of each task is kept for
who forced it (`outcome_of`), and a graph that is compiled can be turned to its tasks' other schedules (`turn_to`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from cuda_agent_backend.codegen.api import analyse, generate, schedules
from cuda_agent_backend.codegen.bugs import Bug
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.graph.canonical import NotATask
from cuda_agent_backend.hook.lookup import Candidates
from cuda_agent_backend.partition.candidates import CandidateRegion, candidate_of
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.runtime.kernels import Hit, NoKernel
from cuda_agent_backend.runtime.machine import arch_of, toolchain_of
from kernel_cache import KernelKey, Record
from kernel_cache.canonical import sha256
from sandbox import launcher, scratch
from sandbox.compile.candidate import (
    Compiled,
    CompileFailed,
    CompileResult,
    CompileTimedOut,
    compile_candidate,
)
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task

Status = Literal["covered", "left", "bug", "refused", "does not compile"]
COMPILE_S = 300.0


@dataclass(frozen=True)
class Attempt:
    """One schedule of a task. reason: why it is not covered; of what does not compile, the compiler's words.

    left: no kernel is offered. bug: the generator failed. refused: by the compiler's rules or by the launcher.
    """

    schedule: str
    status: Status
    reason: str = ""
    candidate: Candidate | None = None
    binary_digest: str = ""
    program: launcher.Program | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of a task: one attempt for each of its first schedules, or one that says why it has none."""

    key: KernelKey
    task: Task
    family: str
    attempts: tuple[Attempt, ...]

    @property
    def usable(self) -> list[Attempt]:
        """Those that a graph can run, best guess first."""
        return [attempt for attempt in self.attempts if attempt.program is not None]


_lock = threading.RLock()
_known: dict[str, Outcome] = {}
_cxx_flags: tuple[str, ...] = ()
_include: tuple[Path, ...] = ()


def use_headers(cxx_flags: Sequence[str], include: Sequence[Path]) -> None:
    """Compile what is forced from now on for cpu with these flags and folders of headers, as `compile_candidate` takes
    them: of headers that are parsed already. Empty ones: with the headers' text."""
    global _cxx_flags, _include
    with _lock:
        _cxx_flags, _include = tuple(cxx_flags), tuple(include)


def force(regions: Iterable[Region], count: int) -> Candidates:
    """The regions of a graph with a kernel for each that the generator covers. count: of schedules for each task."""
    places = tuple((region, _place(region, count)) for region in regions)
    candidates = Candidates(places, {})
    known = {one.key.digest: _kernel(one, count) for one in candidates.all}
    return replace(candidates, known=known)


def outcomes() -> list[Outcome]:
    """What came of each task that was forced in this process, in the order in which they were met."""
    with _lock:
        return list(_known.values())


def outcome_of(task_digest: str) -> Outcome | None:
    """The same of one task, by its digest; of the last number of schedules."""
    found = [o for o in outcomes() if o.task.digest == task_digest]
    return found[-1] if found else None


def turn_to(number: int) -> int:
    """Have all graphs of this process run their tasks' schedule of this number, from 0, or the last one where there
    are fewer; for how many tasks it is another than the first."""
    with _lock:
        usable = [(o.key.op_key, o.usable) for o in _known.values() if o.usable]
        for key, attempts in usable:
            program = attempts[min(number, len(attempts) - 1)].program
            assert program is not None
            launcher.bind(key, program)
    return sum(0 < number < len(attempts) for _, attempts in usable)


def forget() -> None:
    """Unbind all that was forced in this process. Graphs that were compiled with it cannot run any more."""
    with _lock:
        for outcome in _known.values():
            launcher.unbind(outcome.key.op_key)
        _known.clear()


def _place(region: Region, count: int) -> CandidateRegion | NotATask:
    found = candidate_of(region)
    return _apart(found, count) if isinstance(found, CandidateRegion) else found


def _apart(found: CandidateRegion, count: int) -> CandidateRegion:
    """The candidate under a key that no record has, so that nothing forced is ever taken for what was promoted."""
    key = replace(found.key, precision=f"forced {count} {found.key.precision}")
    return replace(found, key=key, rest=_apart(found.rest, count) if found.rest else None)


def _kernel(candidate: CandidateRegion, count: int) -> Hit | NoKernel:
    with _lock:
        found = _known.get(candidate.key.digest)
        if found is None:
            found = _known[candidate.key.digest] = _force(candidate.key, candidate.task, count)
        if not found.usable:
            return NoKernel(found.attempts[0].reason)
        first = found.usable[0]
        assert first.program is not None
        launcher.define_ops()
        launcher.bind(found.key.op_key, first.program)
        return Hit(_record(found, first))


def _force(key: KernelKey, task: Task, count: int) -> Outcome:
    analysis = analyse(task)
    if isinstance(analysis, NotCovered):
        return Outcome(key, task, "", (_not_covered(analysis, ""),))
    chosen = schedules(analysis)[:count]
    attempts: list[Attempt] = []
    for schedule in chosen:
        made = generate(analysis, schedule)
        if isinstance(made, NotCovered):
            attempts.append(_not_covered(made, schedule.to_json()))
        else:
            attempts.append(_build(made, key.target))
    if not attempts:
        attempts = [Attempt("", "left", "no schedule is proposed")]
    return Outcome(key, task, analysis.family, tuple(attempts))


def _not_covered(why: NotCovered, schedule: str) -> Attempt:
    if isinstance(why, Bug):
        return Attempt(schedule, "bug", f"{why.error} at {why.place}, {why.doing}")
    return Attempt(schedule, "left", why.reason)


def _build(candidate: Candidate, target: str) -> Attempt:
    """Compile and load. What is loaded needs its file no more."""
    label = candidate.label
    with scratch.folder("forced") as name:
        made = _compiled(candidate, Path(name), arch_of(target))
        match made:
            case Compiled():
                launched = made.launched(candidate)
                program = launcher.load_program(made.path, launched.plan)
                digest = sha256(made.path.read_bytes())
            case CompileFailed(log):
                return Attempt(label, "does not compile", log, candidate)
            case CompileTimedOut(_, seconds):
                return Attempt(label, "does not compile", f"after {seconds:.0f} s", candidate)
            case _:
                return Attempt(label, "refused", made.reason, candidate)
    if isinstance(program, launcher.LoadFailed):
        return Attempt(label, "refused", f"does not load: {program.reason}", candidate)
    return Attempt(label, "covered", "", launched, digest, program)


def _compiled(candidate: Candidate, folder: Path, arch: str) -> CompileResult:
    if candidate.target != "cpu":
        return compile_candidate(candidate, folder, arch, COMPILE_S)
    return compile_candidate(
        candidate, folder, arch, COMPILE_S, cxx_flags=_cxx_flags, include=_include
    )


def _record(outcome: Outcome, attempt: Attempt) -> Record:
    """What the rest of the pass knows a kernel by. It is never stored."""
    candidate = attempt.candidate
    assert candidate is not None
    toolchain = str(toolchain_of(outcome.key.target, candidate.language))
    evidence: dict[str, Any] = {
        "driver": None, "samples": {}, "errors": {},
        "toolchain": toolchain, "verifier": "none: forced", "policy": "none: forced",
    }  # fmt: skip
    return Record(
        key=outcome.key,
        task=outcome.task.to_json(),
        language=candidate.language,
        origin=candidate.origin,
        label=candidate.label,
        source=candidate.source,
        plan=candidate.plan.to_json(),
        binary_digest=attempt.binary_digest,
        evidence=evidence,
        created=time.time(),
    )
