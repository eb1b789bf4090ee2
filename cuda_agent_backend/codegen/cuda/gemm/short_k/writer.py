"""GEMMs with few terms and many results -> CUDA: each thread has a tile of results in registers, by plain arithmetic.

Writing the results takes the time, so they go from registers to memory directly, while another block of the
multiprocessor multiplies. A block keeps its slice of one operand in shared memory for several tiles side by side. It
copies the next slice of the other operand while it works on one. Arithmetic is plain float32 in the order of the terms.

``fast``: the operand (rows or columns) along which results lie next to each other in memory; ``slow``: the other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.common.parts import (
    Emitted,
    buffers_of,
    needs_wide,
    parameters_of,
)
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented
from cuda_agent_backend.codegen.cuda.family import Problem
from cuda_agent_backend.codegen.cuda.gemm.lines import find_lines, tail_lines
from cuda_agent_backend.codegen.cuda.gemm.operands import Output, Side, output_of, side_of
from cuda_agent_backend.codegen.ir.device import MAX_THREADS, WARP, DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.parameters import integer, require
from cuda_agent_backend.codegen.ir.printer import literal
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter
from sandbox.plan.plan import Launch

SKETCH = "short"
MOST_TERMS = 40
"""Terms up to which plain arithmetic takes little longer than writing the results."""
LEAST_RESULTS = 1 << 22
OWN = 8
"""Results of a thread along each side of its tile."""
WORD = 4
"""Elements of the widest access."""
THREADS = 256
RESIDENT = 2
"""Blocks of a multiprocessor, for whose registers a thread's tile leaves room."""
MOST_TURNS = 8
WASTE = 1.35
"""What tiles may compute beside the results, as a factor."""
MAX_GRID = 65535


@dataclass(frozen=True)
class ShortLayout:
    """The schedule's parameters."""

    lanes: int = integer("threads side by side along memory", among=(8, 16, 32))
    threads: int = integer("threads of a block", most=MAX_THREADS)
    turns: int = integer("tiles of a block, one after the other")

    @property
    def fast(self) -> int:
        """Results of a tile along memory."""
        return self.lanes * OWN

    @property
    def slow(self) -> int:
        return self.threads // self.lanes * OWN

    def check(self) -> None:
        """Raises Unsupported where the parameters do not fit each other."""
        if self.threads % WARP:
            raise Unsupported(f"{self.threads} threads, {self.lanes} of them side by side")


def _sizes(found: GemmForm, output: Output) -> tuple[int, int]:
    """Results along memory, and across."""
    return (found.m, found.n) if output.by_rows else (found.n, found.m)


def _covers(found: GemmForm, output: Output) -> bool:
    if found.is_half or found.left.absent or found.right.absent:
        return False
    return not output.across and found.k <= MOST_TERMS and found.batches <= MAX_GRID


def short_schedules(
    kernel: Kernel, found: GemmForm, device: DeviceFacts
) -> list[dict[str, Parameter]]:
    """Schedules worth trying, best first; none where it is not writing that takes the time."""
    output = output_of(kernel, found)
    fast, slow = _sizes(found, output)
    if not _covers(found, output) or found.batches * fast * slow < LEAST_RESULTS:
        return []
    lanes = 16 if output.vector == WORD and slow > OWN * THREADS // WARP else WARP
    layout = ShortLayout(lanes, THREADS, 1)
    across, down = ceildiv(fast, layout.fast), ceildiv(slow, layout.slow)
    if across * layout.fast * down * layout.slow > WASTE * fast * slow:
        return []
    places = RESIDENT * device.sm_count

    def turns_of_all(turns: int) -> tuple[int, int]:
        blocks = found.batches * down * ceildiv(across, turns)
        return ceildiv(blocks, places) * turns, -turns

    best = min(range(1, min(MOST_TURNS, across) + 1), key=turns_of_all)
    return [
        {"sketch": SKETCH, "lanes": lanes, "threads": THREADS, "turns": turns}
        for turns in dict.fromkeys((best, 1))
    ]


@dataclass
class ShortKWriter:
    kernel: Kernel
    found: GemmForm
    region: LoweredRegion
    layout: ShortLayout
    output: Output
    index: str

    def __post_init__(self) -> None:
        c = self.found
        left = side_of("a", c.left, c.rows, c.inner, WORD)
        right = side_of("b", c.right, c.columns, c.inner, WORD)
        self.fast, self.slow = (left, right) if self.output.by_rows else (right, left)

    @property
    def strides(self) -> tuple[int, int]:
        """Floats between terms in shared memory, of the fast and the slow operand; aligned, and in other banks."""
        return self.layout.fast + WORD, self.layout.slow + WORD

    @property
    def shared_bytes(self) -> int:
        fast, slow = self.strides
        return 4 * self.found.k * (2 * fast + slow)

    @property
    def grid(self) -> tuple[int, int, int]:
        fast, slow = _sizes(self.found, self.output)
        groups = ceildiv(ceildiv(fast, self.layout.fast), self.layout.turns)
        return groups * ceildiv(slow, self.layout.slow), max(1, self.found.batches), 1

    def text(self, name: str) -> str:
        found, layout = self.found, self.layout
        fast, slow = _sizes(found, self.output)
        tiles = ceildiv(fast, layout.fast)
        groups = ceildiv(tiles, layout.turns)
        fast_stride, slow_stride = self.strides
        v = self.output.vector
        lines = [
            "extern __shared__ __align__(16) unsigned char shared[];",
            "float* const slow = reinterpret_cast<float*>(shared);",
            f"float* const fast = slow + {found.k * slow_stride};",
            f"const int tx = threadIdx.x % {layout.lanes}, ty = threadIdx.x / {layout.lanes};",
            f"const int slow0 = int(blockIdx.x) / {groups} * {layout.slow};",
            f"const int tile0 = int(blockIdx.x) % {groups} * {layout.turns};",
            f"const int tiles = ca::imin({layout.turns}, {tiles} - tile0);",
            *decompose("int(blockIdx.y)", found.batch, self.index),
            *self._copy("slow", self.slow, layout.slow, slow, slow_stride),
            *self._copy("fast", self.fast, layout.fast, fast, fast_stride),
            "copy_slow(slow, slow0);",
            f"copy_fast(fast, tile0 * {layout.fast});",
            "ca::copy_commit();",
            "for (int turn = 0; turn < tiles; ++turn) {",
            f"  const int fast0 = (tile0 + turn) * {layout.fast};",
            "  if (turn + 1 < tiles)",
            f"    copy_fast(fast + (turn + 1) % 2 * {found.k * fast_stride}, fast0 + {layout.fast});",
            "  ca::copy_commit();",
            "  ca::copy_wait<1>();",
            "  __syncthreads();",
            f"  const float* const own = fast + turn % 2 * {found.k * fast_stride};",
            *indented(self._multiply(v)),
            "  __syncthreads();",
            *indented(self._store(fast, slow, v)),
            "}",
        ]  # fmt: skip
        parameters = parameters_of(self.region, *buffers_of(self.kernel))
        head = f'extern "C" __global__ void __launch_bounds__({layout.threads}, {RESIDENT})'
        return "\n".join([head, f"{name}({', '.join(parameters)}) {{", *indented(lines), "}"])

    def _copy(self, name: str, side: Side, tile: int, size: int, stride: int) -> list[str]:
        """A function that has a slice of an operand copied to shared memory, a term after the other."""
        terms = self.found.k
        x, k = (f"e / {terms}", f"e % {terms}") if side.along_k else (f"e % {tile}", f"e / {tile}")
        guard = f"x < {size}" if size % tile else ""
        find = find_lines(
            side, guard, self.index, lambda b: self.region.buffers[b].dtype, f"find_{name}"
        )
        return [
            *find,
            f"auto copy_{name} = [&](float* to, int start) {{",
            "#pragma unroll 4",
            f"  for (int e = threadIdx.x; e < {terms * tile}; e += {self.layout.threads}) {{",
            f"    const int x = {x}, k = {k};",
            "    bool there;",
            f"    const float* const from = find_{name}(start + x, k, there);",
            f"    ca::copy_async_if<1>(to + k * {stride} + x, from, there);",
            "  }",
            "};",
        ]

    def _multiply(self, v: int) -> list[str]:
        fast_stride, slow_stride = self.strides
        lanes, groups = self.layout.lanes, self.layout.threads // self.layout.lanes
        constant = self.found.constant
        scaled = "" if constant == 1 else f"{literal(repr(constant), torch.float32)} * "
        return [
            f"float sum[{OWN}][{OWN}] = {{}};",
            "#pragma unroll 4",
            f"for (int k = 0; k < {self.found.k}; ++k) {{",
            f"  float x[{OWN}], y[{OWN}];",
            "#pragma unroll",
            f"  for (int i = 0; i < {OWN}; i += {WORD}) {{",
            f"    const auto read = ca::load<{WORD}>(slow + k * {slow_stride} + i * {groups} + ty * {WORD});",
            "#pragma unroll",
            f"    for (int e = 0; e < {WORD}; ++e) x[i + e] = {scaled}read.v[e];",
            "  }",
            "#pragma unroll",
            f"  for (int i = 0; i < {OWN}; i += {v}) {{",
            f"    const auto read = ca::load<{v}>(own + k * {fast_stride} + i * {lanes} + tx * {v});",
            "#pragma unroll",
            f"    for (int e = 0; e < {v}; ++e) y[i + e] = read.v[e];",
            "  }",
            "#pragma unroll",
            f"  for (int i = 0; i < {OWN}; ++i)",
            "#pragma unroll",
            f"    for (int j = 0; j < {OWN}; ++j) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);",
            "}",
        ]

    def _store(self, fast: int, slow: int, v: int) -> list[str]:
        """Results, and what is made of them, from registers; neighbouring lanes store what lies next to each other."""
        layout, groups = self.layout, self.layout.threads // self.layout.lanes
        names = ("row", "column") if self.output.by_rows else ("column", "row")
        inside = [f"{names[0]} < {fast}"] if fast % layout.fast else []
        inside += [f"{names[1]} < {slow}"] if slow % layout.slow else []
        body = [
            f"const int {names[0]} = fast0 + j * {layout.lanes} + tx * {v};",
            f"const int {names[1]} = slow0 + i / {WORD} * {WORD * groups} + ty * {WORD} + i % {WORD};",
            *([f"if (!({' && '.join(inside)})) continue;"] if inside else []),
            "ca::vec<float, L> total;",
            "#pragma unroll",
            "for (int e = 0; e < L; ++e) total.v[e] = sum[i][j + e];",
            *tail_lines(self.kernel, self.found, self.region, self.output, self.index),
        ]
        return [
            f"constexpr int L = {v};",
            "#pragma unroll",
            f"for (int i = 0; i < {OWN}; ++i)",
            "#pragma unroll",
            f"  for (int j = 0; j < {OWN}; j += L) {{",
            *indented(body, "    "),
            "  }",
        ]


def emit_short(
    problem: Problem, found: GemmForm, parameters: Mapping[str, Parameter], name: str
) -> Emitted:
    """Raises Unsupported where the sum has many terms, or the schedule does not fit."""
    kernel, region, device = problem.kernel, problem.region, problem.device
    output = output_of(kernel, found)
    if not _covers(found, output):
        raise Unsupported("a sum of many terms, or of some that are not there")
    layout = require(ShortLayout, parameters)
    layout.check()
    index = "int64_t" if needs_wide(region, kernel) else "int"
    writer = ShortKWriter(kernel, found, region, layout, output, index)
    if writer.shared_bytes > device.shared_per_block_bytes:
        raise Unsupported(f"{writer.shared_bytes} bytes of shared memory")
    reads, writes = buffers_of(kernel)
    block = (layout.threads, 1, 1)
    launch = Launch(name, writer.grid, block, writer.shared_bytes, (*reads, *writes))
    return Emitted((writer.text(name),), (launch,))
