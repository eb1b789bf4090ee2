"""Plans with library calls that the launcher's tests share."""

from __future__ import annotations

import math

from launch_kit import spec

from sandbox.plan.candidate import Candidate, Origin
from sandbox.plan.plan import Buffer, Convolution, Gemm, Launch, Plan, View
from sandbox.task.specs import TensorSpec, contiguous_stride

RELU = """
extern "C" void relu(void* const* b) {
  const TYPE* t = (const TYPE*)b[FROM]; TYPE* o = (TYPE*)b[TO];
  for (int i = 0; i < COUNT; ++i) o[i] = t[i] > 0 ? t[i] : 0;
}
"""


def whole(name: str, *shape: int, offset: int = 0) -> View:
    """A contiguous view."""
    return View(name, shape, contiguous_stride(shape), offset)


def gemm_plan(
    call: Gemm | None = None, target: str = "cpu", dtype: str = "float32", **changes: View
) -> Plan:
    """relu(x @ y), x: [6, 5], y: [5, 4], z: [4]; the call writes the temporary t, of 100 elements."""
    fields = {"a": whole("x", 6, 5), "b": whole("y", 5, 4), "out": whole("t", 6, 4), **changes}
    step = call or Gemm(**fields)
    buffers = (
        Buffer("x", "input", spec(6, 5, dtype=dtype)),
        Buffer("y", "input", spec(5, 4, dtype=dtype)),
        Buffer("z", "input", spec(4, dtype=dtype)),
        Buffer("o", "output", spec(6, 4, dtype=dtype)),
        Buffer("t", "temporary", spec(100, dtype=dtype)),
    )
    return Plan(target, buffers, (step, Launch("relu", args=("t", "o"))))  # type: ignore[arg-type]


def relu(plan: Plan, count: int, source: int, to: int, origin: Origin = "sketch") -> Candidate:
    """A candidate for the cpu whose kernel takes what is positive from one buffer to another, by numbers."""
    kind = "double" if plan.buffers[0].spec.dtype == "float64" else "float"
    text = RELU.replace("TYPE", kind).replace("COUNT", str(count))
    text = text.replace("FROM", str(source)).replace("TO", str(to))
    return Candidate("cpu", "c++", text, plan, origin)


def convolution_plan(
    call: Convolution,
    shapes: dict[str, tuple[int, ...]],
    target: str = "cpu",
    dtype: str = "float64",
) -> Plan:
    """Convolves relu(x): a kernel before the call, whose result is the plan's own."""
    buffers = [Buffer(n, "input", spec(*s, dtype=dtype)) for n, s in shapes.items()]
    out = TensorSpec(dtype, call.out.shape, call.out.stride)
    count = math.prod(shapes["x"])
    buffers += [Buffer("o", "output", out), Buffer("t", "temporary", spec(count, dtype=dtype))]
    return Plan(target, tuple(buffers), (Launch("relu", args=("x", "t")), call))  # type: ignore[arg-type]
