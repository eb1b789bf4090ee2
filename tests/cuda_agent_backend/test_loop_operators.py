"""Every operator of Inductor's loop IR on every type: a kernel gives what eager gives, or the operator is refused."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import operator_kit as kit
import pytest
import torch
from operator_table import REFUSED, STRUCTURE, TABLE
from sketch_kit import on_cuda, run_cpu, sample
from torch._inductor.ops_handler import OpsHandler

from cuda_agent_backend.codegen.api import as_it_stands
from cuda_agent_backend.codegen.bugs import Bug
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported
from cuda_agent_backend.codegen.ir.operand_types import SAFE
from cuda_agent_backend.codegen.ir.printer import OPERATIONS
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.ir.special_functions import NAMES, ON_CUDA
from sandbox.plan.plan import Plan

DEVICE = cuda.DeviceFacts()
ALONE = ("float32", "float64", "int64", "bool")
"""Types that are walked one value at a time as well."""
TYPES = [kit.name_of(dtype) for dtype in kit.TYPES]
pytestmark = pytest.mark.filterwarnings("ignore:undefined OpHandler")


def run(case: kit.Case, target: str, folder: Path, width: int = 16) -> list[torch.Tensor]:
    """The outputs of the case's kernel."""
    if target == "cpu":
        own = Schedule.of({"lanes": "inner", "width": width, "unroll": 1, "threads": 0})
        return run_cpu(case, own, case.inputs, folder, ["-O1"])
    source, plan = cuda_source(case)
    return cuda_emulator.run(source, plan, case.inputs, folder)


def cuda_source(case: kit.Case) -> tuple[str, Plan]:
    schedule = cuda.schedules(case.region, case.kernels, DEVICE)[0]
    return cuda.emit(case.region, case.kernels, schedule, DEVICE)


@pytest.mark.parametrize(
    ("width", "name"), [*((16, t) for t in TYPES), *((1, t) for t in TYPES if t in ALONE)]
)
def test_operators_are_eagers_on_a_processor(name: str, width: int, tmp_path: Path) -> None:
    case = kit.of_type(TABLE, getattr(torch, name), "cpu")
    assert case.wrong(run(case, "cpu", tmp_path, width)) == []


@pytest.mark.parametrize("name", TYPES)
def test_operators_are_eagers_on_a_gpu(name: str, tmp_path: Path) -> None:
    case = kit.of_type(TABLE, getattr(torch, name), "cuda")
    assert case.wrong(run(case, "cuda", tmp_path)) == []


@pytest.mark.parametrize("name", TYPES)
def test_the_cuda_compiler_takes_every_operator(name: str, tmp_path: Path) -> None:
    """What g++ takes from the emulator need not be what nvcc takes."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("no nvcc")
    case = kit.of_type(TABLE, getattr(torch, name), "cuda")
    (tmp_path / "k.cu").write_text(cuda_source(case)[0])
    command = [compiler, "-w", "-arch=sm_90a", "--ptx", "k.cu", "-o", "k.ptx"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_operator_is_walked_or_refused_by_name() -> None:
    """An operator that a release of torch adds, or that a prelude gets, is in one of the lists."""
    printed = set(OPERATIONS) - SAFE
    assert set(TABLE) == printed
    known = {n for n in dir(OpsHandler) if not n.startswith("_")}
    assert known - printed - set(STRUCTURE) == set(REFUSED) & known


@pytest.mark.parametrize("name", REFUSED)
def test_an_operator_that_is_not_printed_is_refused(name: str) -> None:
    operands, more = REFUSED[name]

    def formula(handler: Any, given: list[Any]) -> Any:
        return getattr(handler, name)(*given[:operands], *more)

    with pytest.raises(Unsupported):
        kit.checked_body(formula, (torch.float32,) * 3)


@pytest.mark.parametrize("name", sorted(TABLE))
def test_an_operator_is_refused_on_types_that_are_not_converted(name: str) -> None:
    """Inductor converts whole numbers before a function of real ones; C++ would give 3 for 7 / 2."""
    one = TABLE[name]
    for dtype in kit.TYPES:

        def body(dtype: torch.dtype = dtype) -> object:
            return kit.checked_body(
                lambda h, given: kit.applied(h, name, one, given), (dtype,) * 3, target="cpu"
            )

        if one.takes(dtype):
            assert body()
            continue
        with pytest.raises(Unsupported, match=name):
            body()


@pytest.mark.parametrize("name", sorted(NAMES - ON_CUDA))
def test_what_only_eager_has_on_a_gpu_is_refused_there(name: str) -> None:
    def formula(handler: Any, given: list[Any]) -> Any:
        return kit.applied(handler, name, TABLE[name], given)

    with pytest.raises(Unsupported, match="only eager's own kernel"):
        kit.checked_body(formula, (torch.float32,) * 3, target="cuda")


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("float32", "float64"),
        ("int64", "int32"),
        ("int64", "uint8"),
        ("int32", "bool"),
        ("float32", "int64"),
    ],
)
def test_operands_of_two_types_meet_or_are_refused(
    first: str, second: str, target: str, tmp_path: Path
) -> None:
    case = kit.mixed(TABLE, (getattr(torch, first), getattr(torch, second)), target)
    met = {entry.name for entry in case.entries}
    assert {"add", "lt", "maximum", "logical_and"} <= met
    assert ("truediv" in met) == (first == "float32")
    assert case.wrong(run(case, target, tmp_path)) == []


def special(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    of = torch.special
    return (
        of.i0e(x),
        of.bessel_j1(x),
        of.erfinv(x),
        torch.nextafter(x, y),
        of.gammainc(y.abs() + 0.1, x.abs()),
    )


def test_functions_that_few_tasks_have_are_compiled_as_a_judge_does(tmp_path: Path) -> None:
    """With the flags of a candidate, from a task on."""
    x = torch.cat([kit.edges(torch.float32), torch.linspace(-1, 1, 999)])
    it = sample(special, x, x.flip(0).contiguous())
    for got, want in zip(
        run_cpu(it.analysis, it.analysis.schedules()[0], it.inputs, tmp_path), it.want, strict=True
    ):
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=1e-38)


def test_a_function_of_eagers_alone_leaves_a_task_for_a_gpu_to_it() -> None:
    found = as_it_stands(on_cuda(torch.special.i0e, torch.ones(8)).task)
    assert isinstance(found, NotCovered) and "only eager's own kernel" in found.reason


def both_places(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cummax(x, 1)


def second_smallest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.kthvalue(x, 2, 1)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (both_places, "values of 64 bits with their places"),
        (second_smallest, "Inductor leaves to eager's own"),
    ],
)
def test_what_has_no_loops_is_left_by_name(function: Callable[..., Any], said: str) -> None:
    found = as_it_stands(sample(function, torch.randn(4, 5).double()).task)
    assert isinstance(found, NotCovered) and said in found.reason and "aten." in found.reason


def test_what_inductor_fails_to_lower_is_left_to_it() -> None:
    """It asserts that windows have two sizes, where eager takes one for both."""

    def gradient(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.avg_pool2d_backward(g, x, [2], [2], [0], False, True, None)

    found = as_it_stands(sample(gradient, torch.ones(1, 2, 3, 3), torch.ones(1, 2, 6, 6)).task)
    assert isinstance(found, NotCovered) and not isinstance(found, Bug)
    assert "fails to lower" in found.reason
