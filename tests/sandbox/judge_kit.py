"""Tasks and hand-written candidates for tests: good ones, wrong ones and hostile ones."""

from __future__ import annotations

from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Buffer, Launch, Plan
from sandbox.task.specs import TensorSpec, contiguous_stride
from sandbox.task.task import InputRef, Node, NodeRef, Task


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    """A contiguous tensor."""
    return TensorSpec(dtype, shape, contiguous_stride(shape))


def silu_bias(rows: int = 256, columns: int = 512) -> Task:
    """silu(x + b): x [rows, columns], b [columns]."""
    return Task(
        target="cpu",
        inputs=(spec(rows, columns), spec(columns)),
        nodes=(
            Node("aten.add.Tensor", {"self": InputRef(0), "other": InputRef(1)}),
            Node("aten.sigmoid.default", {"self": NodeRef(0)}),
            Node("aten.mul.Tensor", {"self": NodeRef(0), "other": NodeRef(1)}),
        ),
        outputs=(NodeRef(2),),
        output_specs=(spec(rows, columns),),
    )


def row_mean_and_argmax(rows: int = 64, columns: int = 300) -> Task:
    """Mean and position of the maximum of each row."""
    return Task(
        target="cpu",
        inputs=(spec(rows, columns),),
        nodes=(
            Node("aten.mean.dim", {"self": InputRef(0), "dim": (1,)}),
            Node("aten.argmax.default", {"self": InputRef(0), "dim": 1}),
        ),
        outputs=(NodeRef(0), NodeRef(1)),
        output_specs=(spec(rows), spec(rows, dtype="int64")),
    )


def candidate(task: Task, source: str, label: str = "", temporary: int = 0) -> Candidate:
    """A candidate for the task whose entry is `kernel`."""
    inputs = [Buffer(f"in{i}", "input", s) for i, s in enumerate(task.inputs)]
    outputs = [Buffer(f"out{i}", "output", s) for i, s in enumerate(task.output_specs)]
    extra = [Buffer("temporary", "temporary", spec(temporary))] if temporary else []
    plan = Plan("cpu", (*inputs, *outputs, *extra), (Launch("kernel"),))
    return Candidate("cpu", "c++", source, plan, "sketch", label)


SILU_BIAS = """
#include <cmath>
extern "C" void kernel(void* const* p) {
  const float* x = (const float*)p[0]; const float* b = (const float*)p[1]; float* y = (float*)p[2];
  #pragma omp parallel for
  for (long i = 0; i < ROWS; ++i)
    for (long j = 0; j < COLUMNS; ++j) {
      const float v = x[i * COLUMNS + j] + b[j];
      y[i * COLUMNS + j] = v / (1.0f + std::exp(-v));
    }
}
"""

ROW_MEAN_AND_ARGMAX = """
extern "C" void kernel(void* const* p) {
  const float* x = (const float*)p[0]; float* mean = (float*)p[1]; long* where = (long*)p[2];
  for (long i = 0; i < ROWS; ++i) {
    double sum = 0; long best = 0;
    for (long j = 0; j < COLUMNS; ++j) {
      const float v = x[i * COLUMNS + j], b = x[i * COLUMNS + best];
      sum += v;
      if (v > b || (v != v && b == b)) best = j;
    }
    mean[i] = float(sum / COLUMNS);
    where[i] = best;
  }
}
"""


def sized(source: str, task: Task) -> str:
    """The source for the task's rows and columns."""
    rows, columns = task.inputs[0].shape
    return f"#define ROWS {rows}L\n#define COLUMNS {columns}L\n{source}"


def silu_candidate(task: Task, **replacements: str) -> Candidate:
    """The good kernel, or one spoilt by replacing text (names are labels: old=new pairs in values)."""
    source = SILU_BIAS
    for change in replacements.values():
        old, new = change.split(" => ")
        assert old in source
        source = source.replace(old, new)
    return candidate(task, sized(source, task), label=",".join(replacements) or "good")
