"""Attention pooling -> CUDA that reads each token once.

One kernel takes the place of three: blocks share the tokens of a batch, and add them up by weights relative to the
highest score so far (an online softmax). Sums are scaled whenever a higher score is met. A second kernel combines what
the blocks came to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy
import torch

from cuda_agent_backend.codegen.cuda.attention.pooling.match import HIDDEN, PoolingMatch
from cuda_agent_backend.codegen.cuda.attention.pooling.schedules import PoolingBlocks, TokenLayout
from cuda_agent_backend.codegen.cuda.common.access import LanePrinter, local_reader
from cuda_agent_backend.codegen.cuda.common.parts import (
    Emitted,
    buffers_of,
    local_types,
    parameters_of,
    temporary,
)
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented, kernel_text
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.parameters import read
from cuda_agent_backend.codegen.ir.printer import c_index
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter
from sandbox.plan.plan import Launch

JOINING = 256
FACTOR = [
    # what is scaled to one top, scaled to another: 0 where there was nothing, NaN where a top is none or infinite
    "auto factor = [](float from, float to) {",
    "  return ca::exp(ca::splat<float, 1>(from - (to == -INFINITY ? 0.f : to))).v[0];",
    "};",
    "auto higher = [](float a, float b) { return a > b ? a : b >= a ? b : NAN; };",
]


def emit_attention_pooling(
    found: PoolingMatch, region: LoweredRegion, parameters: Mapping[str, Parameter], name: str
) -> Emitted:
    """Both kernels, the first called ``name``. Raises Unsupported where the schedule does not fit."""
    blocks = read(PoolingBlocks, parameters)
    if isinstance(blocks, NotCovered):
        raise Unsupported(blocks.reason)
    layout = TokenLayout(found, blocks)
    layout.check(region)
    return _PoolingWriter(found, region, blocks, layout, name).emit()


@dataclass(frozen=True)
class _PoolingWriter:
    """Writes both kernels."""

    found: PoolingMatch
    region: LoweredRegion
    blocks: PoolingBlocks
    layout: TokenLayout
    name: str

    @property
    def _partial(self) -> dict[str, int]:
        """Buffers between the kernels, with their sizes: of each block the highest score, and sums relative to it."""
        count = self.layout.batches * self.blocks.segments
        sizes = {"top": count, "mass": count, "part": count * self.layout.features}
        return {f"{self.name}_{name}": size for name, size in sizes.items()}

    # --- text ---

    def emit(self) -> Emitted:
        made = tuple(temporary(n, torch.float32, size) for n, size in self._partial.items())
        (text, launch), (joined, joining) = self._summing(), self._joining()
        return Emitted((text, joined), (launch, joining), made)

    def _printed(self, kernel: Kernel, hidden: str, value: str) -> tuple[list[str], str]:
        """Stages on one value, and the name of the last one's."""
        types, made = local_types(kernel), {hidden: value}
        buffers, last, out = self.region.buffers, value, list[str]()
        printer = LanePrinter(
            None, lambda b: f"m_{b}", local_reader(made), lambda b: buffers[b].dtype, "", 1
        )
        for number, stage in enumerate(kernel.stages):
            out += printer.lines(stage.body, f"s{number}v")
            last = f"s{number}v{stage.body.results[0].number}"
            out += [printer.store(s.buffer, s.index, last) for s in stage.stores]
            made |= {s.buffer: f"ca::to<{types[s.buffer]}>({last})" for s in stage.local_stores}
        return out, last

    def _summing(self) -> tuple[str, Launch]:
        w, b = self.found, self.blocks
        (token, at), (query, where) = w.token, w.query
        zero: dict[sympy.Symbol, sympy.Expr] = {w.features[0]: sympy.S.Zero}
        size = ceildiv(w.tokens[1], b.segments)
        body = [
            f"constexpr int L = 1, V = {self.layout.vector}, chunks = {self.layout.chunks}, team = {self.layout.team};",
            f"constexpr int teams = {self.layout.teams}, flight = {b.flight}, features = {self.layout.features};",
            "extern __shared__ __align__(16) unsigned char shared[];",
            "float* const memory = reinterpret_cast<float*>(shared);",
            f"const int segment = blockIdx.x % {b.segments}, batch = blockIdx.x / {b.segments};",
            "const int member = threadIdx.x % team, own = threadIdx.x / team;",
            f"const int begin = segment * {size}, end = min({w.tokens[1]}, begin + {size});",
            *decompose("batch", w.batch, "int"),
            *FACTOR,
            "ca::vec<float, V> query[chunks], sum[chunks];",
            "#pragma unroll",
            "for (int c = 0; c < chunks; ++c) {",
            "  const int f = (c * team + member) * V;",
            "  query[c] = sum[c] = ca::splat<float, V>(0.f);",
            f"  if (f < features) query[c] = ca::load<V>(m_{query} + {c_index(where.xreplace(zero))} + f);",
            "}",
            "float top = -INFINITY, mass = 0.f;",
            "#pragma unroll 1",
            "for (int first = begin; first < end; first += teams * flight) {",
            *indented(self._turn(f"m_{token} + {c_index(at.xreplace(zero))}")),
            "}",
            *self._left(),
        ]
        reads = sorted({token, query, *buffers_of(w.score)[0]})
        parameters = [*parameters_of(self.region, reads, []), *self._pointers("")]
        shared = 4 * (2 * self.layout.teams + self.layout.teams * self.layout.features)
        grid = (self.layout.batches * b.segments, 1, 1)
        args = (*reads, *self._partial)
        launch = Launch(self.name, grid, (b.threads, 1, 1), shared, args)
        return kernel_text(self.name, b.threads, parameters, body), launch

    def _turn(self, place: str) -> list[str]:
        """Some tokens of a team: all are read before the first is added."""
        token, count = self.found.tokens
        # Weights that add up to no more than one, as eager's do: a sum by them overflows where its result does. What
        # they add up to has the same power of two.
        least = 0.5 ** count.bit_length()
        made, score = self._printed(self.found.score, HIDDEN[0], "total")
        return [
            "ca::vec<float, V> x[flight][chunks];",
            "#pragma unroll",
            "for (int u = 0; u < flight; ++u) {",
            f"  const int {token} = min(first + u * teams + own, end - 1);",
            f"  const float* const from = {place};",
            "#pragma unroll",
            "  for (int c = 0; c < chunks; ++c) {",
            "    const int f = (c * team + member) * V;",
            "    x[u][c] = ca::splat<float, V>(0.f);",
            "    if (f < features) x[u][c] = ca::load<V>(from + f);",
            "  }",
            "}",
            "#pragma unroll",
            "for (int u = 0; u < flight; ++u) {",
            "  float found = 0.f;",
            "#pragma unroll",
            "  for (int c = 0; c < chunks; ++c)",
            "#pragma unroll",
            "    for (int e = 0; e < V; ++e)",
            "      if ((c * team + member) * V < features) found = fmaf(x[u][c].v[e], query[c].v[e], found);",
            "#pragma unroll",
            "  for (int away = team / 2; away > 0; away /= 2) found += __shfl_xor_sync(~0u, found, away);",
            f"  const int {token} = first + u * teams + own;",
            f"  if ({token} >= end) continue;",
            "  const auto total = ca::splat<float, 1>(found);",
            *indented(made),
            f"  const float score = ca::to<float>({score}).v[0];",
            "  if (!(score <= top)) {",
            "    const float risen = higher(top, score), by = factor(top, risen);",
            "    top = risen;",
            "    mass *= by;",
            "#pragma unroll",
            "    for (int c = 0; c < chunks; ++c)",
            "#pragma unroll",
            "      for (int e = 0; e < V; ++e) sum[c].v[e] *= by;",
            "  }",
            f"  const float weight = factor(score, top) * {least!r}f;",
            "  mass += weight;",
            "#pragma unroll",
            "  for (int c = 0; c < chunks; ++c)",
            "#pragma unroll",
            "    for (int e = 0; e < V; ++e) sum[c].v[e] = fmaf(weight, x[u][c].v[e], sum[c].v[e]);",
            "}",
        ]

    def _left(self) -> list[str]:
        """What all teams came to, to memory."""
        top, mass, part = self._partial
        return [
            "float* const tops = memory;",
            "float* const masses = memory + teams;",
            "float* const sums = memory + 2 * teams;",
            "if (member == 0) { tops[own] = top; masses[own] = mass; }",
            "#pragma unroll",
            "for (int c = 0; c < chunks; ++c)",
            "#pragma unroll",
            "  for (int e = 0; e < V; ++e) {",
            "    const int f = (c * team + member) * V + e;",
            "    if (f < features) sums[own * features + f] = sum[c].v[e];",
            "  }",
            "__syncthreads();",
            "top = tops[0];",
            "for (int k = 1; k < teams; ++k) top = higher(top, tops[k]);",
            f"for (int f = threadIdx.x; f < features; f += {self.blocks.threads}) {{",
            "  float all = 0.f;",
            "  for (int k = 0; k < teams; ++k) all = fmaf(factor(tops[k], top), sums[k * features + f], all);",
            f"  {part}[blockIdx.x * features + f] = all;",
            "}",
            "if (threadIdx.x == 0) {",
            "  mass = 0.f;",
            "  for (int k = 0; k < teams; ++k) mass = fmaf(factor(tops[k], top), masses[k], mass);",
            f"  {top}[blockIdx.x] = top;",
            f"  {mass}[blockIdx.x] = mass;",
            "}",
        ]

    def _joining(self) -> tuple[str, Launch]:
        """A thread for each result."""
        w, count = self.found, self.blocks.segments
        top, mass, part = self._partial
        elements, name = self.layout.batches * self.layout.features, f"{self.name}_join"
        made, _ = self._printed(w.tail, HIDDEN[1], "total")
        body = [
            f"constexpr int L = 1, features = {self.layout.features};",
            f"const int at = blockIdx.x * {JOINING} + threadIdx.x;",
            f"if (at >= {elements}) return;",
            f"const int batch = at / features, {w.features[0]} = at % features;",
            *decompose("batch", w.batch, "int"),
            *FACTOR,
            "float top = -INFINITY, mass = 0.f, all = 0.f;",
            f"for (int k = 0; k < {count}; ++k) top = higher(top, {top}[batch * {count} + k]);",
            "#pragma unroll 4",
            f"for (int k = 0; k < {count}; ++k) {{",
            f"  const int block = batch * {count} + k;",
            f"  const float by = factor({top}[block], top);",
            f"  mass = fmaf(by, {mass}[block], mass);",
            f"  all = fmaf(by, {part}[block * features + {w.features[0]}], all);",
            "}",
            "const auto total = ca::splat<float, 1>(all / mass);",
            *made,
        ]
        reads, writes = buffers_of(w.tail)
        parameters = [
            *parameters_of(self.region, reads, []),
            *self._pointers("const "),
            *parameters_of(self.region, [], writes),
        ]
        launch = Launch(
            name,
            (ceildiv(elements, JOINING), 1, 1),
            (JOINING, 1, 1),
            0,
            (*reads, *self._partial, *writes),
        )
        return kernel_text(name, JOINING, parameters, body), launch

    def _pointers(self, const: str) -> list[str]:
        return [f"{const}float* __restrict__ {name}" for name in self._partial]
