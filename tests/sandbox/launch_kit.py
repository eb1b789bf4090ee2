"""Small plans and candidates that the launcher's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sandbox import launcher
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.launcher.program import Program, load_program
from sandbox.plan.candidate import Candidate, Origin
from sandbox.plan.plan import Buffer, Launch, Plan, Scalar
from sandbox.task.specs import TensorSpec, contiguous_stride

ARCH = "sm_90a"

needs_cuda_compiler = pytest.mark.skipif(
    isinstance(find_cuda(), Missing), reason="neither nvcc nor NVRTC on this machine"
)

ADD = """
extern "C" void add(void* const* b) {
  const float* x = (const float*)b[0]; const float* y = (const float*)b[1]; float* o = (float*)b[2];
  #pragma omp parallel for
  for (int i = 0; i < 32; ++i) o[i] = x[i] + y[i];
}
"""

CUDA_ADD = """
extern "C" __global__ void add(const float* x, const float* y, float* o, int n, float scale) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) o[i] = x[i] + scale * y[i];
}
"""


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    """A contiguous tensor."""
    return TensorSpec(dtype, shape, contiguous_stride(shape))


def buffers(inputs: int, shape: tuple[int, ...], outputs: int = 1) -> tuple[Buffer, ...]:
    """Contiguous float32 inputs x0, x1, ... and outputs o0, o1, ..."""
    ins = [Buffer(f"x{i}", "input", spec(*shape)) for i in range(inputs)]
    return (*ins, *(Buffer(f"o{i}", "output", spec(*shape)) for i in range(outputs)))


def cpu(
    source: str = ADD, plan: Plan | None = None, kernel: str = "add", origin: Origin = "sketch"
) -> Candidate:
    """A C++ candidate; by default it adds two tensors of 4 x 8."""
    plan = plan or Plan("cpu", buffers(2, (4, 8)), (Launch(kernel),))
    return Candidate("cpu", "c++", source, plan, origin)


def cuda_plan(kernel: str = "add", **changes: object) -> Plan:
    """A plan that launches `add` on 1000 elements; `changes` go to the launch."""
    args = ("x0", "x1", "o0", Scalar("i32", "n"), Scalar("f32", 2.0))
    fields = {"grid": ("ceildiv(n, 256)", 1, 1), "block": (256, 1, 1), "args": args, **changes}
    step = Launch(kernel, **fields)  # type: ignore[arg-type]
    return Plan("cuda", buffers(2, (1000,)), (step,), {"n": 1000})


def cuda(source: str = CUDA_ADD, plan: Plan | None = None, origin: Origin = "sketch") -> Candidate:
    """A CUDA candidate; by default x + 2 y on 1000 elements."""
    return Candidate("cuda", "cuda", source, plan or cuda_plan(), origin)


def load_on_device(candidate: Candidate, folder: Path, key: int) -> Program:
    """The candidate compiled for this machine's GPU, loaded, and bound to the key."""
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    compiled = compile_candidate(candidate, folder, arch)
    assert isinstance(compiled, Compiled), compiled
    program = load_program(compiled.path, candidate.plan)
    assert isinstance(program, Program), program
    launcher.bind(key, program)
    return program
