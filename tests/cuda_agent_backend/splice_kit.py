"""Hand-written kernels in a kernel cache, for tests of everything around the search."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.hook.kernel_pass import KernelPass
from cuda_agent_backend.options import Options, parse
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.runtime.kernels import open_kernels
from cuda_agent_backend.runtime.machine import key_of, toolchain_of
from cuda_agent_backend.search.outcome import SearchResult
from cuda_agent_backend.search.promotion import record_of
from cuda_agent_backend.settings import Settings
from kernel_cache import KernelCache, Record
from sandbox import launcher
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Buffer, Launch, Plan
from sandbox.task.task import Task
from sandbox.timing.decision import Interval, SpeedReport
from sandbox.verdict import Verdict

NATIVE = "CUDA_AGENT_NATIVE_DIR"
SOURCE = """
#include <cmath>
extern "C" void kernel(void* const* buffers) {{
{body}
}}
"""


def options_in(folder: Path, **wishes: Any) -> Options:
    """Options with a kernel cache in `folder`, without search, trusting the kernels, offering the smallest regions.

    The folder of what is built is that of all tests: in an empty one the operators take a core five seconds.
    """
    built = {NATIVE: os.environ[NATIVE]} if NATIVE in os.environ else {}
    settings = Settings.from_environment({"HOME": str(folder), **built})
    given = {"search": "cached", "acceptance": "trust", "min_bytes": 0, "progress": "off", **wishes}
    theirs = {key: given.pop(key) for key in list(given) if "__" in key}
    options: dict[str, Any] = {f"cuda_agent.{key}": value for key, value in given.items()}
    options |= {key.replace("__", "."): value for key, value in theirs.items()}
    return parse(settings, None, options)


def plan_of(task: Task) -> Plan:
    """A cpu plan with one entry called "kernel"."""
    buffers = [Buffer(f"in{i}", "input", spec) for i, spec in enumerate(task.inputs)]
    buffers += [Buffer(f"out{i}", "output", spec) for i, spec in enumerate(task.output_specs)]
    return Plan("cpu", tuple(buffers), (Launch("kernel"),))


def elementwise(task: Task, expression: str) -> str:
    """A body that writes `expression` (of `a`, and `b` with a second input) to the one output, for any strides."""
    shape, out = task.output_specs[0].shape, task.output_specs[0]
    loops = "".join(f"for (long i{d} = 0; i{d} < {n}; i{d}++) " for d, n in enumerate(shape))
    reads = ""
    for number, (name, spec) in enumerate(zip("ab", task.inputs, strict=False)):
        offset = len(shape) - len(spec.shape)
        steps = [s if n != 1 else 0 for n, s in zip(spec.shape, spec.stride, strict=True)]
        place = " + ".join(f"i{offset + d} * {s}" for d, s in enumerate(steps)) or "0"
        reads += f"float {name} = ((const float*)buffers[{number}])[{place}]; "
    place = " + ".join(f"i{d} * {s}" for d, s in enumerate(out.stride)) or "0"
    target = f"((float*)buffers[{len(task.inputs)}])[{place}]"
    return f"{loops}{{ {reads}{target} = {expression}; }}"


def compiled(task: Task, body: str, folder: Path) -> tuple[Candidate, bytes]:
    """A candidate with this C++ body (`buffers[i]` in plan order), and its binary."""
    candidate = Candidate(
        "cpu", "c++", SOURCE.format(body=body), plan_of(task), "sketch", "by hand"
    )
    made = compile_candidate(candidate, folder, "native")
    assert isinstance(made, Compiled), made
    return candidate, made.path.read_bytes()


def result(task: Task, body: str, folder: Path, low: float = 1.5) -> SearchResult:
    """What a search would bring that found this body, as if it had been verified."""
    candidate, binary = compiled(task, body, folder)
    speedup = Interval(2.0, low, 2.1, 20)
    speed = SpeedReport(
        {"eager": 2.0, "inductor": 2.0}, {"inductor": speedup}, "inductor", None, True
    )
    verdict = Verdict("wins", "2.00x", 3.0, None, speed, {"verifier": "test", "samples": []})
    return SearchResult(candidate, verdict, binary, str(toolchain_of("cpu")), "by hand", "won", 1)


def promote(cache: KernelCache, task: Task, body: str, folder: Path, low: float = 1.5) -> Record:
    """Keep a kernel with this C++ body as if it had been searched and verified."""
    found = result(task, body, folder, low)
    record = record_of(key_of(task), task, found, time.time())
    cache.put(record, found.binary)
    launcher.unbind(record.key.op_key)  # another test may have bound it
    return record


def cache_of(options: Options) -> KernelCache:
    """The open cache of these options."""
    kernels = open_kernels(options.cache_dir)
    cache = getattr(kernels, "cache", None)
    assert isinstance(cache, KernelCache), kernels
    return cache


class Capture:
    """Observes the pass: the canonical forms of the regions of every graph, with its nodes' names."""

    def __init__(self) -> None:
        self.forms: list[Canonical] = []
        self.reports: list[Any] = []

    def __call__(self, regions: Sequence[Region], report: Any) -> None:
        self.reports.append(report)
        for region in regions:
            if region.reason is None:
                form = canonical(region.nodes, region.outputs, region.target)
                assert isinstance(form, Canonical)
                self.forms.append(form)


def backend_for(
    options: Options, observe: Callable[..., None] | None = None, searcher: Any = None
) -> Any:
    """A backend function for torch.compile, and the pass it uses."""
    from cuda_agent_backend.backend import compile_with

    def backend(gm: Any, inputs: Any, **_: Any) -> Any:
        kernels: Any = open_kernels(options.cache_dir)
        hook = KernelPass(options, kernels, searcher, (), observe)
        backend.passes.append(hook)  # type: ignore[attr-defined]
        return compile_with(gm, inputs, options, hook)

    backend.passes = []  # type: ignore[attr-defined]
    return backend
