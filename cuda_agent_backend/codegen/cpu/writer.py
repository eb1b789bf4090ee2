"""Kernels -> C++ for the cpu target: OpenMP over rows, vector lanes inside. `params` has the schedule's parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from cuda_agent_backend.codegen.cpu import gemm as cpu_product
from cuda_agent_backend.codegen.cpu.gemm import ProductWriter
from cuda_agent_backend.codegen.cpu.gemm_match import product_of
from cuda_agent_backend.codegen.cpu.inner_lanes import InnerLanes
from cuda_agent_backend.codegen.cpu.loop_nest import LoopNestWriter
from cuda_agent_backend.codegen.cpu.outer_lanes import OuterLanes
from cuda_agent_backend.codegen.cpu.params import LoopNestParams, ProductParams
from cuda_agent_backend.codegen.ir import running
from cuda_agent_backend.codegen.ir import special_functions as special
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.headers import header
from cuda_agent_backend.codegen.ir.kernel import Kernel, temporaries
from cuda_agent_backend.codegen.ir.operand_types import SAFE, SAFE_HEADERS
from cuda_agent_backend.codegen.ir.parameters import P, require
from cuda_agent_backend.codegen.ir.printer import STORAGE_TYPES
from cuda_agent_backend.codegen.ir.program import Program
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from sandbox.plan.plan import Buffer as PlanBuffer
from sandbox.plan.plan import Launch, Plan
from sandbox.task.specs import TensorSpec

ENTRY = "cuda_agent_kernel"
MAX_STACK_BYTES = 512 * 1024
"""Row-local arrays of one thread; beyond this they would not stay in a core's caches anyway."""
_PRELUDE = "cpu/prelude.h"
_MORE = {
    SAFE_HEADERS["cpu"]: SAFE,
    special.HEADERS["cpu"]: special.NAMES,
    running.HEADERS["cpu"]: running.NEEDED_BY["cpu"],
}
"""Headers for operators, and ways to combine, that few kernels have, by those."""


def emit(
    region: LoweredRegion, kernels: tuple[Kernel, ...], schedule: Schedule
) -> tuple[str, Plan]:
    """Source and plan of ``region`` under ``schedule``.

    Raises:
        Unsupported: the schedule does not fit a kernel, with the reason.
    """
    made = program(region, kernels, schedule)
    return made.source, made.plan


def program(
    region: LoweredRegion, kernels: tuple[Kernel, ...], schedule: Schedule, entry: str = ENTRY
) -> Program:
    """As `emit`, in parts. entry: the function's name.

    Raises:
        Unsupported: the schedule does not fit a kernel, with the reason.
    """
    if len(schedule.kernels) != len(kernels):
        raise Unsupported(
            f"schedule for {len(schedule.kernels)} kernels where there are {len(kernels)}"
        )
    parts = [
        _part(number, kernel, region, schedule.parameters(number))
        for number, kernel in enumerate(kernels)
    ]
    products = [part for part in parts if isinstance(part, ProductWriter)]
    plan = _plan(region, kernels, [t for p in products for t in p.panels.temporaries()])
    threads = "" if any(part.params.threads for part in parts) else " if(0)"
    out = [
        f'extern "C" void {entry}(void* const* buffers) {{',
        *map(_parameter, range(len(plan.buffers)), plan.buffers),
        f"  #pragma omp parallel{threads}",
        "  {",
        *(line for part in parts for line in part.emit()),
    ]
    if any(isinstance(part, LoopNestWriter) and part.params.stream for part in parts):
        out.append("  ca::stream_fence();")
    out += ["  }", "}"]
    preludes = [_PRELUDE, *_more(kernels), *([cpu_product.PRELUDE] if products else [])]
    return Program(tuple(map(header, preludes)), ("\n".join(out),), plan)


def _more(kernels: Sequence[Kernel]) -> list[str]:
    """The headers of `_MORE` that the kernels need."""
    stages = [stage for kernel in kernels for stage in kernel.stages]
    found = {i.op for stage in stages for i in stage.body.walk()} | {s.combine for s in stages}
    return [name for name, operators in _MORE.items() if found & operators]


def _part(
    number: int, kernel: Kernel, region: LoweredRegion, given: Mapping[str, Parameter]
) -> LoopNestWriter | ProductWriter:
    """What writes the region's kernel ``number``."""
    product = product_of(kernel)
    if product is not None:
        chosen = _read(ProductParams, given)
        panels = cpu_product.panels(product, number, chosen.width)
        return ProductWriter(kernel, product, region, panels, chosen)
    params = _read(LoopNestParams, given)
    _check_stack(kernel, region, params)
    return (OuterLanes if params.lanes == "outer" else InnerLanes)(kernel, region, params)


def _read(params: type[P], given: Mapping[str, Parameter]) -> P:
    """Raises Unsupported where the parameters of a schedule's kernel are not such."""
    return require(params, given)


def _check_stack(kernel: Kernel, region: LoweredRegion, params: LoopNestParams) -> None:
    span = params.width * params.unroll if params.lanes == "outer" else 1
    size = sum(v.size * region.buffers[n].dtype.itemsize * span for n, v in kernel.locals.items())
    if size > MAX_STACK_BYTES:
        raise Unsupported(f"row of {size} bytes does not stay on the core")


def _parameter(number: int, buffer: PlanBuffer) -> str:
    """A buffer of the plan as a typed pointer."""
    ctype = STORAGE_TYPES[getattr(torch, buffer.spec.dtype)]
    const = "const " if buffer.kind == "input" else ""
    return (
        f"  {const}{ctype}* __restrict__ {buffer.name} = "
        f"static_cast<{const}{ctype}*>(buffers[{number}]); (void){buffer.name};"
    )


def _plan(
    region: LoweredRegion, kernels: tuple[Kernel, ...], panels: Sequence[tuple[str, int]]
) -> Plan:
    """Buffers in plan order: inputs, outputs, the temporaries that pass from kernel to kernel, panels of products."""

    def entry(name: str, kind: Literal["input", "output"]) -> PlanBuffer:
        b = region.buffers[name]
        return PlanBuffer(name, kind, TensorSpec(_name(b.dtype), b.shape, b.stride))

    buffers = [entry(n, "input") for n in region.inputs] + [
        entry(n, "output") for n in region.outputs
    ]
    buffers += [
        PlanBuffer(b.name, "temporary", TensorSpec(_name(b.dtype), (b.extent,), (1,)))
        for b in temporaries(region, kernels)
    ]
    buffers += [
        PlanBuffer(name, "temporary", TensorSpec("float32", (elements,), (1,)))
        for name, elements in panels
    ]
    return Plan("cpu", tuple(buffers), (Launch(ENTRY),))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
