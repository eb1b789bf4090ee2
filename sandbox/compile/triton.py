"""Compile Triton source to a cubin and a launch plan, with no GPU and nothing of the source in this process.

Threat model: the source is Python, and importing it may do anything. It is imported in a process of its own that is
confined like host code of a policy (and refused where that would be), which has no view but of Python and Triton, and
limits on time, memory and processes. That process writes PTX and some numbers. Neither is believed: the PTX is
assembled anew in another process, without Python, and the cubin goes through the checks of nvcc's; a kernel's
parameters are read from the cubin, and the plan is checked as any other. So a forged answer gives a candidate that
somebody could have written in CUDA, which is judged as that.

Not supported: writable tables in device memory, which Triton's sine and cosine of large arguments need. Who may write
PTX may write to them, and such memory lasts from launch to launch.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sandbox.compile import ptx, triton_child
from sandbox.compile.cubin import parameter_sizes, parse, why_refused
from sandbox.compile.cuda import kernel_facts
from sandbox.compile.elf import ElfError
from sandbox.compile.outcome import Compiled, CompileFailed, CompileResult, Refused, failure_of
from sandbox.compile.toolchain import TRITON_ASSEMBLER, Missing, Toolchain, find_triton
from sandbox.compile.triton_plan import Built, lower, pointers_are_aligned, read_built, request
from sandbox.isolation.confine import offered, policy
from sandbox.isolation.landlock import View
from sandbox.isolation.limits import Finished, Limits, run_limited
from sandbox.isolation.mechanisms import Isolation
from sandbox.isolation.privileges import next_uid
from sandbox.isolation.views import LOADER, MACHINE, NULLS, SYSTEM
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Plan, PlanError, TritonLaunch

SOURCE, JOB, ANSWER, ASSEMBLY, BINARY = "kernel.py", "job", "answer", "kernel.ptx", "kernel.cubin"
MAX_ANSWER = 16 << 20
_ARCH = re.compile(r"sm_(\d{2,3})[af]?")


@dataclass(frozen=True)
class _Means:
    """What both programs run with. capability: of the architecture, such as 90."""

    capability: int
    limits: Limits
    toolchain: Toolchain
    isolation: Isolation

    def run(
        self, argv: Sequence[str], folder: Path, read: Sequence[str], variables: dict[str, str]
    ) -> Finished | CompileResult:
        """Run a program confined to a folder, and to reading Python's files and some more."""
        view = View((*SYSTEM, *LOADER, *MACHINE, *read), (str(folder),), NULLS)
        wanted = policy(self.isolation, view, {}, next_uid())
        result = run_limited(argv, folder, self.limits, variables, wanted)
        failure = failure_of(result)
        if failure is not None:
            return failure
        assert isinstance(result, Finished)
        return result


def compile_triton(
    candidate: Candidate,
    folder: Path,
    arch: str,
    limits: Limits,
    toolchain: Toolchain | Missing | None = None,
    isolation: Isolation | None = None,
) -> CompileResult:
    """Compile into `folder` (which must be empty) for `arch`, such as sm_90a. The plan to launch is in Compiled."""
    known, isolation = _ARCH.fullmatch(arch), isolation or offered()
    if known is None:
        return Refused(f"{arch!r} is not a CUDA architecture such as sm_90a")
    if isolation.why_no_untrusted_code is not None:
        return Refused(f"Triton source is Python: {isolation.why_no_untrusted_code}")
    toolchain = toolchain or find_triton()
    if isinstance(toolchain, Missing):
        return CompileFailed(f"{toolchain.reason}; {toolchain.remedy}", passing=True)
    for name in ("python", "assembler"):
        (folder / name).mkdir()
    means = _Means(int(known.group(1)), limits, toolchain, isolation)
    ran = _run_python(candidate, folder / "python", means)
    if not isinstance(ran, Finished):
        return ran
    try:
        kernels = _read_answer(folder / "python" / ANSWER, len(triton_steps(candidate.plan)))
        text, built = _link(candidate, kernels)
        assembled = _assemble(text, folder / "assembler", means)
        if not isinstance(assembled, Finished):
            return assembled
        path = folder / "assembler" / BINARY
        found = _inspect(candidate, path, built, assembled, toolchain, arch)
    except (OSError, ElfError, PlanError, ptx.PtxError) as error:
        return CompileFailed(f"{ran.output}\nno usable kernel came out: {error}".lstrip())
    if isinstance(found, Compiled):
        return replace(found, log=ran.output + found.log, seconds=ran.seconds + found.seconds)
    return found


def triton_steps(plan: Plan) -> list[TritonLaunch]:
    """The plan's kernels, in order."""
    return [step for step in plan.steps if isinstance(step, TritonLaunch)]


def _run_python(candidate: Candidate, folder: Path, means: _Means) -> Finished | CompileResult:
    """Have the source imported and its kernels compiled."""
    aligned, packages = pointers_are_aligned(), str(means.toolchain.path.parent)
    steps = triton_steps(candidate.plan)
    job = {
        "packages": [packages],
        "source": str(folder / SOURCE),
        "arch": means.capability,
        "kernels": [request(step, candidate.plan, aligned) for step in steps],
    }
    (folder / SOURCE).write_text(candidate.source)
    (folder / JOB).write_text(json.dumps(job))
    read = (sys.prefix, sys.base_prefix, packages, triton_child.__file__)
    variables = {
        "TRITON_CACHE_DIR": str(folder / "cache"),
        "TRITON_DISABLE_LINE_INFO": "1",  # it names files, and modules that are merged would quarrel about them
        "TRITON_DEFAULT_FP_FUSION": "1",  # as nvcc does, and as Triton did before 3.10
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv = [sys.executable, "-I", "-S", triton_child.__file__, JOB, ANSWER]
    return means.run(argv, folder, read, variables)


def _assemble(text: str, folder: Path, means: _Means) -> Finished | CompileResult:
    """With the first of Triton's assemblers that knows the version of PTX: Triton picks one by the architecture, by a
    rule that changes from version to version, and writes what that one knows."""
    target = ptx.target_of(text)
    if target.rstrip("af") != f"sm_{means.capability}":
        return CompileFailed(f"the PTX is for {target}, not for sm_{means.capability}")
    (folder / ASSEMBLY).write_text(text)
    first = means.toolchain.path / TRITON_ASSEMBLER
    flags = ["-v", *_extra_flags(means.toolchain), f"--gpu-name={target}", ASSEMBLY, "-o", BINARY]
    result: Finished | CompileResult = CompileFailed("Triton has no assembler")
    for assembler in (first, first.with_name(f"{first.name}-blackwell")):
        if not assembler.is_file():
            continue
        argv = [str(assembler), *flags]
        result = means.run(argv, folder, (str(assembler),), {})
        if not (isinstance(result, CompileFailed) and "Unsupported .version" in result.log):
            break
    return result


def _extra_flags(toolchain: Toolchain) -> list[str]:
    """What this version of Triton gives its assembler to get around faults of it."""
    text = (toolchain.path / "backends/nvidia/compiler.py").read_text()
    return re.findall(r"reg_alloc = \['(--regAllocOptLevel=\d)'\]", text)


def _read_answer(path: Path, count: int) -> list[dict[str, Any]]:
    """What the child wrote: as many kernels as there are steps. Raises PlanError and OSError."""
    try:
        found = json.loads(_read_untrusted(path))
        kernels = found["kernels"]
        texts = [kernel["ptx"] for kernel in kernels] + [kernel["name"] for kernel in kernels]
        for text in texts:
            str(text).encode()  # JSON can hold half a character, which no file takes
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PlanError(f"the answer is malformed: {error!r}") from None
    if len(kernels) != count or not all(isinstance(text, str) for text in texts):
        raise PlanError("the answer is malformed")
    return list(kernels)


def _read_untrusted(path: Path) -> bytes:
    """A file that somebody else has put there: no link, no pipe, not too large. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError("the answer is no file")
        data = file.read(MAX_ANSWER + 1)
    if len(data) > MAX_ANSWER:
        raise OSError(f"the answer has more than {MAX_ANSWER} bytes")
    return data


def _link(candidate: Candidate, kernels: Sequence[dict[str, Any]]) -> tuple[str, list[Built]]:
    """One module of PTX, and what is known of each step's kernel. Equal kernels are one, others get names apart."""
    modules: dict[str, str] = {}
    built: list[Built] = []
    for step, kernel in zip(triton_steps(candidate.plan), kernels, strict=True):
        text = ptx.without_unused(kernel["ptx"])
        if text not in modules:
            modules[text] = f"{step.kernel[:190]}_{len(modules)}"
        built.append(read_built(kernel, modules[text]))
        kernel["text"] = text
    names = {kernel["text"]: kernel["name"] for kernel in kernels}
    return ptx.merge([ptx.rename(text, names[text], new) for text, new in modules.items()]), built


def _inspect(
    candidate: Candidate,
    binary: Path,
    built: Sequence[Built],
    run: Finished,
    toolchain: Toolchain,
    arch: str,
) -> CompileResult:
    data = _read_untrusted(binary)
    cubin = parse(data)
    reason = why_refused(cubin, candidate.source, trusted=False)
    if reason is not None or cubin.globals:
        tables = ", ".join(sorted(cubin.globals))
        return Refused(reason or f"the kernels keep tables in writable memory ({tables})")
    absent = sorted({kernel.name for kernel in built} - cubin.kernels)
    if absent:
        return CompileFailed(f"the machine code has no kernel {', '.join(absent)}")
    plan = lower(candidate.plan, built, parameter_sizes(data))
    facts = kernel_facts(run.output, plan.launches(), arch)
    return Compiled(binary, run.output, run.seconds, toolchain, facts, plan)
