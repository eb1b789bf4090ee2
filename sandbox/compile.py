"""Compile a candidate in a child process with limits. All failures are values that carry the compiler's words."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sandbox.candidate import Candidate
from sandbox.compilation import (
    Compiled,
    CompileFailed,
    CompileResult,
    CompileTimedOut,
    Refused,
    failure_of,
)
from sandbox.compile_cuda import compile_cuda
from sandbox.limits import Finished, Limits, run_limited
from sandbox.plan import LibraryCall
from sandbox.toolchain import Missing, find_cxx

__all__ = [
    "CXX_FLAGS",
    "CompileFailed",
    "CompileResult",
    "CompileTimedOut",
    "Compiled",
    "Refused",
    "compile_candidate",
]

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

_LANGUAGES = {"cpu": "c++", "cuda": "cuda"}
_SUFFIXES = {"cpu": ".so", "cuda": ".cubin"}


def compile_candidate(
    candidate: Candidate,
    out_dir: Path,
    arch: str,
    timeout_s: float = 120.0,
    *,
    cxx_flags: Sequence[str] = (),
    include: Sequence[Path] = (),
    consent: bool = False,
) -> CompileResult:
    """Compile into out_dir, under a name made of the candidate's digest and arch. Built aside, then renamed.

    arch: `sm_90a` and the like for cuda; on cpu only a part of the file's name, as the code is for this machine.
    include: folders with headers. cxx_flags: more flags for the C++ compiler.
    consent: the user allows C++ code that a policy wrote to run in the process; without it such code is refused.
    """
    reason = _why_refused(candidate, consent)
    if reason is not None:
        return Refused(reason)
    limits = Limits(wall_s=timeout_s, cpu_s=int(2 * timeout_s) + 1)
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out_dir, prefix="compiling-") as name:
            folder = Path(name)
            if candidate.target == "cuda":
                result = compile_cuda(candidate, folder, arch, limits, include)
            else:
                flags = [*cxx_flags, *(f"-I{path}" for path in include)]
                result = _compile_cxx(candidate, folder, limits, flags)
            if not isinstance(result, Compiled):
                return result
            path = out_dir / f"{candidate.digest[:32]}-{arch}{_SUFFIXES[candidate.target]}"
            return replace(result, path=result.path.replace(path))
    except OSError as error:
        return CompileFailed(f"cannot write to {out_dir}: {error}")


def _why_refused(candidate: Candidate, consent: bool) -> str | None:
    wanted = _LANGUAGES[candidate.target]
    if candidate.language != wanted or candidate.plan.target != candidate.target:
        return f"target {candidate.target} takes {wanted} source and a {candidate.target} plan"
    if candidate.language == "c++" and candidate.origin == "policy" and not consent:
        return "C++ source written by a policy runs unconfined; the user's consent is needed"
    if any(isinstance(step, LibraryCall) for step in candidate.plan.steps):
        return "library calls in a plan are not supported"
    return None


def _compile_cxx(
    candidate: Candidate, folder: Path, limits: Limits, extra: Sequence[str]
) -> CompileResult:
    toolchain = find_cxx()
    if isinstance(toolchain, Missing):
        return CompileFailed(f"{toolchain.reason}; {toolchain.remedy}")
    (folder / "kernel.cpp").write_text(candidate.source)
    argv = [str(toolchain.path), *CXX_FLAGS, *extra, "kernel.cpp", "-o", "kernel.so"]
    result = run_limited(argv, folder, limits)
    failure = failure_of(result)
    if failure is not None:
        return failure
    assert isinstance(result, Finished)
    return Compiled(folder / "kernel.so", result.output, result.seconds, toolchain)
