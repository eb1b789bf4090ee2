"""Every schedule of a subject of `sketch_cuda`, written and compiled: several kernels to a file."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.sketch_cuda_subjects import Subject
from sandbox.plan.plan import Plan


@dataclasses.dataclass(frozen=True)
class Variant:
    """One schedule of one case, compiled. ``plan`` is JSON."""

    schedule: str
    plan: str
    cubin: str
    registers: str


@dataclasses.dataclass(frozen=True)
class Built:
    """A case's variants, or why there are none."""

    case: str
    variants: tuple[Variant, ...]
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class _Traced:
    """As much of a task as lowering needs."""

    inputs: tuple[Any, ...]
    output_specs: tuple[Any, ...]
    target: str = "cuda"


def lower_case(case: Subject) -> Any:
    """The region and kernels of a subject, from its function alone."""
    from torch._inductor import config as inductor_config
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from cuda_agent_backend.codegen.cuda import generate as cuda
    from cuda_agent_backend.codegen.lowering.lower import lower_graph
    from cuda_agent_backend.codegen.transform.scan_order import kernels_of
    from sandbox.task.specs import TensorSpec

    def spec(t: Tensor) -> TensorSpec:
        return TensorSpec(str(t.dtype).removeprefix("torch."), tuple(t.shape), tuple(t.stride()))

    with FakeTensorMode():
        inputs = case.make("cpu")
    module = make_fx(case.function, select_decomp_table(), "fake")(*inputs)
    (result,) = list(module.graph.nodes)[-1].args
    results = result if isinstance(result, list | tuple) else (result,)
    outputs = tuple(spec(n.meta["val"]) for n in results)
    with inductor_config.patch(comprehensive_padding=False):
        region = lower_graph(_Traced(tuple(spec(t) for t in inputs), outputs), module)  # type: ignore[arg-type]
    return region, kernels_of(region, lambda kernel: cuda.fits(kernel, region))


def build(case: Subject, folder: Path, most: int, tf32: bool) -> Built:
    """Emit and compile all schedules of a case, several to a file. tf32: such products are tried too."""
    from cuda_agent_backend.codegen.cuda import generate as cuda
    from sandbox.compile.cuda import ptxas_facts

    try:
        region, kernels = lower_case(case)
        device = cuda.DeviceFacts(tf32=("matmul", "conv") if tf32 else ())
        sources, plans, schedules = [], [], []
        preludes: dict[str, None] = {}  # schedules of a case need different ones
        for number, schedule in enumerate(cuda.schedules(region, kernels, device, most)):
            first = number * len(kernels)  # names that no other schedule's kernels have
            made = cuda.program(region, kernels, schedule, device, first)
            preludes |= dict.fromkeys(made.preludes)
            sources += made.functions
            plans.append(made.plan)
            schedules.append(schedule.to_json())
    except Exception as error:  # a tool reports and goes on
        return Built(case.name, (), repr(error)[:300])
    path = folder / f"{case.name.replace(' ', '_')}.cu"
    path.write_text("\n".join((*preludes, *sources)))
    cubin = path.with_suffix(".cubin")
    command = [
        "nvcc",
        "-cubin",
        "-O3",
        "-arch=sm_90a",
        "-std=c++17",
        "-Xptxas",
        "-v",
        str(path),
        "-o",
        str(cubin),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return Built(case.name, (), (done.stdout + done.stderr)[-600:])
    facts = ptxas_facts(done.stdout + done.stderr)

    def registers(plan: Plan) -> str:
        mine = [facts[launch.kernel] for launch in plan.launches()]
        return "+".join(f"{f['registers']}{'s' if f['spill_store_bytes'] else ''}" for f in mine)

    variants = (
        Variant(s, p.to_json(), str(cubin), registers(p))
        for s, p in zip(schedules, plans, strict=True)
    )
    return Built(case.name, tuple(variants))
