"""What C++ leaves open and eager does not: whole numbers made of real ones beyond them, and divided by zero."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, on_cuda, run_cpu, sample
from torch import Tensor
from torch.nn.functional import pad

from cuda_agent_backend.codegen import api
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.plan.candidate import Candidate

REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
Outputs = tuple[Tensor, ...]


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def real_numbers(dtype: torch.dtype) -> Tensor:
    """Around the ends of every whole type, infinities and NaN; some more than once, as vectors have a rest."""
    ends = [0, 127, 128, 129, 200, 255, 256, 300, 32767, 32768, 65504, 65535, 65536, 70000]
    far = [2**31 - 128, 2**31, 2**31 + 256, 3000000005, 2**32, 2**32 + 517, 2**40 + 3, 2**63, 2**64]
    found = [s * (x + f) for x in (*ends, *far) for s in (1.0, -1.0) for f in (0.0, 0.7)]
    return torch.tensor([*found, math.inf, -math.inf, math.nan] * 2, dtype=torch.float64).to(dtype)


def converted(x: Tensor) -> Outputs:
    return tuple(x.to(dtype) for dtype in (*WHOLE, torch.bool))


def divided(x: Tensor, y: Tensor) -> Outputs:
    floored = torch.div(x, y, rounding_mode="floor")
    return (
        torch.div(x, y, rounding_mode="trunc"), floored, torch.fmod(x, y), torch.remainder(x, y),
        pad(floored[3:], (1, 2)),
    )  # fmt: skip


def whole_numbers(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Each number of the first over each of the second: zero, -1, and what is no limit."""
    ends = torch.iinfo(dtype)
    own = {0, 1, 7, 100, ends.max, ends.max - 1, ends.min, ends.min + 1}
    own |= {
        x for x in (-1, -7, -100, 2**31, 2**32 - 1, 2**32, -(2**32)) if ends.min <= x <= ends.max
    }
    by = {x for x in (0, -1, 1, 3, -3, ends.max, ends.min) if ends.min <= x}
    x, y = (torch.tensor(sorted(values), dtype=dtype) for values in (own, by))
    return x.repeat_interleave(len(y)), y.repeat(len(x))


def on_a_gpu(dtype: torch.dtype) -> Callable[[Tensor, Tensor], Outputs]:
    """What the routines of a GPU make of `divided`."""
    bits, signed = torch.iinfo(dtype).bits, torch.iinfo(dtype).min < 0

    def wrapped(n: int) -> int:
        n &= (1 << bits) - 1
        return n - (1 << bits) if signed and n >> (bits - 1) else n

    def over_zero(x: int) -> list[int]:
        ones = 2**32 - 1 if bits == 64 and 0 <= x < 2**32 else -1
        return [ones, ones - (x < 0), ones, ones]

    def one(x: int, y: int) -> list[int]:
        if y == 0:
            return over_zero(x)
        cut = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return [cut, x // y, x - cut * y, x % y]

    def all_of(x: Tensor, y: Tensor) -> Outputs:
        rows = [map(wrapped, one(*pair)) for pair in zip(x.tolist(), y.tolist(), strict=True)]
        found = [torch.tensor(row, dtype=dtype) for row in zip(*rows, strict=True)]
        return (*found, pad(found[1][3:], (1, 2)))

    return all_of


def eager_on_the_device(function: Callable[..., Outputs]) -> Callable[..., Outputs]:
    return lambda *inputs: tuple(x.cpu() for x in function(*(x.cuda() for x in inputs)))


CASES: dict[str, tuple[Callable[..., Outputs], Outputs]] = {
    **{f"{name_of(d)} converted": (converted, (real_numbers(d),)) for d in REAL},
    **{f"{name_of(d)} divided": (divided, whole_numbers(d)) for d in WHOLE},
}


def by_the_device(name: str) -> Sample:
    """A case for a GPU, with what eager gives there."""
    function, inputs = CASES[name]
    return on_cuda(function, *inputs, eager=eager_on_the_device(function))


def made_for_cuda(it: Sample) -> Candidate:
    device = DeviceFacts()
    made = api.generate(it.analysis, it.analysis.schedules(device)[0], device)
    assert isinstance(made, Candidate), made
    return made


def emulated(it: Sample, folder: Path) -> list[Tensor]:
    made = made_for_cuda(it)
    return cuda_emulator.run(made.source, made.plan, it.inputs, folder)


@pytest.mark.parametrize("width", [16, 1])
@pytest.mark.parametrize("dtype", REAL, ids=name_of)
def test_whole_numbers_made_of_real_ones_are_eagers_on_a_processor(
    dtype: torch.dtype, width: int, tmp_path: Path
) -> None:
    it = sample(converted, real_numbers(dtype))
    own = {"lanes": "inner", "width": width, "unroll": 1, "threads": 0}
    outputs = run_cpu(it.analysis, Schedule.of(own), it.inputs, tmp_path)
    for got, want in zip(outputs, it.want, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", REAL, ids=name_of)
def test_bytes_are_made_of_64_bit_integers_on_a_gpu(dtype: torch.dtype, tmp_path: Path) -> None:
    """Beyond those a processor has other answers than a GPU, which is why the rest takes a device."""
    x = real_numbers(dtype)
    it = on_cuda(lambda x: x.to(torch.uint8), x[x.double().abs() < 2.0**63])
    (got,) = emulated(it, tmp_path)
    torch.testing.assert_close(got, it.want[0], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", REAL, ids=name_of)
def test_the_cuda_compiler_saturates_no_byte_at_zero(dtype: torch.dtype, tmp_path: Path) -> None:
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("no nvcc")
    made = made_for_cuda(on_cuda(lambda x: x.to(torch.uint8), real_numbers(dtype)))
    (tmp_path / "k.cu").write_text(made.source)
    command = [compiler, "-w", "-arch=sm_90a", "--ptx", "k.cu", "-o", "k.ptx"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    text = (tmp_path / "k.ptx").read_text()
    assert "cvt.rzi.s64" in text and "cvt.rzi.u" not in text


@pytest.mark.parametrize("dtype", WHOLE, ids=name_of)
def test_quotients_over_zero_are_those_of_a_gpu(dtype: torch.dtype, tmp_path: Path) -> None:
    """And the smallest number over -1 wraps round; neither stops a processor."""
    it = on_cuda(divided, *whole_numbers(dtype), eager=on_a_gpu(dtype))
    for got, want in zip(emulated(it, tmp_path), it.want, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_a_divisor_of_two_types_has_their_common_one(tmp_path: Path) -> None:
    x, y = torch.arange(-6, 6), torch.tensor([0, -1, 5], dtype=torch.int32).repeat(4)
    it = on_cuda(torch.remainder, x, y, eager=lambda x, y: on_a_gpu(torch.int64)(x, y.long())[3])
    torch.testing.assert_close(emulated(it, tmp_path)[0], it.want[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("function", "is_open"),
    [
        (lambda x: x % 5, False),
        (lambda x: torch.div(x, -7, rounding_mode="floor"), False),
        (lambda x: torch.div(x, -1, rounding_mode="trunc"), True),
        (lambda x: torch.fmod(x, x - 3), True),
    ],
)
def test_what_is_divided_by_a_usual_number_needs_no_care(
    function: Callable[..., Any], is_open: bool
) -> None:
    it = on_cuda(function, torch.arange(50), eager=lambda x: x)
    assert ("ca::safe_" in made_for_cuda(it).source) == is_open
