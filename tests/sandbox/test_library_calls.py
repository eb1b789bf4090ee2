"""Library calls of a plan run on the cpu, through the Python and the native operator, against float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from launch_kit import spec
from library_kit import convolution_plan, gemm_plan, relu, whole

from sandbox import launcher
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.compile.toolchain import Missing
from sandbox.launcher import ops
from sandbox.launcher.program import Program, load_program
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Buffer, Convolution, Gemm, Plan, View
from sandbox.sanitizer.tool import job_of

KEY = 2**63 - 7
Run = Callable[..., Any]


@pytest.fixture(params=["python", "native"])
def run(request: pytest.FixtureRequest, native_dir: Path, tmp_path: Path) -> Iterator[Run]:
    """Compiles, binds and calls: `run(candidate, inputs...)`."""
    found = launcher.ensure_native(native_dir)
    assert not isinstance(found, Missing), found.log

    def call(candidate: Candidate, *inputs: torch.Tensor) -> Any:
        compiled = compile_candidate(candidate, tmp_path, "native")
        assert isinstance(compiled, Compiled), compiled
        program = load_program(compiled.path, candidate.plan)
        assert isinstance(program, Program), program
        launcher.bind(KEY, program)
        if request.param == "python":
            return ops.run(KEY, *inputs)
        return launcher.op_for(len(inputs), 1)(KEY, *inputs)

    yield call
    launcher.unbind(KEY)


def inputs(plan: Plan) -> list[torch.Tensor]:
    """Random numbers for the plan's inputs."""
    torch.manual_seed(0)
    specs = plan.input_specs
    return [torch.randn(s.shape, dtype=getattr(torch, s.dtype)) for s in specs]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("summand", [None, whole("z", 4), View("z", (6, 1), (0, 1))])
def test_a_kernel_follows_a_product(run: Run, dtype: str, summand: View | None) -> None:
    changes = {} if summand is None else {"c": summand}
    plan = gemm_plan(dtype=dtype, **changes)
    x, y, z = inputs(plan)
    want = x.double() @ y.double()
    if summand is not None:
        want = want + (z if len(summand.shape) == 1 else z[:1])
    got = run(relu(plan, 24, 4, 3), x, y, z)
    assert got.dtype == x.dtype
    torch.testing.assert_close(got.double(), want.relu(), rtol=1e-5, atol=1e-5)


def test_strides_and_offsets_are_those_of_the_views(run: Run) -> None:
    a, b = View("x", (3, 4), (2, 6), 3), View("y", (4, 2), (1, 7), 2)
    out = View("t", (3, 2), (9, 4), 5)
    plan = gemm_plan(Gemm(a, b, out))
    x, y, z = inputs(plan)
    # the kernel takes the first 24 elements of t, of which the call writes 6: the test looks at these
    got = run(relu(plan, 24, 4, 3), x, y, z).flatten()
    want = x.flatten()[3:].as_strided((3, 4), (2, 6), 3) @ y.as_strided((4, 2), (1, 7), 2)
    mine = [[got[5 + 9 * i + 4 * j] for j in range(2)] for i in range(2)]
    torch.testing.assert_close(torch.tensor(mine), want[:2].relu())


def test_a_batched_product_with_a_shared_operand_and_a_summand(run: Run) -> None:
    call = Gemm(
        whole("x", 3, 2, 5), View("y", (3, 5, 4), (0, 4, 1)), whole("t", 3, 2, 4),
        View("z", (1, 1, 4), (0, 0, 1)),
    )  # fmt: skip
    plan = gemm_plan(call)
    x, y, z = inputs(plan)
    want = (x.view(3, 2, 5) @ y + z).relu().view(6, 4)
    torch.testing.assert_close(run(relu(plan, 24, 4, 3), x, y, z), want)


CONVOLUTIONS = {
    "line": ((2, 4, 9), (6, 4, 3), {"stride": (2,), "padding": (1,), "dilation": (2,)}),
    "plane": ((2, 4, 7, 6), (6, 2, 3, 2), {"stride": (2, 1), "padding": (1, 0), "groups": 2}),
    "space": ((1, 2, 4, 5, 6), (3, 2, 2, 2, 2), {"padding": (1, 0, 1)}),
    "transposed": ((2, 4, 5, 4), (4, 3, 3, 3),
                   {"stride": (2, 2), "padding": (1, 1), "output_padding": (1, 0), "transposed": True}),
}  # fmt: skip


def convolution(
    name: str, last: bool, biased: bool, dtype: str = "float64"
) -> tuple[Plan, dict[str, Any]]:
    """A plan, and what torch's own convolution takes."""
    x, weight, given = CONVOLUTIONS[name]
    n = len(x) - 2
    fields: dict[str, Any] = {"stride": (1,) * n, "padding": (0,) * n, "dilation": (1,) * n, "groups": 1,
                              "transposed": False, "output_padding": (0,) * n, **given}  # fmt: skip
    empty = torch.empty(x), torch.empty(weight), None
    order = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    shape = tuple(torch.convolution(*empty, *(fields[key] for key in order)).shape)
    out = (
        torch.empty((shape[0], *shape[2:], shape[1])).movedim(-1, 1) if last else torch.empty(shape)
    )
    bias = whole("b", shape[1]) if biased else None
    call = Convolution(
        whole("t", *x), whole("w", *weight), View("o", shape, out.stride()), bias, **fields
    )
    shapes = {"x": x, "w": weight, **({"b": (shape[1],)} if biased else {})}
    return convolution_plan(call, shapes, dtype=dtype), {key: fields[key] for key in order}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", list(CONVOLUTIONS))
def test_a_convolution_follows_a_kernel(run: Run, name: str, last: bool, biased: bool) -> None:
    plan, fields = convolution(name, last, biased)
    given = inputs(plan)
    to = len(plan.buffers) - 1
    got = run(relu(plan, given[0].numel(), 0, to), *given)
    bias = given[2] if biased else None
    want = torch.convolution(given[0].relu(), given[1], bias, *fields.values())
    torch.testing.assert_close(got, want)
    assert got.stride() == plan.output_specs[0].stride


def test_a_call_before_and_one_behind_the_kernel(run: Run) -> None:
    plan = gemm_plan()
    second = Gemm(whole("u", 6, 4), View("y", (4, 5), (1, 4)), whole("o", 6, 5))
    buffers = (*plan.buffers[:3], Buffer("o", "output", spec(6, 5)), plan.buffers[4],
               Buffer("u", "temporary", spec(24)))  # fmt: skip
    plan = replace(plan, buffers=buffers, steps=(*plan.steps, second))
    x, y, z = inputs(plan)
    torch.testing.assert_close(run(relu(plan, 24, 4, 5), x, y, z), (x @ y).relu() @ y.t())


def test_the_users_autocast_and_gradients_change_nothing(run: Run) -> None:
    plan, fields = convolution("plane", True, True, "float32")
    given = inputs(plan)
    want = torch.convolution(given[0].relu(), given[1], given[2], *fields.values())
    candidate = relu(plan, given[0].numel(), 0, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = run(candidate, *given)
    torch.testing.assert_close(got, want)
    assert not got.requires_grad


def test_inputs_are_as_they_were(run: Run) -> None:
    plan = gemm_plan()
    given = inputs(plan)
    before = [t.clone() for t in given]
    run(relu(plan, 24, 4, 3), *given)
    assert all(torch.equal(a, b) for a, b in zip(before, given, strict=True))


def test_a_new_binding_lets_go_of_what_was_loaded(run: Run) -> None:
    plan = gemm_plan()
    given = inputs(plan)
    for _ in range(3):
        torch.testing.assert_close(run(relu(plan, 24, 4, 3), *given), (given[0] @ given[1]).relu())


def test_the_sanitizer_fills_what_a_library_would_write() -> None:
    plan = gemm_plan(target="cuda", out=whole("t", 6, 4, offset=10))
    job = job_of(replace(plan, steps=(*plan.steps, *plan.steps)))
    assert job["segments"] == [(0, 0, (4, 40, 96)), (0, 1, None), (1, 1, (4, 40, 96)), (1, 2, None)]
    assert [step[0] for step in job["steps"]] == ["relu", "relu"]
