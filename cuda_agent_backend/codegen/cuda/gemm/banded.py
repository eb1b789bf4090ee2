"""GEMMs with a banded operand, one that is zero beside a band, as a triangle is: blocks leave out terms beside it.

What is left out is 0 times an element of the other operand, which is NaN where that element is not finite. So a kernel
before the GEMM notes the first and the last term that is not finite, for each of that operand's rows (or columns). A
result for which either lies beside the band is NaN, whether its block left the term out or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy
import torch

from cuda_agent_backend.codegen.analysis.gemm import Factor, GemmForm, points
from cuda_agent_backend.codegen.cuda.common.parts import parameters_of
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented
from cuda_agent_backend.codegen.cuda.gemm.aligned_operands import (
    HALF_OPERATIONS_PER_SECOND,
    LAUNCH_SECONDS,
    OPERATIONS_PER_SECOND,
)
from cuda_agent_backend.codegen.cuda.gemm.operands import Side
from cuda_agent_backend.codegen.ir.banded import ALL, FAR, NONE, Band, need_of
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.region import Buffer, LoweredRegion
from sandbox.plan.plan import Launch

LINES = 32
"""Rows that a block of the noting kernel has, and threads to a row."""
STRIP_BYTES_PER_SECOND = 2e12
"""At which that kernel reads; assumed."""
NEVER = 2**31 - 1
"""The first term that is not finite where all are, and less than nothing the last: bands may begin before all terms."""
MOST_LOOKED_AT = 64
"""Tiles by rows, and by columns, whose terms are counted to estimate a share."""
TILE, STEP = 128, 32
"""Of the tile by which it is decided whether to leave terms out."""


@dataclass(frozen=True)
class BandedOperands:
    """Of ``m`` rows, ``n`` columns and ``k`` terms: where ``term - row`` and ``term - column`` may lie for operands to
    differ from zero. A side without a band has one that bounds nothing."""

    left: Band
    right: Band
    m: int
    n: int
    k: int

    def terms(self, row: int, column: int, tile_m: int, tile_n: int, step: int) -> tuple[int, int]:
        """First and end of a tile's terms, in whole steps; an end that is not beyond the first: it has none."""
        low = max(0, row + self.left.low, column + self.right.low)
        high = min(row + tile_m + self.left.high, column + tile_n + self.right.high)
        return low // step * step, min(self.k, ceildiv(max(high, 0), step) * step)

    def share(self, tile_m: int, tile_n: int, step: int) -> float:
        """Of all terms, those that blocks go through."""
        starts = [(m, n) for m in _some(self.m, tile_m) for n in _some(self.n, tile_n)]
        found = (self.terms(*start, tile_m, tile_n, step) for start in starts)
        return sum(max(0, end - first) for first, end in found) / (len(starts) * self.k)

    def bounds(self, tile_m: int, tile_n: int, step: int, split: int, needed: str) -> list[str]:
        """The terms of a block with the tile from ``row0`` and ``column0`` on, none unless it is ``needed``."""
        starts = (("row0", tile_m, self.left), ("column0", tile_n, self.right))
        low, high = "0", f"{self.k}"
        for start, size, band in starts:
            if band.low > -FAR:
                low = f"max({low}, {start} + {band.low})"
            if band.high < FAR:
                high = f"min({high}, {start} + {size + band.high})"
        part = f"max(highest - lowest + {step * split - 1}, 0) / {step * split} * {step}"
        shared = f"min(lowest + int(blockIdx.y) * ({part}), highest)"
        first = "min(lowest, highest)" if split == 1 else shared
        end = "highest" if split == 1 else f"min(first + {part}, highest)"
        return [
            f"const int lowest = {low} / {step} * {step};",
            f"const int highest = min({self.k}, max({high} + {step - 1}, 0) / {step} * {step});",
            f"const int first = {first}, end = {f'{needed} ? {end} : first' if needed else end};",
        ]

    def longest_first(self, high: int, wide: int) -> list[str]:
        """Turns the order of tiles round where the last of them have the most terms, that none begins at the end."""
        sides = (("tile_m", high, self.left), ("tile_n", wide, self.right))
        return [
            f"{name} = {count - 1} - {name};"
            for name, count, band in sides
            if band.high < FAR and band.low == -FAR
        ]

    @property
    def noted(self) -> str:
        """Names of the sides whose elements that are not finite count beside a band."""
        a = self.right.bounds or not self.left.sure
        b = self.left.bounds or not self.right.sure
        return "a" * a + "b" * b

    def beside(self, name: str, batch: bool) -> list[str]:
        """A function from row and column of a result to whether it is NaN for what lies beside a band."""
        places = {"a": ("m", self.m), "b": ("n", self.n)}
        bands = {"a": self.left, "b": self.right}
        tests = []
        for noted in self.noted:
            place, count = places[noted]
            at = f"batch * {count} + {place}" if batch else place
            for side, band in bands.items():
                if side == noted and band.sure:
                    continue
                if band.low > -FAR:
                    tests.append(
                        f"m_{ends(name, noted)}[2 * ({at})] < {places[side][0]} + {band.low}"
                    )
                if band.high < FAR:
                    tests.append(
                        f"m_{ends(name, noted)}[2 * ({at}) + 1] > {places[side][0]} + {band.high}"
                    )
        return [f"auto beside = [&](int m, int n) {{ return {' || '.join(tests)}; }};"]


def _some(size: int, tile: int) -> range:
    """Where tiles begin, of many only some at even distances."""
    return range(0, size, tile * ceildiv(size, tile * MOST_LOOKED_AT))


def ends(name: str, side: str) -> str:
    """The buffer of first and last terms that are not finite, by batch and row."""
    return f"{name}_{side}_ends"


def banded_operands_of(c: GemmForm, region: LoweredRegion) -> BandedOperands | None:
    """None where no operand is known to be zero anywhere, or that cannot be told by rows and terms."""
    if c.left.mask is not None or c.right.mask is not None:
        return None
    left, right = _band(c.left, c.rows, c, region), _band(c.right, c.columns, c, region)
    return BandedOperands(left, right, c.m, c.n, c.k) if left.bounds or right.bounds else None


def _band(factor: Factor, rows: Sequence[Dim], c: GemmForm, region: LoweredRegion) -> Band:
    """That of ``term - row``: whole matrices of the buffer only, dense, lying as they are or turned."""
    buffer, nothing = region.buffers[factor.buffer], Band()
    if buffer.band is None or len(rows) != 1 or len(c.inner) != 1:
        return nothing
    (high, wide), matrix = buffer.shape[-2:], buffer.shape[-2] * buffer.shape[-1]
    if buffer.stride[-2:] != (wide, 1):
        return nothing
    (row, m), (term, k) = rows[0], c.inner[0]
    steps = coefficient(factor.index, row), coefficient(factor.index, term)
    if None in steps:
        return nothing
    rest = sympy.expand(factor.index - sum(s * x for s, x in zip(steps, (row, term), strict=True)))
    batch = [(coefficient(rest, symbol) or 0, symbol) for symbol in rest.free_symbols]
    if any(step % matrix for step, _ in batch) or rest != sum(s * x for s, x in batch):
        return nothing
    if steps == (wide, 1) and (m, k) == (high, wide):
        return buffer.band
    return buffer.band.turned if steps == (1, wide) and (k, m) == (high, wide) else nothing


def needed_of(kernel: Kernel, c: GemmForm) -> Band:
    """Where ``column - row`` of a result may lie for anything that is stored to depend on its sum."""
    first, *tail = kernel.stages
    if first.stores or len(c.rows) != 1 or len(c.columns) != 1:
        return ALL
    needed: dict[str, Band] = {}
    stored = NONE
    for stage in tail:
        own = need_of(stage.body, c.rows[0], c.columns[0], needed)
        needed |= {s.buffer: own for s in stage.local_stores}
        stored = stored.either(own) if stage.stores else stored
    return stored


def needed_tile(band: Band, tile_m: int, tile_n: int) -> str:
    """A condition: whether a block's tile meets the band."""
    tests = []
    if band.low > -FAR:
        tests.append(f"column0 + {tile_n - 1} - row0 >= {band.low}")
    if band.high < FAR:
        tests.append(f"column0 - row0 - {tile_m - 1} <= {band.high}")
    return " && ".join(tests)


def share_of_tiles(band: Band, m: int, n: int, tile_m: int, tile_n: int) -> float:
    """Of all tiles, those that meet the band."""
    starts = [(row, column) for row in _some(m, tile_m) for column in _some(n, tile_n)]
    met = [
        column + tile_n - 1 - row >= band.low and column - row - tile_m + 1 <= band.high
        for row, column in starts
    ]
    return sum(met) / len(met)


def noted_buffer(name: str, side: Side, batch: Sequence[Dim]) -> Buffer:
    """What `noting` writes: two numbers of each row, the first larger than the second where all is finite."""
    size = 2 * points(batch) * points(side.rows.dims)
    return Buffer(ends(name, side.name), "temporary", torch.int32, (size,), (1,))


def noting(
    side: Side, batch: Sequence[Dim], find: list[str], region: LoweredRegion, name: str, index: str
) -> tuple[str, Launch]:
    """The kernel that notes first and last terms. ``find``: text of the function ``find`` (`find_lines`);
    ``region``: with the buffer that it writes."""
    rows, terms = points(side.rows.dims), points(side.inner.dims)
    reads, writes, own = [side.factor.buffer], [ends(name, side.name)], f"{name}_{side.name}_note"
    row, term = ("line", "lane") if side.along_k else ("lane", "line")
    body = [
        f"__shared__ int firsts[{LINES}][{LINES + 1}], lasts[{LINES}][{LINES + 1}];",
        f"const int lane = threadIdx.x % {LINES}, line = threadIdx.x / {LINES}, x = blockIdx.x * {LINES} + {row};",
        *(["const int batch = blockIdx.y;"] if batch else []),
        *decompose("batch", batch, index),
        *find,
        f"int first = {NEVER}, last = -{NEVER};",
        "#pragma unroll 8",
        f"for (int k = {term}; k < {terms}; k += {LINES}) {{",
        "  bool there;",
        "  const auto* const from = find(x, k, there);",
        "  const bool finite = fabsf(there ? ca::widen(*from) : 0.f) <= 3.402823466e38f;",
        "  first = finite ? first : min(first, k);",
        "  last = finite ? last : k;",
        "}",
        f"firsts[{row}][{term}] = first, lasts[{row}][{term}] = last;",
        "__syncthreads();",
        f"if (threadIdx.x >= {LINES} || blockIdx.x * {LINES} + threadIdx.x >= {rows}) return;",
        f"for (int i = 0; i < {LINES}; ++i) {{",
        "  first = i ? min(first, firsts[threadIdx.x][i]) : firsts[threadIdx.x][0];",
        "  last = i ? max(last, lasts[threadIdx.x][i]) : lasts[threadIdx.x][0];",
        "}",
        f"const {index} at = 2 * ({f'batch * {rows} + ' if batch else ''}blockIdx.x * {LINES} + threadIdx.x);",
        f"m_{writes[0]}[at] = first, m_{writes[0]}[at + 1] = last;",
    ]  # fmt: skip
    head = f'extern "C" __global__ void __launch_bounds__({LINES * LINES})'
    parameters = ", ".join(parameters_of(region, reads, writes))
    text = "\n".join([head, f"{own}({parameters}) {{", *indented(body), "}"])
    blocks = (ceildiv(rows, LINES), points(batch), 1)
    return text, Launch(own, blocks, (LINES * LINES, 1, 1), 0, (*reads, *writes))


def leaving_out_pays(c: GemmForm, bands: BandedOperands) -> bool:
    """Whether the terms that blocks leave out take longer than noting what is not finite."""
    rate = HALF_OPERATIONS_PER_SECOND if c.is_half else OPERATIONS_PER_SECOND
    saved = (1 - bands.share(TILE, TILE, STEP)) * 2 * c.batches * c.m * c.n * c.k / rate
    read = sum({"a": c.m, "b": c.n}[side] * c.k * c.batches for side in bands.noted)
    seconds = read * c.dtype.itemsize / STRIP_BYTES_PER_SECOND + LAUNCH_SECONDS * len(bands.noted)
    return saved > seconds
