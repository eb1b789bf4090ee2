"""What one spliced call costs above Inductor's own: the same compiled wrapper, a kernel that does next to nothing."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from sandbox import launcher
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.launcher import LoadFailed, Program
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Buffer, Launch, Plan
from sandbox.task.specs import TensorSpec

KEY = 1
ELEMENTS = 64
SOURCES = {
    "cpu": """
extern "C" void relu(void* const* b) {
  const float* x = (const float*)b[0]; float* o = (float*)b[1];
  for (int i = 0; i < 64; ++i) o[i] = x[i] > 0 ? x[i] : 0;
}
""",
    "cuda": """
extern "C" __global__ void relu(const float* x, float* o) { o[threadIdx.x] = fmaxf(x[threadIdx.x], 0); }
""",
}


def candidate(target: str) -> Candidate:
    """ReLU of 64 elements."""
    spec = TensorSpec("float32", (ELEMENTS,), (1,))
    buffers = (Buffer("x", "input", spec), Buffer("o", "output", spec))
    if target == "cpu":
        plan = Plan("cpu", buffers, (Launch("relu"),))
        return Candidate("cpu", "c++", SOURCES["cpu"], plan, "sketch")
    step = Launch("relu", grid=(1, 1, 1), block=(ELEMENTS, 1, 1), args=("x", "o"))
    return Candidate("cuda", "cuda", SOURCES["cuda"], Plan("cuda", buffers, (step,)), "sketch")


def measure(
    target: str, arch: str, native_dir: Path, *, blocks: int = 200, calls: int = 500
) -> dict[str, Any]:
    """Median microseconds of one call, over interleaved blocks of calls. Raises RuntimeError on a failed build.

    On cuda a call is its launch: the device is waited for between blocks only.
    """
    native = launcher.ensure_native(native_dir)
    with tempfile.TemporaryDirectory() as folder:
        program = _program(candidate(target), Path(folder), arch)
        launcher.bind(KEY, program)
        try:
            x = torch.randn(ELEMENTS, device=target)
            graphs = {"spliced": _spliced(x), "inductor": _plain(x)}
            contestants = {name: _compiled(graph, x) for name, graph in graphs.items()}
            for call in contestants.values():
                torch.testing.assert_close(call(x), torch.relu(x))
            samples = _blocks(contestants, x, blocks, calls)
        finally:
            launcher.unbind(KEY)
    median = {name: statistics.median(values) for name, values in samples.items()}
    return {
        "native_operators": isinstance(native, launcher.Native),
        "spliced_us": median["spliced"],
        "inductor_us": median["inductor"],
        "overhead_us": statistics.median(
            a - b for a, b in zip(samples["spliced"], samples["inductor"], strict=True)
        ),
        "samples_us": samples,
    }


def _program(made: Candidate, folder: Path, arch: str) -> Program:
    compiled = compile_candidate(made, folder, arch)
    if not isinstance(compiled, Compiled):
        raise RuntimeError(f"the kernel does not compile: {compiled}")
    program = launcher.load_program(compiled.path, made.plan)
    if isinstance(program, LoadFailed):
        raise RuntimeError(program.reason)
    return program


def _spliced(x: Tensor) -> fx.GraphModule:
    launcher.define_ops()
    graph = fx.Graph()
    given = graph.placeholder("x")
    call = graph.call_function(launcher.op_for(1, 1), (KEY, given))
    call.meta["eager_input_vals"] = ((KEY, x), {})
    graph.output((call,))
    return fx.GraphModule({}, graph)


def _plain(x: Tensor) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output((graph.call_function(torch.ops.aten.relu.default, (graph.placeholder("x"),)),))
    return fx.GraphModule({}, graph)


def _compiled(graph: fx.GraphModule, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Inductor's code for a graph, called as directly as it can be."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._subclasses import FakeTensorMode

    mode = FakeTensorMode()
    fake = mode.from_tensor(x)
    for node in graph.graph.nodes:
        if node.op != "output":
            node.meta["val"] = fake if node.op == "placeholder" else torch.empty_like(fake)
    with torch._inductor.config.patch(force_disable_caches=True):
        code: Any = compile_fx_inner(graph, [fake], is_inference=True)
    run = code.current_callable
    return lambda given: run([given])[0]


def _blocks(
    contestants: dict[str, Callable[[Tensor], Tensor]], x: Tensor, blocks: int, calls: int
) -> dict[str, list[float]]:
    order = list(contestants)
    samples: dict[str, list[float]] = {name: [] for name in order}
    shuffle = random.Random(0).shuffle
    for _ in range(blocks):
        shuffle(order)
        for name in order:
            call = contestants[name]
            if x.is_cuda:
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                call(x)
            samples[name].append((time.perf_counter() - begin) / calls * 1e6)
    return samples
