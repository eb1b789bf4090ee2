"""Sums of products whose operands are first copied to where 16 bytes can be read at a time: right, and offered where
that pays."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from kit.compare import relative
from sketch_kit import Sample, sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.ir.value_types import WIDE
from sandbox.plan.plan import Launch, Plan

pytestmark = pytest.mark.usefixtures("plain_layouts")

DEVICE = cuda.DeviceFacts()
TILES = {"sketch": "contract", "tile_m": 32, "tile_n": 32, "depth": 16, "warp_m": 16, "warp_n": 16, "stages": 3,
         "run": 16, "split": 1, "aligned": 1}  # fmt: skip
GROUPS = {**TILES, "tile_m": 128, "tile_n": 64, "depth": 32, "stages": 4, "run": 32}
WAYS = {
    "warps": TILES,
    "warps, shared sums": {**TILES, "split": 3},
    "groups through shared memory": {**GROUPS, "group": 1},
    "groups through registers": {**GROUPS, "group": 2, "stages": 5, "split": 2},
}


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


Case = tuple[Callable[..., Any], tuple[Tensor, ...], list[str]]
# and which operands are copied
CASES: dict[str, Case] = {
    "all sizes odd": (lambda a, b: a @ b, (randn(61, 71), randn(71, 53)), ["a", "b"]),
    "even sizes": (lambda a, b: a @ b, (randn(64, 70), randn(70, 50)), ["a", "b"]),
    "rows only": (lambda a, b: a @ b, (randn(64, 67), randn(67, 52)), ["a"]),
    "columns only": (lambda a, b: a @ b, (randn(61, 64), randn(64, 51)), ["b"]),
    "both transposed": (lambda a, b: torch.relu(a.t() @ b.t()), (randn(71, 33), randn(45, 71)), ["a", "b"]),
    "linear, bias and GELU": (
        lambda *a: F.gelu(F.linear(*a)), (randn(2, 31, 73), randn(43, 73), randn(43)), ["a", "b"],
    ),
    "its operand behind it": (lambda a, b: (a @ b) * a, (randn(61, 53), randn(53, 53)), ["a", "b"]),
    "by itself": (lambda a: a @ a.t(), (randn(61, 71),), ["a", "b"]),
    "batches": (lambda a, b: torch.bmm(a, b) * 0.5, (randn(5, 33, 67), randn(5, 67, 41)), ["a", "b"]),
    "batches, one transposed": (
        lambda a, b: torch.bmm(a.transpose(1, 2), b), (randn(3, 67, 35), randn(3, 67, 41)), ["a", "b"],
    ),
    "one matrix for all batches": (torch.matmul, (randn(3, 33, 67), randn(67, 41)), ["a", "b"]),
    "heads": (
        lambda a, b: torch.matmul(a.transpose(1, 2), b), (randn(2, 33, 3, 35), randn(2, 3, 35, 37)), ["a", "b"],
    ),
    "cut out of a larger one": (lambda a, b: a[1:, 3:67] @ b, (randn(40, 72), randn(64, 48)), ["a"]),
    "stored by columns": (lambda a, b: (a @ b).t().contiguous(), (randn(61, 71), randn(71, 53)), ["a", "b"]),
    "pointwise, channels last": (F.conv2d, (last(randn(2, 23, 7, 11)), last(randn(21, 23, 1, 1))), ["a", "b"]),
    "weights beside an image": (
        lambda *a: F.relu(F.conv2d(*a, padding=1)), (randn(2, 5, 9, 11), randn(20, 5, 3, 3), randn(20)), ["b"],
    ),
}  # fmt: skip
SEVERAL_WAYS = (
    "all sizes odd",
    "both transposed",
    "linear, bias and GELU",
    "heads",
    "weights beside an image",
)


def emitted(it: Sample, tiles: dict[str, Any]) -> tuple[str, Plan]:
    return cuda.emit(it.analysis.region, it.analysis.kernels, Schedule.of(tiles), DEVICE)


def emulated(it: Sample, tiles: dict[str, Any], folder: Path) -> Tensor:
    (got,) = cuda_emulator.run(*emitted(it, tiles), it.inputs, folder)
    return got


def widths(source: str) -> list[int]:
    """Elements in one copy of the operands."""
    return [int(n) for n in re.findall(r"typedef ca::operand<\d+, \d+, \w+, (\d)", source)]


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, "warps") for name in CASES),
        *((name, way) for name in SEVERAL_WAYS for way in WAYS if way != "warps"),
    ],
)
def test_sums_of_aligned_operands_are_as_accurate_as_eagers(
    name: str, way: str, tmp_path: Path
) -> None:
    function, inputs, copied = CASES[name]
    it = sample(function, *inputs, target="cuda")
    want = function(*(x.double() for x in inputs))
    _, plan = emitted(it, WAYS[way])
    names = [b.name for b in plan.buffers if b.name in ("k0_a", "k0_b")]
    assert names == [f"k0_{side}" for side in copied]
    got = emulated(it, WAYS[way], tmp_path)
    assert relative(got, want) < 2 * relative(it.want[0], want) + 1e-7


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan, 3.4e38])
@pytest.mark.parametrize("layout", ["plain", "linear", "both transposed"])
def test_what_is_not_finite_spreads_as_far_as_in_eager(
    special: float, split: int, layout: str, tmp_path: Path
) -> None:
    a, b = randn(41, 71), randn(71, 37)
    # beside what fills lines up: the last term of a row, the first of one (which follows the row before it in the
    # operand), the last row of all, the last column of a term
    a[3, 70], a[8, 0], a[40, 70], b[70, 36] = special, special, special, special
    b[5, 0] = special
    a[9] = 0.0
    rows, columns = a.t().contiguous(), b.t().contiguous()
    if layout == "plain":
        it = sample(lambda a, b: a @ b, a, b, target="cuda")
    elif layout == "linear":
        it = sample(F.linear, a, columns, target="cuda")
    else:
        it = sample(lambda a, b: a.t() @ b.t(), rows, columns, target="cuda")
    got = emulated(it, {**TILES, "split": split}, tmp_path)
    torch.testing.assert_close(got, it.want[0], equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("all sizes odd", [1, 1]),
        ("even sizes", [2, 2]),
        ("rows only", [1, 4]),
        ("cut out of a larger one", [1, 4]),
    ],
)
def test_copies_of_16_bytes_take_the_place_of_narrow_ones(name: str, plain: list[int]) -> None:
    function, inputs, copied = CASES[name]
    it = sample(function, *inputs, target="cuda")
    source, plan = emitted(it, TILES)
    assert widths(source) == [4, 4] and source.count("ca::copy_async_if<4>(to") == 2
    assert [s.kernel for s in plan.steps if isinstance(s, Launch)] == ["k0_copy", "k0"]
    source, plan = emitted(it, {**TILES, "aligned": 0})
    assert widths(source) == plain
    assert [s.kernel for s in plan.steps if isinstance(s, Launch)] == ["k0"]
    assert copied == [side for side, width in zip("ab", plain, strict=True) if width < 4]


def test_lines_are_filled_up_with_zeros(tmp_path: Path) -> None:
    """What is not finite there would be right in the end, for such sums are computed anew, but slow."""
    it = sample(F.linear, randn(61, 71), randn(53, 71), target="cuda")
    source, plan = emitted(it, TILES)
    inputs = [b for b in plan.buffers if b.kind == "input"]
    made = [replace(b, kind="output") for b in plan.buffers if b.name in ("k0_a", "k0_b")]
    copy = Plan("cuda", (*inputs, *made), plan.steps[:1])
    for found, operand in zip(
        cuda_emulator.run(source, copy, it.inputs, tmp_path), it.inputs, strict=True
    ):
        assert torch.equal(found.view(-1, 72), F.pad(operand, (0, 1)))


def test_lines_begin_at_sectors_and_the_kernel_reads_the_operand_no_more() -> None:
    it = sample(lambda a, b: a @ b, randn(61, 71), randn(71, 53), target="cuda")
    _, plan = emitted(it, TILES)
    sizes = {b.name: b.spec.shape for b in plan.buffers if b.kind == "temporary"}
    assert sizes == {"k0_a": (61 * 72,), "k0_b": (71 * 56,)}
    copy, product = (s for s in plan.steps if isinstance(s, Launch))
    inputs = {b.name for b in plan.buffers if b.kind == "input"}
    assert set(copy.args) == inputs | {"k0_a", "k0_b"} and not inputs & set(product.args)


@pytest.mark.parametrize(("step", "index"), [(71, "int"), (WIDE // 39 + 1, "int64_t")])
def test_indices_of_the_copy_are_as_wide_as_memory_needs(step: int, index: str) -> None:
    a = torch.empty_strided((40, 71), (step, 1))  # of what lies between rows nothing is touched
    it = sample(lambda a, b: a @ b, a, randn(71, 32), target="cuda")
    source, _ = emitted(it, TILES)
    assert f"for ({index} i = {index}(blockIdx.x)" in source
    assert ("int64_t" in source[source.index('extern "C"') :]) == (index == "int64_t")


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda a, b: a @ b, (randn(61, 64), randn(64, 48))),
        (F.conv1d, (randn(2, 5, 51), randn(16, 5, 8))),  # windows overlap, the weights are aligned
        (lambda a, b: a[:, ::2] @ b, (randn(40, 71), randn(36, 48))),
        (
            lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
            (randn(2, 9, 7, 6), randn(9, 10, 3, 3)),
        ),
    ],
)
def test_where_nothing_can_be_aligned_a_schedule_that_asks_for_it_is_unsupported(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    it = sample(function, *inputs, target="cuda")
    emitted(it, {**TILES, "aligned": 0})
    with pytest.raises(Unsupported, match="no operand to align"):
        emitted(it, TILES)


def test_aligned_is_zero_or_one() -> None:
    it = sample(lambda a, b: a @ b, randn(61, 71), randn(71, 53), target="cuda")
    with pytest.raises(Unsupported, match="aligned=2; it is one of 0, 1"):
        emitted(it, {**TILES, "aligned": 2})


def offered(m: int, k: int, n: int, device: cuda.DeviceFacts = DEVICE) -> list[int]:
    """``aligned`` of what is offered for a product of these sizes."""
    it = sample(lambda a, b: a @ b, torch.empty(m, k), torch.empty(k, n), target="cuda")
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, device)
    return [int(s.parameters(0).get("aligned", 0)) for s in found]


@pytest.mark.parametrize("tf32", [(), ("matmul",)])
def test_large_products_are_tried_with_operands_copied_first_and_as_they_are(
    tf32: tuple[str, ...],
) -> None:
    found = offered(2875, 2875, 2875, cuda.DeviceFacts(tf32=tf32))
    assert found[0] == 1 and 0 in found[1:4]


@pytest.mark.parametrize(
    ("m", "k", "n"),
    [
        (2048, 2048, 2048),  # aligned
        (301, 301, 301),  # small: another launch takes longer
        (200_001, 97, 41),  # reading the rows is what takes the time
        (21, 3001, 3001),
    ],
)
def test_copies_are_not_offered_where_they_do_not_pay(m: int, k: int, n: int) -> None:
    assert set(offered(m, k, n)) == {0}
