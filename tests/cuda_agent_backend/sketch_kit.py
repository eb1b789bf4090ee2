"""Tasks from plain functions, and candidates of sketches compiled and run in this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from cuda_agent_backend.codegen.api import as_it_stands
from cuda_agent_backend.codegen.covered_task import Analysis
from cuda_agent_backend.codegen.cpu.writer import emit
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from cuda_agent_backend.graph.canonical import Canonical, canonical
from sandbox import launcher
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task

KEY = 7


@dataclass(frozen=True)
class Sample:
    """A function as a task, with its inputs and eager's outputs in the task's order."""

    task: Task
    inputs: tuple[torch.Tensor, ...]
    want: tuple[torch.Tensor, ...]

    @cached_property
    def analysis(self) -> Analysis:
        """Fails where no sketch covers the task."""
        found = as_it_stands(self.task)
        assert isinstance(found, Analysis), found
        return found


class HasNests(Protocol):
    """A region and its kernels."""

    @property
    def region(self) -> LoweredRegion: ...

    @property
    def kernels(self) -> tuple[Kernel, ...]: ...


def randn(*shape: int) -> torch.Tensor:
    """Standard normal numbers, the same each time for a shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def holes(x: torch.Tensor) -> torch.Tensor:
    """A copy with NaN and both infinities in it."""
    x = x.clone()
    x[0, 1, 2], x[1, 2, 0], x[1, 0, 2] = math.nan, math.inf, -math.inf
    return x


INTEGERS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "bits shifted": (
        lambda x, y: (x << y, x >> y, x.int() << y.int(), x.int() >> y.int(), x.to(torch.uint8) >> 3),
        (torch.arange(-40, 40).view(4, 20) * 977, torch.arange(-5, 75).view(4, 20)),
    ),
    "divisions rounded down": (
        lambda x, y: (x // y, x // 0.1, torch.div(x, 4, rounding_mode="trunc"), (x.round() * 0) // y,
                      x.round().half() // 0.1, x.round().bfloat16() // 0.3),
        (randn(6, 29) * 9, torch.cat([randn(4, 29) / 7, torch.tensor([[0.0], [math.inf]]).expand(2, 29)])),
    ),
}  # fmt: skip
"""Cases of either target: whole numbers, and what is rounded to them."""


def sample(
    function: Callable[..., Any],
    *inputs: torch.Tensor,
    target: str = "cpu",
    eager: Callable[..., Any] | None = None,
) -> Sample:
    """Trace, decompose as Inductor does, and take all nodes as one region. eager: what gives the outputs in the place
    of ``function``, where that would raise here."""
    module = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="fake")(
        *inputs
    )
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    *nodes, output = [n for n in module.graph.nodes if n.op != "placeholder"]
    results = output.args[0] if isinstance(output.args[0], list | tuple) else [output.args[0]]
    found = canonical(nodes, results, target)
    assert isinstance(found, Canonical), found
    value = (eager or function)(*inputs)
    values = [value] if isinstance(value, torch.Tensor) else list(value)
    by_node = dict(zip(results, values, strict=True))
    return Sample(
        found.task,
        tuple(inputs[placeholders.index(n)] for n in found.inputs),
        tuple(by_node[same[0]] for same in found.outputs),
    )


def on_cuda(
    function: Callable[..., Any], *inputs: torch.Tensor, eager: Callable[..., Any] | None = None
) -> Sample:
    """As `sample` for cuda, traced on the CPU, whose scalars are constants of the task."""
    it = sample(function, *inputs, eager=eager)
    return replace(it, task=Task.from_json(it.task.to_json().replace('"cpu"', '"cuda"')))


def beginning_with(own: dict[str, Parameter], it: Sample, device: DeviceFacts) -> Schedule:
    """The first kernel under ``own`` parameters, those behind it under the best guess's."""
    rest = cuda.schedules(it.analysis.region, it.analysis.kernels, device)[0]
    return Schedule.of(own, *(rest.parameters(n) for n in range(1, len(rest.kernels))))


def run_cpu(
    analysis: HasNests,
    schedule: Schedule,
    inputs: Sequence[torch.Tensor],
    folder: Path,
    flags: Sequence[str] = (),
) -> list[torch.Tensor]:
    """Outputs of the candidate that ``schedule`` stands for, through the launcher. flags: more for the compiler."""
    return run_cpu_on(analysis, schedule, [inputs], folder, flags)[0]


def run_cpu_on(
    analysis: HasNests,
    schedule: Schedule,
    draws: Iterable[Sequence[torch.Tensor]],
    folder: Path,
    flags: Sequence[str] = (),
) -> list[list[torch.Tensor]]:
    """As `run_cpu`, on several sets of inputs."""
    source, plan = emit(analysis.region, analysis.kernels, schedule)
    candidate = Candidate("cpu", "c++", source, plan, "sketch")
    compiled = compile_candidate(candidate, folder, "native", cxx_flags=flags)
    assert isinstance(compiled, Compiled), compiled
    program = launcher.load_program(compiled.path, plan)
    assert not isinstance(program, launcher.LoadFailed), program
    launcher.define_ops()
    launcher.bind(KEY, program)
    try:
        op = launcher.op_for(len(plan.input_specs), len(plan.output_specs))
        results = [op(KEY, *inputs) for inputs in draws]
    finally:
        launcher.unbind(KEY)
    return [[one] if isinstance(one, torch.Tensor) else list(one) for one in results]
