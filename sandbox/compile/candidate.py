"""Compile a candidate in a child process with limits. All failures are values that carry the compiler's words."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sandbox.compile import host_code
from sandbox.compile.cuda import compile_cuda
from sandbox.compile.elf import ElfError
from sandbox.compile.outcome import (
    Compiled,
    CompileFailed,
    CompileResult,
    CompileTimedOut,
    Refused,
    failure_of,
)
from sandbox.compile.toolchain import Missing, find_cxx, torch_headers
from sandbox.compile.triton import compile_triton
from sandbox.compile.triton_plan import has_triton, is_triton
from sandbox.isolation import trees
from sandbox.isolation.confine import offered, policy
from sandbox.isolation.limits import Finished, Limits, run_limited
from sandbox.isolation.mechanisms import Isolation
from sandbox.isolation.privileges import next_uid
from sandbox.isolation.views import compiler_view
from sandbox.plan.candidate import Candidate

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

TORCH_HEADERS = "#include <ATen/"
"""What our own sketches write where a kernel calls scalar functions of torch's."""
_LANGUAGES = {"cpu": ("c++",), "cuda": ("cuda", "triton")}
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
    isolation: Isolation | None = None,
    stop: threading.Event | None = None,
) -> CompileResult:
    """Compile into out_dir, under a name made of the candidate's digest and arch. Built aside, then renamed.

    arch: `sm_90a` and the like for cuda; on cpu only a part of the file's name, as the code is for this machine.
    include: folders with headers. cxx_flags: more flags for the C++ compiler.
    consent: the user allows C++ code that a policy wrote to run in the process; without it such code is refused.
    isolation: what this machine offers, found out where it is not given. stop: once it is set, the compiler ends as at
    its deadline.
    """
    isolation = isolation or offered()
    reason = _why_refused(candidate, consent, isolation)
    if reason is not None:
        return Refused(reason)
    limits = Limits(wall_s=timeout_s, cpu_s=int(2 * timeout_s) + 1, stop=stop)
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        with trees.temporary("compiling-", out_dir) as name:
            folder = Path(name)
            if candidate.language == "triton":
                result = compile_triton(candidate, folder, arch, limits, isolation=isolation)
            elif candidate.target == "cuda":
                result = compile_cuda(candidate, folder, arch, limits, include, isolation=isolation)
            else:
                result = _compile_cxx(candidate, folder, limits, cxx_flags, include, isolation)
            if not isinstance(result, Compiled):
                return result
            os.chown(result.path, os.geteuid(), os.getegid())
            path = out_dir / f"{candidate.digest[:32]}-{arch}{_SUFFIXES[candidate.target]}"
            return replace(result, path=result.path.replace(path))
    except OSError as error:
        return CompileFailed(f"cannot write to {out_dir}: {error}", passing=True)


def is_untrusted_host_code(candidate: Candidate) -> bool:
    """Whether code that our own sketches did not write would run on the host: all C++ of a policy."""
    return candidate.language == "c++" and candidate.origin != "sketch"


def _why_refused(candidate: Candidate, consent: bool, isolation: Isolation) -> str | None:
    wanted = _LANGUAGES[candidate.target]
    if candidate.language not in wanted or candidate.plan.target != candidate.target:
        return f"target {candidate.target} takes {' or '.join(wanted)} source and a {candidate.target} plan"
    if is_untrusted_host_code(candidate):
        if not consent:
            return "C++ source written by a policy runs in your process once promoted; the user's consent is needed"
        if isolation.why_no_untrusted_code is not None:
            return f"C++ source written by a policy: {isolation.why_no_untrusted_code}"
    if candidate.language == "triton" and not is_triton(candidate.plan):
        return 'Triton source takes a plan whose kernels are all of the kind "triton"'
    if candidate.language != "triton" and has_triton(candidate.plan):
        return f'{candidate.language} source takes no steps of the kind "triton"'
    return None


def _compile_cxx(
    candidate: Candidate,
    folder: Path,
    limits: Limits,
    extra: Sequence[str],
    include: Sequence[Path],
    isolation: Isolation,
) -> CompileResult:
    toolchain = find_cxx()
    if isinstance(toolchain, Missing):
        return CompileFailed(f"{toolchain.reason}; {toolchain.remedy}", passing=True)
    (folder / "kernel.cpp").write_text(candidate.source)
    if candidate.origin == "sketch" and TORCH_HEADERS in candidate.source:
        include = (*include, *torch_headers())
    folders = [f"-I{path}" for path in include]
    argv = [str(toolchain.path), *CXX_FLAGS, *extra, *folders, "kernel.cpp", "-o", "kernel.so"]
    view = compiler_view(folder, [toolchain.path], include)
    wanted = policy(isolation, view, {}, next_uid([str(toolchain.path)]))
    result = run_limited(argv, folder, limits, policy=wanted)
    failure = failure_of(result)
    if failure is not None:
        return failure
    assert isinstance(result, Finished)
    if is_untrusted_host_code(candidate):
        try:
            reason = host_code.why_refused((folder / "kernel.so").read_bytes())
        except ElfError as error:
            return CompileFailed(f"{result.output}\nno usable library came out: {error}")
        if reason is not None:
            return Refused(reason)
    return Compiled(folder / "kernel.so", result.output, result.seconds, toolchain)
