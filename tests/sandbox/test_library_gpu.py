"""Library calls of a plan on a device: cuBLAS and cuDNN beside kernels, through both operators and in graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from launch_kit import load_on_device, spec
from library_kit import gemm_plan, whole

from sandbox import launcher
from sandbox.compile.toolchain import Missing
from sandbox.launcher import ops
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Buffer, Convolution, Launch, Plan, View
from sandbox.sanitizer.tool import TOOLS, sanitize
from sandbox.task.specs import TensorSpec

KEY = 4712
RELU = """
extern "C" __global__ void relu(const float* t, float* o) {
  for (int i = threadIdx.x; i < COUNT; i += blockDim.x) o[i] = t[i] > 0 ? t[i] : 0;
}
"""
CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "line": ((2, 8, 33), (16, 8, 3), {"stride": (2,), "padding": (1,), "dilation": (1,)}),
    "plane": ((2, 8, 17, 12), (16, 4, 3, 3), {"stride": (1, 2), "padding": (1, 1), "groups": 2}),
    "space": ((2, 4, 6, 7, 8), (8, 4, 3, 3, 3), {"padding": (1, 1, 1)}),
    "transposed": ((2, 8, 9, 7), (8, 16, 3, 3),
                   {"stride": (2, 2), "padding": (1, 1), "output_padding": (1, 1), "transposed": True}),
}  # fmt: skip
pytestmark = [pytest.mark.gpu, pytest.mark.alone]


@pytest.fixture(autouse=True)
def native(native_dir: Path) -> Iterator[None]:
    found = launcher.ensure_native(native_dir)
    assert not isinstance(found, Missing), found.log
    yield
    launcher.unbind(KEY)


def load(plan: Plan, count: int, folder: Path) -> Path:
    """Compile the kernel for so many elements, load and bind it; where the cubin is."""
    launches = [replace(s, block=(128, 1, 1)) if isinstance(s, Launch) else s for s in plan.steps]
    plan = replace(plan, steps=tuple(launches))
    candidate = Candidate("cuda", "cuda", RELU.replace("COUNT", str(count)), plan, "sketch")
    return load_on_device(candidate, folder, KEY).path


def inputs(plan: Plan) -> list[torch.Tensor]:
    return [torch.randn(s.shape, device="cuda") for s in plan.input_specs]


def convolution(name: str, last: bool, benchmark: bool = False) -> tuple[Plan, dict[str, Any]]:
    """A plan that convolves relu(x), and what torch's own convolution takes."""
    x, weight, given = CONVOLUTIONS[name]
    n = len(x) - 2
    fields: dict[str, Any] = {"stride": (1,) * n, "padding": (0,) * n, "dilation": (1,) * n, "groups": 1,
                              "transposed": False, "output_padding": (0,) * n, **given}  # fmt: skip
    order = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    made = torch.convolution(torch.empty(x), torch.empty(weight), None, *(fields[k] for k in order))
    shape = tuple(made.shape)
    rows = torch.empty((shape[0], *shape[2:], shape[1])).movedim(-1, 1)
    stride = (rows if last else torch.empty(shape)).stride()
    call = Convolution(whole("t", *x), whole("w", *weight), View("o", shape, stride),
                       whole("b", shape[1]), **fields, benchmark=benchmark)  # fmt: skip
    buffers = (
        Buffer("x", "input", spec(*x)),
        Buffer("w", "input", spec(*weight)),
        Buffer("b", "input", spec(shape[1])),
        Buffer("o", "output", TensorSpec("float32", shape, stride)),
        Buffer("t", "temporary", spec(torch.empty(x).numel())),
    )
    plan = Plan("cuda", buffers, (Launch("relu", args=("x", "t")), call))
    return plan, {key: fields[key] for key in order}


@pytest.mark.parametrize("summand", [False, True])
def test_a_product_and_a_kernel_through_both_operators(tmp_path: Path, summand: bool) -> None:
    plan = gemm_plan(target="cuda", **({"c": whole("z", 4)} if summand else {}))
    load(plan, 24, tmp_path)
    x, y, z = inputs(plan)
    want = (x.double() @ y.double() + (z if summand else 0)).relu().float()
    torch.testing.assert_close(launcher.op_for(3, 1)(KEY, x, y, z), want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ops.run(KEY, x, y, z), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", list(CONVOLUTIONS))
def test_a_kernel_and_a_convolution_through_both_operators(
    tmp_path: Path, exact_cudnn: None, name: str, last: bool, measured: bool
) -> None:
    plan, fields = convolution(name, last, measured)
    load(plan, plan.buffers[-1].spec.numel, tmp_path)
    given = inputs(plan)
    x, w, b = (t.double() for t in given)
    want = torch.convolution(x.relu(), w, b, *fields.values()).float()
    for got in (launcher.op_for(3, 1)(KEY, *given), ops.run(KEY, *given)):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert got.stride() == plan.output_specs[0].stride


@pytest.mark.parametrize("name", ["gemm", "plane", "transposed"])
def test_a_replayed_graph_with_a_call_sees_new_values(
    tmp_path: Path, exact_cudnn: None, name: str
) -> None:
    plan = gemm_plan(target="cuda") if name == "gemm" else convolution(name, True)[0]
    load(plan, 24 if name == "gemm" else plan.buffers[-1].spec.numel, tmp_path)
    given = inputs(plan)
    operator = launcher.op_for(3, 1)
    operator(KEY, *given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = operator(KEY, *given)
    for tensor_ in given:
        tensor_.normal_()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(result, operator(KEY, *given), rtol=1e-4, atol=1e-4)


def test_a_call_runs_on_the_current_stream(tmp_path: Path) -> None:
    plan = gemm_plan(target="cuda")
    load(plan, 24, tmp_path)
    x, y, z = inputs(plan)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for call in (launcher.op_for(3, 1), ops.run):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            x.mul_(3)
            result = call(KEY, x, y, z)
        stream.synchronize()
        torch.testing.assert_close(result, (x @ y).relu(), rtol=1e-4, atol=1e-4)


@pytest.mark.multi_gpu
def test_a_call_runs_where_its_inputs_are(tmp_path: Path) -> None:
    plan = gemm_plan(target="cuda")
    load(plan, 24, tmp_path)
    for device in ("cuda:1", "cuda:0"):
        x, y, z = (t.to(device) for t in inputs(plan))
        for call in (launcher.op_for(3, 1), ops.run):
            result = call(KEY, x, y, z)
            assert str(result.device) == device
            torch.testing.assert_close(result, (x @ y).relu(), rtol=1e-4, atol=1e-4)
    assert torch.cuda.current_device() == 0


def test_kernels_around_a_call_are_clean_under_the_sanitizer(tmp_path: Path) -> None:
    plan = gemm_plan(target="cuda")
    path = load(plan, 24, tmp_path)
    kernels = replace(plan.steps[1], block=(128, 1, 1))  # type: ignore[type-var]
    plan = replace(plan, steps=(plan.steps[0], kernels))
    reports = sanitize(path, plan, lambda: [t.cpu() for t in inputs(plan)])
    assert [r.tool for r in reports] == list(TOOLS)
    assert all(r.status in ("clean", "not run") for r in reports), reports
