"""Launching cubins on a real device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from launch_kit import CUDA_ADD, buffers, cuda, cuda_plan, load_on_device

from sandbox import _launcher, launcher
from sandbox.compile.toolchain import Missing
from sandbox.launcher import ops
from sandbox.launcher.program import Program
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Buffer, Launch, Plan, Scalar, TensorMap
from sandbox.task.specs import TensorSpec

KEY = 4711
pytestmark = [pytest.mark.gpu, pytest.mark.alone]


@pytest.fixture(autouse=True)
def native(native_dir: Path) -> Iterator[None]:
    found = launcher.ensure_native(native_dir)
    assert not isinstance(found, Missing), found.log
    yield
    launcher.unbind(KEY)


def load(candidate: Candidate, folder: Path) -> Program:
    return load_on_device(candidate, folder, KEY)


def pair(device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(1000, device=device), torch.randn(1000, device=device)


def test_a_kernel_runs_through_both_implementations(tmp_path: Path) -> None:
    load(cuda(), tmp_path)
    x, y = pair()
    torch.testing.assert_close(launcher.op_for(2, 1)(KEY, x, y), x + 2 * y)
    torch.testing.assert_close(ops.run(KEY, x, y), x + 2 * y)


def test_the_driver_and_the_assembler_agree_on_registers(tmp_path: Path) -> None:
    assert load(cuda(), tmp_path).facts()["add"]["registers"] > 0


def test_it_runs_on_the_current_stream(tmp_path: Path) -> None:
    load(cuda(), tmp_path)
    x, y = pair()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.mul_(3)
        result = launcher.op_for(2, 1)(KEY, x, y)
    stream.synchronize()
    torch.testing.assert_close(result, x + 2 * y)


def test_a_misaligned_input_is_copied(tmp_path: Path) -> None:
    source = CUDA_ADD.replace(
        "{\n", '{\n  if ((unsigned long long)x % 16) asm volatile("trap;");\n', 1
    )
    load(cuda(source), tmp_path)
    x, y = torch.randn(1001, device="cuda")[1:], torch.randn(1000, device="cuda")
    assert x.data_ptr() % 16
    torch.testing.assert_close(launcher.op_for(2, 1)(KEY, x, y), x + 2 * y)
    torch.testing.assert_close(ops.run(KEY, x, y), x + 2 * y)


def test_a_replayed_graph_sees_new_values(tmp_path: Path) -> None:
    load(cuda(), tmp_path)
    x, y = pair()
    launcher.op_for(2, 1)(KEY, x, y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = launcher.op_for(2, 1)(KEY, x, y)
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(result, x + 2 * y)


def test_large_shared_memory_temporaries_and_several_steps(tmp_path: Path) -> None:
    source = """
    extern "C" __global__ void first(const float* x, float* t, int n) {
      extern __shared__ float s[];
      for (int i = threadIdx.x; i < n; i += blockDim.x) s[20000 - n + i] = x[i];
      __syncthreads();
      for (int i = threadIdx.x; i < n; i += blockDim.x) t[i] = s[20000 - 1 - i];
    }
    extern "C" __global__ void second(const float* t, float* o, long long n, float scale) {
      const int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) o[i] = scale * t[i];
    }"""
    n = Scalar("i32", "n")
    plan = Plan(
        "cuda",
        (*buffers(1, (1000,)), Buffer("t", "temporary", TensorSpec("float32", (1000,), (1,)))),
        (
            Launch("first", block=(256, 1, 1), shared=80000, args=("x0", "t", n)),
            Launch(
                "second",
                ("ceildiv(n, 128)", 1, 1),
                (128, 1, 1),
                args=("t", "o0", Scalar("i64", "n"), Scalar("f32", 0.5)),
            ),
        ),
        {"n": 1000},
    )
    load(cuda(source, plan), tmp_path)
    x, _ = pair()
    torch.testing.assert_close(launcher.op_for(1, 1)(KEY, x), x.flip(0) / 2)


def boxes(offset: int) -> Candidate:
    """Copies a tensor of which the buffer holds 50 lines of 40 numbers, box by box, with zeros beyond its end."""
    source = """
    struct alignas(64) tensor_map { unsigned long long words[16]; };
    extern "C" __global__ void copy(const __grid_constant__ tensor_map x, float* o) {
      __shared__ alignas(1024) float box[8][32];
      __shared__ unsigned long long barrier;
      const unsigned to = __cvta_generic_to_shared(box), at = __cvta_generic_to_shared(&barrier);
      if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(at) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%3, %4}], [%2];"
                     :: "r"(to), "l"(&x), "r"(at), "r"(int(blockIdx.x) * 32), "r"(int(blockIdx.y) * 8) : "memory");
      }
      __syncthreads();
      asm volatile("{ .reg .pred open; again: mbarrier.try_wait.parity.shared::cta.b64 open, [%0], 0; "
                   "@!open bra again; }" :: "r"(at) : "memory");
      for (int i = threadIdx.x; i < 256; i += blockDim.x) {
        const int line = i / 32, number = i % 32;
        o[(blockIdx.y * 8 + line) * 64 + blockIdx.x * 32 + number] = box[line][(number / 4 ^ line) * 4 + number % 4];
      }
    }"""
    x, o = TensorSpec("float32", (60, 48), (48, 1)), TensorSpec("float32", (56, 64), (64, 1))
    described = TensorMap("x", (40, 50), (48,), (32, 8), offset)
    launch = Launch("copy", (2, 7, 1), (64, 1, 1), args=(described, "o"))
    return cuda(
        source, Plan("cuda", (Buffer("x", "input", x), Buffer("o", "output", o)), (launch,))
    )


@pytest.mark.parametrize("offset", [0, 4, 96])
def test_the_copy_engine_reads_what_a_tensor_map_describes(tmp_path: Path, offset: int) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("tensor maps need compute capability 9.0")
    load(boxes(offset), tmp_path)
    for _ in range(3):  # at another address each time
        x = torch.randn(60, 48, device="cuda")
        want = torch.zeros(56, 64, device="cuda")
        want[:50, :40] = x.flatten()[offset:].as_strided((50, 40), (48, 1))
        torch.testing.assert_close(launcher.op_for(1, 1)(KEY, x), want)


def chain(length: int, size: int) -> Candidate:
    """Kernels that add 1 each, slowly, every one to what the one before it wrote."""
    source = """
    extern "C" __global__ void add(const float* x, float* o, int n) {
      asm volatile("griddepcontrol.wait;\\n griddepcontrol.launch_dependents;" ::: "memory");
      const int i = blockIdx.x * blockDim.x + threadIdx.x;
      const long long start = clock64();
      while (clock64() - start < 20000) {}
      if (i < n) o[i] = x[n - 1 - i] + 1;
    }"""
    line = TensorSpec("float32", (size,), (1,))
    names = ["x", *(f"t{i}" for i in range(length - 1)), "o"]
    temporaries = tuple(Buffer(name, "temporary", line) for name in names[1:-1])
    steps = tuple(
        Launch("add", ("ceildiv(n, 256)", 1, 1), (256, 1, 1), args=(a, b, Scalar("i32", "n")))
        for a, b in itertools.pairwise(names)
    )
    steps = (steps[0], *(replace(step, dependent=True) for step in steps[1:]))
    ends = (Buffer("x", "input", line), Buffer("o", "output", line))
    return cuda(source, Plan("cuda", (*ends, *temporaries), steps, {"n": size}))


@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_dependent_launches_see_what_was_written_before(tmp_path: Path, size: int) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("dependent launches need compute capability 9.0")
    load(chain(6, size), tmp_path)
    check_calls_and_replays(torch.randn(size, device="cuda"), lambda x: x + 6)


def check_calls_and_replays(x: torch.Tensor, want: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Calls, one behind another, and replays from a CUDA graph give what is wanted of what ``x`` holds then."""
    operator = launcher.op_for(1, 1)
    for _ in range(20):
        torch.testing.assert_close(operator(KEY, x), want(x))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = operator(KEY, x)
    for _ in range(20):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(result, want(x))


def meeting(blocks: int) -> Candidate:
    """Blocks that wait until each has added 1 to a counter, which a launch before sets to zero; one behind adds 1."""
    source = """
    extern "C" __global__ void clear(int* met) {
      asm volatile("griddepcontrol.wait;" ::: "memory");
      *met = 0;
    }
    extern "C" __global__ void meet(const float* x, float* o, int* met) {
      asm volatile("griddepcontrol.wait;" ::: "memory");
      extern __shared__ float shared[];
      shared[0] = x[0];
      __threadfence();
      atomicAdd(met, 1);
      while (*(volatile int*)met < int(gridDim.x)) {}
      asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
      o[blockIdx.x] = shared[0] + gridDim.x;
    }
    extern "C" __global__ void more(float* o) {
      asm volatile("griddepcontrol.wait;" ::: "memory");
      o[blockIdx.x] += 1;
    }"""
    x, o = TensorSpec("float32", (1,), (1,)), TensorSpec("float32", (blocks,), (1,))
    counter = Buffer("met", "temporary", TensorSpec("int32", (1,), (1,)))
    together = Launch(
        "meet", (blocks, 1, 1), shared=100 << 10, args=("x", "o", "met"), cooperative=True
    )
    given = (Buffer("x", "input", x), Buffer("o", "output", o), counter)
    behind = Launch("more", (blocks, 1, 1), args=("o",), dependent=True)
    return cuda(source, Plan("cuda", given, (Launch("clear", args=("met",)), together, behind)))


def processors() -> int:
    return torch.cuda.get_device_properties().multi_processor_count


@pytest.mark.parametrize("dependent", [False, True])
def test_blocks_of_a_cooperative_launch_wait_for_each_other(
    tmp_path: Path, dependent: bool
) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("dependent launches need compute capability 9.0")
    made = meeting(2 * processors())
    first, together, behind = made.plan.steps
    assert isinstance(together, Launch)
    steps = (first, replace(together, dependent=dependent), behind)
    load(replace(made, plan=replace(made.plan, steps=steps)), tmp_path)
    blocks = 2 * processors()
    check_calls_and_replays(
        torch.randn(1, device="cuda"), lambda x: (x + blocks + 1.0).expand(blocks)
    )


def test_a_cooperative_launch_that_does_not_fit_the_device_is_refused(tmp_path: Path) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the kernel needs compute capability 9.0")
    load(meeting(3 * processors()), tmp_path)
    with pytest.raises(RuntimeError, match="kernel meet: CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"):
        launcher.op_for(1, 1)(KEY, torch.ones(1, device="cuda"))


@pytest.mark.parametrize("cluster", [2, 16])
def test_clusters_of_portable_and_larger_size(tmp_path: Path, cluster: int) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("clusters need compute capability 9.0")
    source = """
    extern "C" __global__ void add(const float* x, float* o) {
      unsigned size; asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
      if (blockIdx.x == 0 && threadIdx.x == 0) o[0] = x[0] * 0 + size;
    }"""
    one = TensorSpec("float32", (1,), (1,))
    plan = Plan(
        "cuda",
        (Buffer("x", "input", one), Buffer("o", "output", one)),
        (Launch("add", grid=(16, 1, 1), args=("x", "o"), cluster=(cluster, 1, 1)),),
    )
    load(cuda(source, plan), tmp_path)
    assert launcher.op_for(1, 1)(KEY, torch.ones(1, device="cuda")).item() == cluster


def test_a_launch_that_cuda_refuses_names_the_kernel_and_the_error(tmp_path: Path) -> None:
    source = CUDA_ADD.replace("__global__ void", "__global__ void __launch_bounds__(64)")
    load(cuda(source), tmp_path)
    for call in (launcher.op_for(2, 1), ops.run):
        with pytest.raises(RuntimeError, match=r"add.*CUDA_ERROR_INVALID_VALUE"):
            call(KEY, *pair())


def test_inputs_on_another_device_are_errors(tmp_path: Path) -> None:
    load(cuda(), tmp_path)
    x, y = pair()
    for wrong in ((x.cpu(), y.cpu()), (x, y.cpu())):
        with pytest.raises(RuntimeError):
            launcher.op_for(2, 1)(KEY, *wrong)


@pytest.mark.multi_gpu
def test_it_runs_where_its_inputs_are(tmp_path: Path) -> None:
    load(cuda(), tmp_path)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        x, y = pair(device)
        result = launcher.op_for(2, 1)(KEY, x, y)
        assert str(result.device) == device
        torch.testing.assert_close(result, x + 2 * y)
    assert torch.cuda.current_device() == 0


def test_the_driver_is_found() -> None:
    assert _launcher.why_no_cuda() == ""
    assert cuda_plan().launches()
