"""Compile CUDA source to a cubin with nvcc or NVRTC, and refuse what a kernel may not contain."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from sandbox.compile import nvrtc
from sandbox.compile.cubin import parse, why_refused
from sandbox.compile.elf import ElfError
from sandbox.compile.occupancy import limits_of, residency
from sandbox.compile.outcome import Compiled, CompileFailed, CompileResult, Refused, failure_of
from sandbox.compile.toolchain import Missing, Toolchain, find_cuda, find_cxx
from sandbox.isolation.confine import offered, policy
from sandbox.isolation.landlock import View
from sandbox.isolation.limits import SYSTEM_PATH, Finished, Limits, run_limited
from sandbox.isolation.mechanisms import Isolation
from sandbox.isolation.privileges import next_uid
from sandbox.isolation.views import compiler_view
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Launch, Plan, ResolvedLaunch

SOURCE, BINARY = "kernel.cu", "kernel.cubin"
COMMON_FLAGS = ("-std=c++17", "-DNDEBUG")
_ARCH = re.compile(r"sm_\d{2,3}[af]?")


def compile_cuda(
    candidate: Candidate,
    folder: Path,
    arch: str,
    limits: Limits,
    include: Sequence[Path] = (),
    toolchain: Toolchain | Missing | None = None,
    isolation: Isolation | None = None,
) -> CompileResult:
    """Compile into `folder` (which must be empty) for `arch`, such as sm_90a. The path in Compiled is within it."""
    if not _ARCH.fullmatch(arch):
        return Refused(f"{arch!r} is not a CUDA architecture such as sm_90a")
    toolchain = toolchain or find_cuda()
    if isinstance(toolchain, Missing):
        return CompileFailed(f"{toolchain.reason}; {toolchain.remedy}", passing=True)
    (folder / SOURCE).write_text(candidate.source)
    argv = _command(toolchain, arch, include)
    view = _view(toolchain, folder, include)
    wanted = policy(isolation or offered(), view, {}, next_uid([str(toolchain.path)]))
    result = run_limited(argv, folder, limits, {"PATH": _search_path(toolchain)}, wanted)
    failure = failure_of(result)
    if failure is not None:
        return failure
    assert isinstance(result, Finished)
    return _inspect(candidate, folder / BINARY, result, toolchain, arch)


def _command(toolchain: Toolchain, arch: str, include: Sequence[Path]) -> list[str]:
    folders = [f"-I{path}" for path in include]
    if toolchain.kind == "nvcc":
        verbose = ["-Xptxas", "-v", "-allow-unsupported-compiler"]
        front = [str(toolchain.path), "-cubin", "-O3", f"-arch={arch}", *verbose]
        return [*front, *COMMON_FLAGS, *folders, SOURCE, "-o", BINARY]
    if toolchain.include is not None:
        folders.append(f"-I{toolchain.include}")
    front = [sys.executable, "-I", nvrtc.__file__, str(toolchain.path), SOURCE, BINARY]
    return [*front, f"--gpu-architecture={arch}", "--ptxas-options=-v", *COMMON_FLAGS, *folders]


def _view(toolchain: Toolchain, folder: Path, include: Sequence[Path]) -> View:
    extra = [*include]
    if toolchain.include is not None:
        extra.append(toolchain.include)
    if toolchain.kind == "nvrtc":
        # Python runs the library, from a file of this package.
        extra += [Path(sys.prefix), Path(sys.base_prefix), Path(nvrtc.__file__)]
        extra.append(toolchain.path.resolve().parent)
    compilers = [tool.path for tool in (toolchain, find_cxx()) if isinstance(tool, Toolchain)]
    return compiler_view(folder, compilers, extra)


def _search_path(toolchain: Toolchain) -> str:
    cxx = find_cxx()
    folders = [str(toolchain.path.parent)] if toolchain.kind == "nvcc" else []
    if isinstance(cxx, Toolchain):
        folders.append(str(cxx.path.parent))
    return ":".join([*folders, SYSTEM_PATH])


def _inspect(
    candidate: Candidate, binary: Path, run: Finished, toolchain: Toolchain, arch: str
) -> CompileResult:
    try:
        cubin = parse(binary.read_bytes())
    except (OSError, ElfError) as error:
        return CompileFailed(f"{run.output}\nno usable cubin came out: {error}")
    reason = why_refused(cubin, candidate.source, trusted=candidate.origin == "sketch")
    if reason is None and candidate.origin != "sketch":
        reason = depends(candidate.plan)
    if reason is not None:
        return Refused(reason)
    wanted = {step.kernel for step in candidate.plan.steps if isinstance(step, Launch)}
    absent = sorted(wanted - cubin.kernels)
    if absent:
        has = ", ".join(sorted(cubin.kernels)) or "none"
        return CompileFailed(
            f'no extern "C" __global__ function named {", ".join(absent)} in the source; it has {has}'
        )
    facts = kernel_facts(run.output, candidate.plan.launches(), arch)
    return Compiled(binary, run.output, run.seconds, toolchain, facts)


def depends(plan: Plan) -> str | None:
    """Why a plan by somebody else than our sketches is refused: a kernel that does not wait is right by chance, which
    no check would see for sure."""
    steps = (step for step in plan.steps if isinstance(step, Launch) and step.dependent)
    found = next(steps, None)
    return f"kernel {found.kernel}: dependent launches are for generated kernels" if found else None


def kernel_facts(
    log: str, launches: Sequence[ResolvedLaunch], arch: str
) -> dict[str, dict[str, int | float | str]]:
    """Per kernel what `ptxas_facts` says, with the residency of its launch on an SM that holds fewest blocks."""
    facts: dict[str, dict[str, int | float | str]] = {}
    limits = limits_of(arch)
    for name, used in ptxas_facts(log).items():
        fits = [residency(ln, used, limits) for ln in launches if limits and ln.kernel == name]
        facts[name] = {**used, **min(fits, key=lambda fit: fit["blocks_per_sm"], default={})}
    return facts


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def ptxas_facts(log: str) -> dict[str, dict[str, int]]:
    """Per kernel, from the assembler's verbose output: registers, stack, spills and static shared memory in bytes."""
    facts: dict[str, dict[str, int]] = {}
    parts = _ENTRY.split(log)
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        spills, used, shared = _SPILLS.search(text), _USED.search(text), _SHARED.search(text)
        if used is None:
            continue
        stack, stores, loads = (int(n) for n in spills.groups()) if spills else (0, 0, 0)
        facts[name] = {
            "registers": int(used.group(1)),
            "stack_bytes": stack,
            "spill_store_bytes": stores,
            "spill_load_bytes": loads,
            "shared_bytes": int(shared.group(1)) if shared else 0,
        }
    return facts
