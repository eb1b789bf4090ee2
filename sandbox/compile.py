"""Compile a candidate in a child process with limits. All failures are values that carry the compiler's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox.candidate import Candidate
from sandbox.limits import Finished, Limits, StartFailed, TimedOut, run_limited
from sandbox.toolchain import Missing, Toolchain, find_cxx

CXX_FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-shared",
    "-fPIC",
)
"""Never -ffast-math: NaN and Inf must behave as in eager mode."""


@dataclass(frozen=True)
class Compiled:
    """The binary at `path` (shared object or cubin). `facts`: per kernel registers, spills, shared bytes (cuda)."""

    path: Path
    log: str
    seconds: float
    toolchain: Toolchain
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CompileFailed:
    """The compiler refused the source, or there is none."""

    log: str


@dataclass(frozen=True)
class CompileTimedOut:
    """The compiler was stopped at its deadline."""

    log: str
    seconds: float


@dataclass(frozen=True)
class Refused:
    """The candidate asks for something that is not allowed."""

    reason: str


CompileResult = Compiled | CompileFailed | CompileTimedOut | Refused


def compile_candidate(
    candidate: Candidate,
    out_dir: Path,
    arch: str,
    timeout_s: float = 120.0,
    *,
    cxx_flags: Sequence[str] = (),
    consent: bool = False,
) -> CompileResult:
    """Compile into out_dir, under a name made of the candidate's digest and arch.

    arch: `sm_90a` and the like for cuda; on cpu only a part of the file's name, the code is for this machine.
    consent: the user allows C++ code that a policy wrote to run in the process; without it such code is refused.
    """
    wanted = {"cpu": "c++", "cuda": "cuda"}[candidate.target]
    if candidate.language != wanted or candidate.plan.target != candidate.target:
        return Refused(
            f"target {candidate.target} takes {wanted} source and a {candidate.target} plan"
        )
    out_dir.mkdir(parents=True, exist_ok=True)
    limits = Limits(wall_s=timeout_s, cpu_s=int(2 * timeout_s) + 1)
    if candidate.target == "cuda":
        return CompileFailed("cuda is not supported yet")
    if candidate.origin == "policy" and not consent:
        return Refused(
            "C++ source written by a policy runs unconfined; the user's consent is needed"
        )
    return _compile_cxx(candidate, out_dir / f"{candidate.digest[:32]}-{arch}", limits, cxx_flags)


def _compile_cxx(
    candidate: Candidate, stem: Path, limits: Limits, extra: Sequence[str]
) -> CompileResult:
    toolchain = find_cxx()
    if isinstance(toolchain, Missing):
        return CompileFailed(f"{toolchain.reason}; {toolchain.remedy}")
    source, binary = stem.with_suffix(".cpp"), stem.with_suffix(".so")
    source.write_text(candidate.source)
    argv = [str(toolchain.path), *CXX_FLAGS, *extra, source.name, "-o", binary.name]
    result = run_limited(argv, stem.parent, limits)
    failure = failure_of(result)
    if failure is not None:
        return failure
    assert isinstance(result, Finished)
    return Compiled(binary, result.output, result.seconds, toolchain)


def failure_of(result: Finished | TimedOut | StartFailed) -> CompileFailed | CompileTimedOut | None:
    """What went wrong with a compiler's run, if anything."""
    match result:
        case TimedOut(output, seconds):
            return CompileTimedOut(output, seconds)
        case StartFailed(reason):
            return CompileFailed(reason)
        case Finished(code, output, _) if code != 0:
            return CompileFailed(output or f"the compiler ended with status {code}")
    return None
