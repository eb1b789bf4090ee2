"""Products of weights stored in eight bits: one region, and one kernel that reads the codes, as an emulator runs it."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from kit.compare import relative
from sketch_kit import Sample, sample
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from cuda_agent_backend.codegen.analysis.gemm import gemm_of
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.partition.regions import partition
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Launch

pytestmark = pytest.mark.usefixtures("plain_layouts")

DEVICE = cuda.DeviceFacts()
TILES = {"sketch": "contract", "tile_m": 32, "tile_n": 32, "depth": 32, "warp_m": 16, "warp_n": 16, "stages": 3,
         "run": 16, "split": 1}  # fmt: skip
WAYS = {
    "warps": TILES,
    "shared sums": {**TILES, "split": 2},
    "warps that share terms": {**TILES, "depth": 64, "warps_k": 2},
    "a wide tile": {**TILES, "tile_n": 128, "warp_m": 32, "warp_n": 32},
    "numbers made first, warp groups": {
        **TILES, "tile_m": 128, "tile_n": 64, "stages": 5, "run": 32, "group": 2, "aligned": 1,
    },
}  # fmt: skip


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def codes(*shape: int, dtype: torch.dtype = torch.int8) -> Tensor:
    info, generator = torch.iinfo(dtype), torch.Generator().manual_seed(shape[-1])
    return torch.randint(info.min, info.max + 1, shape, generator=generator).to(dtype)


def scales(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(5)) / 100 + 0.001


def by_column(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    return torch.relu(x @ (c.to(x.dtype) * s))


def linear(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, c.to(x.dtype) * s.unsqueeze(1))


def by_one(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    return x @ (s * c.to(x.dtype))


def by_constant(x: Tensor, c: Tensor) -> Tensor:
    return x @ (c.to(x.dtype) * 0.01)


def unscaled(x: Tensor, c: Tensor) -> Tensor:
    return x @ c.to(x.dtype)


def above_zero(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    return x @ ((c.to(x.dtype) - 128) * s)


def above_zero_in_integers(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, (c.int() - 100).to(x.dtype) * s.unsqueeze(1))


def on_the_left(c: Tensor, s: Tensor, x: Tensor) -> Tensor:
    return (c.to(x.dtype) * s.unsqueeze(1)) @ x


def in_batches(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    return torch.bmm(x, c.to(x.dtype) * s)


def with_bias(x: Tensor, c: Tensor, s: Tensor, b: Tensor) -> Tensor:
    return F.gelu(torch.addmm(b, x, c.to(x.dtype).t() * s))


def both(c: Tensor, s: Tensor, d: Tensor, t: Tensor) -> Tensor:
    return (c.float() * s.unsqueeze(1)) @ (d.float() * t)


BYTE = torch.uint8
Case = tuple[Callable[..., Any], tuple[Tensor, ...], list[int]]
# and codes in one copy, of those of 16 bytes that tiles allow
CASES: dict[str, Case] = {
    "by column": (by_column, (randn(31, 80), codes(80, 48), scales(48)), [16]),
    "by column, by eight": (by_column, (randn(33, 80), codes(80, 56), scales(56)), [8]),
    "by column, odd": (by_column, (randn(37, 71), codes(71, 53), scales(53)), [1]),
    "linear": (linear, (randn(33, 96), codes(49, 96), scales(49)), [16]),
    "linear, odd": (linear, (randn(2, 17, 71), codes(35, 71), scales(35)), [1]),
    "one scale": (by_one, (randn(33, 80), codes(80, 52), scales()), [4]),
    "a constant": (by_constant, (randn(33, 80), codes(80, 48)), [16]),
    "no scale": (unscaled, (randn(33, 80), codes(80, 48)), [16]),
    "bytes": (by_column, (randn(33, 80), codes(80, 48, dtype=BYTE), scales(48)), [16]),
    "bytes, a zero": (above_zero, (randn(33, 70), codes(70, 48, dtype=BYTE), scales(48)), [16]),
    "bytes, a zero, integers": (
        above_zero_in_integers, (randn(33, 71), codes(45, 71, dtype=BYTE), scales(45)), [1],
    ),
    "on the left": (on_the_left, (codes(41, 80), scales(41), randn(80, 36)), [16]),
    "batches": (in_batches, (randn(3, 33, 71), codes(3, 71, 48), scales(3, 1, 48)), [16]),
    "a bias and GELU": (with_bias, (randn(33, 96), codes(44, 96), scales(44), randn(44)), [16]),
    "both": (both, (codes(33, 80), scales(33), codes(80, 48), scales(48)), [16, 16]),
}  # fmt: skip
SEVERAL_WAYS = (
    "by column, by eight",
    "by column, odd",
    "linear",
    "bytes, a zero",
    "a bias and GELU",
)


def emitted(it: Sample, tiles: dict[str, Any]) -> tuple[str, Any]:
    return cuda.emit(it.analysis.region, it.analysis.kernels, Schedule.of(tiles), DEVICE)


def emulated(it: Sample, tiles: dict[str, Any], folder: Path) -> Tensor:
    (got,) = cuda_emulator.run(*emitted(it, tiles), it.inputs, folder)
    return got


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, "warps") for name in CASES),
        *itertools.product(SEVERAL_WAYS, [way for way in WAYS if way != "warps"]),
    ],
)
def test_products_of_codes_are_as_accurate_as_eagers(name: str, way: str, tmp_path: Path) -> None:
    function, inputs, _ = CASES[name]
    it = sample(function, *inputs, target="cuda")
    want = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    got = emulated(it, WAYS[way], tmp_path)
    assert relative(got, want) < 2 * relative(it.want[0], want) + 1e-7


@pytest.mark.parametrize("name", CASES)
def test_codes_are_copied_as_wide_as_they_lie(name: str) -> None:
    function, inputs, widths = CASES[name]
    source, plan = emitted(sample(function, *inputs, target="cuda"), TILES)
    found = re.findall(r"typedef ca::coded_operand<\w+, \d+, \d+, \d+, \w+, (\d+), \d+>", source)
    assert [int(width) for width in found] == widths
    assert [s.kernel for s in plan.steps if isinstance(s, Launch)] == ["k0"]


SPECIAL = [math.inf, -math.inf, math.nan, 3.4e38, 0.0]


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("layout", ["by column", "linear"])
def test_what_is_not_finite_spreads_as_far_as_in_eager(
    layout: str, split: int, tmp_path: Path
) -> None:
    """Infinite scales too: of codes of one sign the sum is infinite, and NaN where one of them is 0."""
    x, c, s = randn(41, 71).abs(), codes(71, 36).abs().clamp(min=1), scales(36)
    s[: len(SPECIAL)] = torch.tensor(SPECIAL)
    s[8], s[9], c[70, 9] = math.inf, math.inf, 0
    x[3, 70], x[4, 0], x[5, 1] = math.inf, math.nan, 0.0
    x[6] = 1e36  # times a code it is too large, times its scale it is not
    it = (
        sample(linear, x, c.t().contiguous(), s, target="cuda")
        if layout == "linear"
        else sample(by_column, x, c, s, target="cuda")
    )
    got = emulated(it, {**TILES, "split": split}, tmp_path)
    assert torch.isfinite(it.want[0][6, 20:]).all() and torch.isinf(it.want[0][0, 8])
    torch.testing.assert_close(got, it.want[0], equal_nan=True, rtol=1e-5, atol=1e-5)


def test_codes_that_one_part_holds_take_three_products_of_six() -> None:
    it = sample(by_column, *CASES["by column"][1], target="cuda")
    found = gemm_of(it.analysis.kernels[0])
    assert found is not None and (found.left.zero, found.right.zero) == (None, 0)
    assert found.right.scale is not None and len(found.right.scale.instructions) == 1


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (
            lambda x, c, s: x @ (c.float() * s.unsqueeze(1)),
            (randn(33, 80), codes(80, 48), scales(80)),
        ),
        (lambda x, c: x @ (c.float() - 0.5), (randn(33, 80), codes(80, 48))),
        (lambda x, c: x @ (c - 3).float(), (randn(33, 80), codes(80, 48))),  # wraps around
    ],
)
def test_other_numbers_made_of_codes_are_no_operand(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    it = sample(function, *inputs, target="cuda")
    assert all(gemm_of(kernel) is None for kernel in it.analysis.kernels)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (unscaled, (randn(33, 80), codes(80, 48).short())),
        (lambda x, c: x @ (c.float() + 200), (randn(33, 80), codes(80, 48, dtype=BYTE))),
    ],
)
def test_integers_that_one_part_does_not_hold_are_not_read_as_codes(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    with pytest.raises(Unsupported, match="another dtype"):
        emitted(sample(function, *inputs, target="cuda"), TILES)


@pytest.mark.parametrize(
    ("sizes", "tiles"), [((32, 8192, 7000), (32, 256)), ((2048, 4096, 4096), (128, 128))]
)
def test_few_rows_are_offered_wide_tiles_and_many_are_offered_numbers_made_first(
    sizes: tuple[int, int, int], tiles: tuple[int, int]
) -> None:
    m, k, n = sizes
    inputs = torch.empty(m, k), torch.empty(k, n, dtype=torch.int8), torch.empty(n)
    it = sample(by_column, *inputs, target="cuda")
    found = [
        s.parameters(0) for s in cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    ]
    assert tiles in {(p["tile_m"], p["tile_n"]) for p in found}
    assert any(p.get("aligned") and p["group"] for p in found) == (m > 32)
    assert any(not p.get("aligned") for p in found)


# --- regions ---


def operators(function: Callable[..., Any], *inputs: Tensor) -> list[list[str]]:
    """Of the regions of a graph on a GPU that need not be there."""
    with FakeTensorMode():
        fake = [torch.empty(x.shape, dtype=x.dtype, device="cuda") for x in inputs]
        traced = make_fx(function, decomposition_table=select_decomp_table())(*fake)
    regions = partition(traced.graph)
    assert all(region.reason is None for region in regions)
    return [
        [n.target._schema.name.partition("::")[2] for n in r.nodes if not isinstance(n.target, str)]
        for r in regions
    ]


X, C, S = torch.empty(32, 256), torch.empty(256, 192, dtype=torch.int8), torch.empty(192)


@pytest.mark.parametrize(
    ("function", "inputs", "made"),
    [
        (by_column, (X, C, S), ["convert_element_type", "mul"]),
        (linear, (X, torch.empty(192, 256, dtype=torch.int8), S), ["convert_element_type", "mul", "permute"]),
        (by_constant, (X, C), ["convert_element_type", "mul"]),
        (above_zero, (X, C.to(BYTE), S), ["convert_element_type", "sub", "mul"]),
    ],
)  # fmt: skip
def test_what_makes_numbers_of_codes_belongs_to_the_products_region(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], made: list[str]
) -> None:
    (found,) = operators(function, *inputs)
    assert found[: len(made)] == made and "mm" in found


def test_each_product_of_a_weight_reads_its_codes() -> None:
    def two(x: Tensor, y: Tensor, c: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        weight = c.to(x.dtype) * s
        return x @ weight, torch.relu(y @ weight)

    assert [found.count("convert_element_type") for found in operators(two, X, X, C, S)] == [1, 1]


def kept(x: Tensor, c: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    weight = c.to(x.dtype) * s
    return x @ weight, weight


def by_term(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    return x @ (c.to(x.dtype) * s)


@pytest.mark.parametrize(
    ("function", "scale"), [(kept, S), (by_term, torch.empty(256, 1)), (by_term, torch.empty(256, 192))]
)  # fmt: skip
def test_weights_that_are_needed_or_whose_scales_differ_by_term_are_made_in_memory(
    function: Callable[..., Any], scale: Tensor
) -> None:
    first, second = operators(function, X, C, scale)
    assert "mul" in first and second == ["mm"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, c, s: x @ ((c.float() - 127.5) * s),
        lambda x, c, s: x @ (c.float() * s + 1),
        lambda x, c, s: x @ ((c.float() + 200) * s),
        lambda x, c, s: x @ ((c.float() - 3 - 4) * s),
    ],
    ids=["a broken zero", "behind the scale", "more than one part holds", "twice"],
)
def test_what_no_kernel_reads_as_codes_is_made_in_memory(function: Callable[..., Any]) -> None:
    first, second = operators(function, X, C.to(BYTE), S)
    assert "convert_element_type" in first and second == ["mm"]


def test_of_two_operands_with_a_zero_one_is_made_in_memory() -> None:
    def both(c: Tensor, d: Tensor, s: Tensor) -> Tensor:
        return torch.relu((c.float() - 3) @ (d.float() * s))

    first, second = sorted(operators(both, torch.empty(32, 256, dtype=torch.int8), C, S), key=len)
    assert first == ["convert_element_type", "mul"]
    assert second == ["convert_element_type", "sub", "mm", "relu"]


def test_a_scale_on_another_device_is_none_of_a_kernel() -> None:
    def scaled(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
        return torch.relu(x @ (c.float() * s))

    with FakeTensorMode():
        fake = [torch.empty(x.shape, dtype=x.dtype, device="cuda") for x in (X, C)]
        traced = make_fx(scaled)(*fake, torch.empty(()))
    *_, last = partition(traced.graph)
    assert last.reason is None and [n.name for n in last.nodes] == ["mm", "relu"]


@pytest.mark.parametrize("name", ["by column", "by column, odd", "linear", "bytes, a zero"])
def test_kernels_of_codes_compile(name: str, tmp_path: Path) -> None:
    if isinstance(find_cuda(), Missing):
        pytest.skip("needs a CUDA compiler")
    function, inputs, _ = CASES[name]
    it = sample(function, *inputs, target="cuda")
    source, plan = emitted(it, {**TILES, "tile_n": 128, "warp_m": 32, "warp_n": 32, "split": 2})
    found = compile_candidate(Candidate("cuda", "cuda", source, plan, "sketch"), tmp_path, "sm_90a")
    assert isinstance(found, Compiled), found
