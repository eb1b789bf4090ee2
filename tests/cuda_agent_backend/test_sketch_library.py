"""Products and convolutions by libraries between kernels: what is run on the cpu is what eager computes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, on_cuda, randn
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen import api, loop_nests
from cuda_agent_backend.codegen.cuda.library.writer import SKETCH
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from cuda_agent_backend.codegen.registry import LIBRARY
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Convolution, Gemm, Launch
from sandbox.task.specs import TensorSpec
from sandbox.task.task import InputRef, Node, NodeRef, Task

Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
SQUARE = randn(2, 16, 8, 9)
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], list[type]]] = {
    "a linear layer, an activation": (
        lambda x, w, b: F.gelu(F.linear(x, w, b)), (randn(4, 20, 32), randn(48, 32), randn(48)), [Gemm, Launch],
    ),
    "an operand by a kernel, rows behind": (
        lambda x, w: torch.softmax(x.tanh() @ w, -1), (randn(40, 32), randn(32, 48)), [Launch, Gemm, Launch],
    ),
    "two after one another": (
        lambda x, w, v: F.gelu(x @ w) @ v, (randn(40, 32), randn(32, 48), randn(48, 20)), [Gemm, Launch, Gemm],
    ),
    "two side by side": (
        lambda x, w, v: F.silu(x @ w) * (x @ v), (randn(40, 32), randn(32, 48), randn(32, 48)), [Gemm, Gemm, Launch],
    ),
    "batches, an operand turned": (
        lambda x, y: torch.bmm(x, y.transpose(1, 2)).sigmoid(), (randn(3, 20, 32), randn(3, 24, 32)), [Gemm, Launch],
    ),
    "part of an operand, what is added": (
        lambda x, w, y: torch.addmm(y, x[:, 4:36], w).relu(), (randn(20, 40), randn(32, 24), randn(20, 24)),
        [Gemm, Launch],
    ),
    "a convolution, a bias": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, stride=2, padding=1)), (SQUARE, randn(24, 16, 3, 3), randn(24)),
        [Convolution, Launch],
    ),
    "an image by a kernel, a residual": (
        lambda x, w: F.conv2d(x.tanh(), w, padding=1) + x, (SQUARE, randn(16, 16, 3, 3)), [Launch, Convolution, Launch],
    ),
    "the convolution is a result too": (
        lambda x, w: (lambda y: (y, y.relu()))(F.conv2d(x, w)), (SQUARE, randn(16, 16, 3, 3)), [Convolution, Launch],
    ),
    "channels last": (
        lambda x, w: F.conv2d(x, w, padding=1).relu(),
        (SQUARE.to(memory_format=torch.channels_last), randn(16, 16, 3, 3)), [Convolution, Launch],
    ),
    "a line, nothing behind": (
        lambda x, w: F.conv1d(x.relu(), w), (randn(4, 32, 40), randn(32, 32, 3)), [Launch, Convolution],
    ),
    "space, in groups": (
        lambda x, w: F.conv3d(x, w, groups=2).tanh(), (randn(2, 8, 4, 5, 6), randn(16, 4, 2, 3, 3)),
        [Convolution, Launch],
    ),
    "transposed, a sum of channels": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1).sum(1), (SQUARE, randn(16, 24, 3, 3)),
        [Convolution, Launch],
    ),
    "a shape that takes a copy": (
        lambda x, w: (x.transpose(1, 2).reshape(20, 48) @ w).relu(), (randn(4, 48, 5), randn(48, 32)),
        [Launch, Gemm, Launch],
    ),
    "a convolution's result in another shape": (
        lambda x, w, v: (F.conv2d(x, w).relu().reshape(2, 16, 42) @ v).relu(),
        (SQUARE, randn(16, 16, 3, 3), randn(42, 32)), [Convolution, Launch, Gemm, Launch],
    ),
    "bfloat16, a row that is added": (
        lambda x, w, b: torch.addmm(b, x, w).relu(),
        (randn(20, 32).bfloat16(), randn(32, 24).bfloat16(), randn(24).bfloat16()), [Gemm, Launch],
    ),
}  # fmt: skip


def case(name: str) -> Sample:
    function, inputs, _ = CASES[name]
    return on_cuda(function, *inputs)


def called(it: Sample) -> list[Schedule]:
    return [s for s in it.analysis.schedules(DeviceFacts()) if LIBRARY.owns(s)]


def made(it: Sample, schedule: Schedule) -> Candidate:
    found = api.generate(it.analysis, schedule, DeviceFacts())
    assert isinstance(found, Candidate), found
    return found


@pytest.mark.parametrize("name", list(CASES))
def test_what_is_run_is_what_eager_computes(tmp_path: Path, name: str) -> None:
    it = case(name)
    schedules = called(it)
    assert 1 <= len(schedules) <= 4
    for schedule in schedules:
        candidate = made(it, schedule)
        assert [type(step) for step in candidate.plan.steps] == CASES[name][2]
        found = cuda_emulator.run(candidate.source, candidate.plan, it.inputs, tmp_path)
        close = (
            {"rtol": 2e-2, "atol": 2e-2}
            if it.want[0].itemsize < 4
            else {"rtol": 1e-4, "atol": 1e-4}
        )
        for got, want, spec in zip(found, it.want, it.task.output_specs, strict=True):
            torch.testing.assert_close(got, want, **close)
            assert got.stride() == spec.stride


def test_orders_of_channels_and_ways_to_choose_an_algorithm_are_tried() -> None:
    own = [s.parameters(0) for s in called(case("a convolution, a bias"))]
    assert [(p["last"], p["benchmark"]) for p in own] == [(0, 1), (1, 1), (0, 0), (1, 0)]
    own = [s.parameters(0) for s in called(case("channels last"))]
    assert [p["last"] for p in own] == [1, 0, 1, 0]  # eager's order first


def test_the_call_has_what_the_schedule_says() -> None:
    it = case("an image by a kernel, a residual")
    for schedule in called(it):
        own = schedule.parameters(0)
        (call,) = made(it, schedule).plan.calls
        assert isinstance(call, Convolution)
        assert call.benchmark == bool(own["benchmark"])
        for view in (call.x, call.out):
            assert (view.stride[1] == 1) == bool(own["last"])


@pytest.mark.parametrize(
    "name",
    ["a line, nothing behind", "the convolution is a result too", "transposed, a sum of channels"],
)
def test_an_order_that_is_given_is_not_varied(name: str) -> None:
    """Where the convolution's own result is an output, or where cuDNN would have to copy it."""
    assert {s.parameters(0)["last"] for s in called(case(name))} == {0}


@pytest.mark.parametrize("turned", [False, True])
def test_a_reshape_is_a_view_where_memory_allows_it(tmp_path: Path, turned: bool) -> None:
    """Elsewhere it is a copy, which a kernel makes before the call."""
    x, w = randn(20, 48), randn(48, 32)
    x = torch.empty_strided((4, 5, 48), (240, 1, 5) if turned else (240, 48, 1)).copy_(
        x.view(4, 5, 48)
    )
    task = Task(
        "cuda",
        tuple(TensorSpec("float32", tuple(t.shape), t.stride()) for t in (x, w)),
        (
            Node("aten.reshape.default", {"self": InputRef(0), "shape": (20, 48)}),
            Node("aten.mm.default", {"self": NodeRef(0), "mat2": InputRef(1)}),
            Node("aten.relu.default", {"self": NodeRef(1)}),
        ),
        (NodeRef(2),),
        (TensorSpec("float32", (20, 32), (32, 1)),),
    )
    it = Sample(task, (x, w), ((x.reshape(20, 48) @ w).relu(),))
    candidate = made(it, called(it)[0])
    assert [type(s) for s in candidate.plan.steps] == [*([Launch] if turned else []), Gemm, Launch]
    found = cuda_emulator.run(candidate.source, candidate.plan, it.inputs, tmp_path)
    torch.testing.assert_close(found[0], it.want[0], rtol=1e-4, atol=1e-4)


def test_kernels_alone_come_first_and_a_search_soon_meets_a_call() -> None:
    kinds = [
        LIBRARY.owns(s) for s in case("a convolution, a bias").analysis.schedules(DeviceFacts())
    ]
    assert kinds[: loop_nests.OWN] == [False] * loop_nests.OWN
    assert kinds[loop_nests.OWN : loop_nests.OWN + loop_nests.CALLED] == [True] * loop_nests.CALLED
    assert kinds[-2:] == [True, True]


NONE: dict[str, Case] = {
    "a product alone": (lambda x, w: x @ w, (randn(40, 32), randn(32, 48))),
    "a convolution alone": (lambda x, w: F.conv2d(x, w), (SQUARE, randn(16, 16, 3, 3))),
    "no product": (lambda x: x.relu().sum(-1), (randn(40, 32),)),
    "an operand without inputs": (lambda w: (torch.zeros(20, 32) @ w).relu(), (randn(32, 48),)),
    "few terms": (lambda x, w: (x @ w).relu(), (randn(40, 8), randn(8, 48))),
    "channels by themselves": (lambda x, w: F.conv2d(x, w, groups=16).relu(), (SQUARE, randn(16, 1, 3, 3))),
}  # fmt: skip


@pytest.mark.parametrize("name", list(NONE))
def test_where_a_library_wins_nothing_it_is_not_called(name: str) -> None:
    function, inputs = NONE[name]
    assert called(on_cuda(function, *inputs)) == []


CHANGES: list[dict[str, Parameter]] = [
    {"last": 2}, {"last": "no"}, {"benchmark": 2}, {"kernels": "1"}, {"kernels": "0,2"}, {"kernels": "x,1"},
    {"kernels": "1,0"}, {"rows": 1},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_schedule_that_does_not_fit_is_refused(change: dict[str, Parameter]) -> None:
    it = case("a linear layer, an activation")
    own, *others = (dict(kernel) for kernel in called(it)[0].kernels)
    changed = Schedule.of({**own, **change}, *others)
    assert isinstance(api.generate(it.analysis, changed, DeviceFacts()), api.NotCovered)


def test_a_task_without_products_has_no_calls() -> None:
    it = on_cuda(*_split(NONE["no product"]))
    assert isinstance(api.generate(it.analysis, Schedule.of({"sketch": SKETCH})), api.NotCovered)


def _split(of: Case) -> tuple[Any, ...]:
    return of[0], *of[1]


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
def test_kernels_around_calls_compile(tmp_path: Path) -> None:
    for number, name in itertools.product(
        (0,), ("an operand by a kernel, rows behind", "a convolution, a bias")
    ):
        it = case(name)
        compiled = compile_candidate(made(it, called(it)[number]), tmp_path, "sm_90a")
        assert isinstance(compiled, Compiled), compiled
