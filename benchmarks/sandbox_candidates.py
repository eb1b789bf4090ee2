"""Candidates for the benchmark of the sandbox: one honest kernel for each target, and ways to make it fault."""

from __future__ import annotations

from collections.abc import Mapping

from sandbox.plan.candidate import Candidate, Origin
from sandbox.plan.check import MAX_SHARED
from sandbox.plan.plan import Buffer, Launch, Plan, Scalar, Target
from sandbox.task.specs import TensorSpec, contiguous_stride
from sandbox.task.task import InputRef, Node, NodeRef, Task

ROWS, COLUMNS = 512, 512

_CPU = """
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
static const long VARIANT = {variant};
extern "C" void kernel(void* const* p) {{
  const float* x = (const float*)p[0]; const float* b = (const float*)p[1]; float* y = (float*)p[2];
  {fault}
  #pragma omp parallel for
  for (long i = 0; i < {rows}L; ++i)
    for (long j = 0; j < {columns}L; ++j) {{
      const float v = x[i * {columns}L + j] + b[j];
      y[i * {columns}L + j] = v / (1.0f + std::exp(-v));
    }}
}}
"""

_CUDA = """
#define VARIANT {variant}
extern "C" __global__ void kernel(const float* x, const float* b, float* y, long n, long columns) {{
  {fault}
  for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x) {{
    const float v = x[i] + b[i % columns];
    y[i] = v / (1.0f + expf(-v));
  }}
}}
"""

FAULTS: Mapping[str, Mapping[str, str]] = {
    "cpu": {
        "crash": "*(volatile int*)0 = 1;",
        "hang": "for (volatile long k = 0; k >= 0;) k = 1;",
        "out of memory": "for (;;) { char* m = (char*)malloc(1 << 26); if (!m) abort(); memset(m, 1, 1 << 26); }",
        "fork bomb": "for (;;) fork();",
        "endless output": 'for (;;) { puts("and on and on and on and on and on and on and on"); fflush(stdout); }',
    },
    "cuda": {
        "illegal access": "y[1l << 40] = 1;",
        "hang": "for (volatile long k = 0; k >= 0;) k = 1;",
        "trap": "__trap();",
        "misaligned": "*(volatile long long*)((char*)y + 1) = 1;",
        # with the dynamic shared memory of its launch, more than a block can have
        "launch failure": "__shared__ volatile float more[64]; more[threadIdx.x % 64] = x[0];",
        "out of memory": "",  # a temporary that fits no GPU
    },
}


def spec(*shape: int) -> TensorSpec:
    """A contiguous float32 tensor."""
    return TensorSpec("float32", shape, contiguous_stride(shape))


def task(target: Target, rows: int = ROWS, columns: int = COLUMNS) -> Task:
    """silu(x + b): x [rows, columns], b [columns]."""
    nodes = (
        Node("aten.add.Tensor", {"self": InputRef(0), "other": InputRef(1)}),
        Node("aten.sigmoid.default", {"self": NodeRef(0)}),
        Node("aten.mul.Tensor", {"self": NodeRef(0), "other": NodeRef(1)}),
    )
    inputs = (spec(rows, columns), spec(columns))
    return Task(target, inputs, nodes, (NodeRef(2),), (spec(rows, columns),))


def candidate(of: Task, fault: str = "", variant: int = 0, origin: Origin = "sketch") -> Candidate:
    """The honest kernel, or one with a fault by its name. variant: makes another source of the same kernel."""
    inputs = [Buffer(f"in{i}", "input", s) for i, s in enumerate(of.inputs)]
    outputs = [Buffer(f"out{i}", "output", s) for i, s in enumerate(of.output_specs)]
    rows, columns = of.inputs[0].shape
    words = {"variant": variant, "fault": FAULTS[of.target].get(fault, "")}
    if of.target == "cpu":
        source = _CPU.format(rows=rows, columns=columns, **words)
        plan = Plan("cpu", (*inputs, *outputs), (Launch("kernel"),))
        return Candidate("cpu", "c++", source, plan, origin, fault or "honest")
    more = [Buffer("much", "temporary", spec(1 << 39))] if fault == "out of memory" else []
    shared = MAX_SHARED if fault == "launch failure" else 0
    sizes = (Scalar("i64", rows * columns), Scalar("i64", columns))
    launch = Launch(
        "kernel", (1024, 1, 1), (256, 1, 1), shared, args=("in0", "in1", "out0", *sizes)
    )
    plan = Plan("cuda", (*inputs, *outputs, *more), (launch,))
    return Candidate("cuda", "cuda", _CUDA.format(**words), plan, origin, fault or "honest")
