"""The C++ that sketches write computes what eager computes, to rounding, under every kind of schedule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sketch_kit import INTEGERS, Sample, run_cpu, sample
from torch.nn import functional as F

from cuda_agent_backend.codegen.cpu import schedules as cpu_schedules
from cuda_agent_backend.codegen.cpu import writer as cpu
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Schedule

INFINITY = float("inf")


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def with_nan(x: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(x > 2, float("nan"))


Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
# odd sizes, so that vectors, unrolled vectors and their scalar tails all run
CASES: dict[str, Case] = {
    "group norm": (lambda x, w, b: F.group_norm(x, 3, w, b), (randn(3, 6, 5, 7), randn(6), randn(6))),
    "softmax": (lambda x: torch.softmax(x, -1), (randn(9, 131),)),
    "softmax over a middle dimension": (lambda x: torch.softmax(x, 1), (randn(3, 13, 45),)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (131,), w, b), (randn(9, 131), randn(131), randn(131))),
    "sums with a tail": (lambda x: x.exp().sum((0, 2)), (randn(5, 6, 7),)),
    "maximum with NaN": (lambda x: (x.amax(-1), x.amin(-1)), (with_nan(randn(4, 37)),)),
    "argmax and argmin": (lambda x: (x.argmax(-1), x.argmin(0)), (randn(9, 41).round(),)),
    "cumulative sum": (lambda x: x.cumsum(-1), (randn(5, 131),)),
    "cumulative product along rows": (lambda x: x.cumprod(0), (randn(6, 21),)),
    "variance": (lambda x: torch.var(x, (0, 2)), (randn(4, 5, 33),)),
    "masked softmax": (lambda x, m: torch.softmax(x.masked_fill(m > 0, -INFINITY), -1), (randn(3, 8, 8), randn(8, 8))),
    "transposed operand": (lambda x, y: F.gelu(x.t() + y), (randn(13, 21), randn(21, 13))),
    "concatenation and padding": (lambda a, b: F.pad(torch.cat([a, b], -1).sin(), (1, 2)), (randn(4, 16), randn(4, 9))),
    "pooling": (lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 1, 1)), (randn(2, 3, 8, 8),)),
    "activations": (lambda x: x.tanh() * x.sigmoid() + F.softplus(x) + F.elu(x) + x.erf(), (randn(7, 37) * 3,)),
    "integers and truth values": (lambda x: torch.where((x > 0) & (x < 1), x, -x).to(torch.int64), (randn(6, 29),)),
    "everything at once": (lambda x: x.square().mean(), (randn(7, 19),)),
    "two kernels": (lambda x: (torch.softmax(x, -1), torch.softmax(x, -1).sum(0)), (randn(6, 40),)),
    "layer norm backward": (
        lambda g, x, w: torch.ops.aten.native_layer_norm_backward(
            g, x, (21,), x.mean(-1, True), torch.rsqrt(x.var(-1, keepdim=True, correction=0) + 1e-5), w, w, [True] * 3
        ),
        (randn(9, 21), randn(10, 21)[1:], randn(21)),
    ),
    "bfloat16": (lambda x: torch.softmax(x, -1), (randn(4, 40).bfloat16(),)),
    "float16": (lambda x: (x * 2 + 1).relu(), (randn(4, 40).half(),)),
    "double": (lambda x: torch.exp(x).sum(-1), (randn(4, 40).double(),)),
    **INTEGERS,
}  # fmt: skip


def first_schedule(it: Sample) -> Schedule:
    return cpu_schedules.schedules(it.analysis.kernels, 8, it.analysis.bytes_moved, 1 << 30)[0]


def assert_as_eager(it: Sample, schedule: Schedule, folder: Path) -> None:
    got = run_cpu(it.analysis, schedule, it.inputs, folder)
    assert len(got) == len(it.want)
    for g, w in zip(got, it.want, strict=True):
        assert g.stride() == w.stride() and g.dtype == w.dtype
        loose = {"rtol": 2e-2, "atol": 1e-2} if w.dtype == torch.bfloat16 else {}
        torch.testing.assert_close(g, w, equal_nan=True, **loose)


@pytest.mark.parametrize("name", CASES)
def test_the_first_schedule_gives_what_eager_gives(name: str, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    it = sample(function, *inputs)
    assert_as_eager(it, first_schedule(it), tmp_path)


@pytest.mark.parametrize("name", ["softmax over a middle dimension", "layer norm backward"])
@pytest.mark.parametrize("change", [{"unroll": 8}, {"stream": 1}, {"threads": 0}, {"width": 16}])
def test_every_parameter_leaves_the_result_alone(
    name: str, change: dict[str, int], tmp_path: Path
) -> None:
    function, inputs = CASES[name]
    it = sample(function, *inputs)
    first = first_schedule(it)
    changed = Schedule.of(
        *[{**first.parameters(i), **change} for i in range(len(it.analysis.kernels))]
    )
    assert_as_eager(it, changed, tmp_path)


@pytest.mark.parametrize("lanes", ["inner", "outer"])
def test_lanes_may_run_either_way(lanes: str, tmp_path: Path) -> None:
    function, inputs = CASES["softmax over a middle dimension"]
    assert_as_eager(
        sample(function, *inputs), Schedule.of({"lanes": lanes, "width": 8, "unroll": 2}), tmp_path
    )


def test_long_sums_lose_no_more_than_eager(tmp_path: Path) -> None:
    x = torch.rand(3, 100_003, generator=torch.Generator().manual_seed(0))
    it = sample(lambda x: x.sum(-1), x)
    (got,) = run_cpu(it.analysis, first_schedule(it), [x], tmp_path)
    exact = x.double().sum(-1)
    assert (got - exact).abs().max() <= 2 * (x.sum(-1) - exact).abs().max() + 2**-24 * exact.max()


def test_exp_and_its_kin_are_right_at_the_edges(tmp_path: Path) -> None:
    edges = torch.tensor(
        [0.0, -0.0, INFINITY, -INFINITY, float("nan"), 88.7, 88.8, -87.3, -200.0, 1e-30, -1.0, 0.5]
    )
    functions = (
        torch.exp,
        torch.log,
        torch.tanh,
        torch.erf,
        torch.sigmoid,
        torch.expm1,
        torch.log1p,
    )
    it = sample(lambda x: torch.stack([f(x) for f in functions]), edges)
    (got,) = run_cpu(it.analysis, first_schedule(it), [edges], tmp_path)
    want = torch.stack([f(edges.double()) for f in functions]).float()
    torch.testing.assert_close(got, want, rtol=4e-7, atol=1e-37, equal_nan=True)


def test_a_schedule_for_other_kernels_is_refused() -> None:
    analysis = sample(lambda x: torch.softmax(x, -1), randn(4, 9)).analysis
    with pytest.raises(Unsupported, match="schedule for 2 kernels where there are 1"):
        cpu.emit(analysis.region, analysis.kernels, Schedule.of({}, {}))


@pytest.mark.parametrize("columns", [64, 301, 1024, 5000])
def test_a_mean_that_is_subtracted_is_as_good_as_eagers_far_from_zero(
    columns: int, tmp_path: Path
) -> None:
    x = randn(64, columns) + 1000
    found = sample(lambda x: F.layer_norm(x, (columns,)), x)
    schedule = cpu_schedules.schedules(found.analysis.kernels, 8, 0, 1 << 20)[0]
    (ours,) = run_cpu(found.analysis, schedule, found.inputs, tmp_path)
    exact = F.layer_norm(x.double(), (columns,))
    error, eagers = (
        (y.double() - exact).square().mean().sqrt().item() for y in (ours, found.want[0])
    )
    assert error <= 1.5 * eagers + 1e-7
