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
from cuda_agent_backend.codegen.cuda.common.lane_printer import local_reader, memory_printer
from cuda_agent_backend.codegen.cuda.common.parts import (
    Emitted,
    buffers_of,
    local_types,
    parameters_of,
    temporary,
)
from cuda_agent_backend.codegen.cuda.common.templates import filled
from cuda_agent_backend.codegen.cuda.common.text import decompose, kernel_text
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.parameters import require
from cuda_agent_backend.codegen.ir.printer import c_index
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter
from sandbox.plan.plan import Launch

JOINING = 256
SUMMING, COMBINING, SCALING = (
    f"cuda/attention/pooling/{name}.cuh" for name in ("sum_tokens", "combine_blocks", "scaling")
)


def emit_attention_pooling(
    found: PoolingMatch, region: LoweredRegion, parameters: Mapping[str, Parameter], name: str
) -> Emitted:
    """Both kernels, the first called ``name``. Raises Unsupported where the schedule does not fit."""
    blocks = require(PoolingBlocks, parameters)
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
        last, out = value, list[str]()
        printer = memory_printer(self.region, local_reader(made))
        for number, stage in enumerate(kernel.stages):
            out += printer.lines(stage.body, f"s{number}v")
            last = f"s{number}v{stage.body.results[0].number}"
            out += [printer.store(s.buffer, s.index, last) for s in stage.stores]
            made |= {s.buffer: f"ca::to<{types[s.buffer]}>({last})" for s in stage.local_stores}
        return out, last

    def _summing(self) -> tuple[str, Launch]:
        """The kernel whose blocks add up tokens, all of a team's turn being read before the first is added."""
        found, blocks, layout = self.found, self.blocks, self.layout
        (token, at), (query, where) = found.token, found.query
        zero: dict[sympy.Symbol, sympy.Expr] = {found.features[0]: sympy.S.Zero}
        top, mass, part = self._partial
        symbol, count = found.tokens
        made, score = self._printed(found.score, HIDDEN[0], "total")
        body = filled(
            SUMMING,
            vector=layout.vector,
            chunks=layout.chunks,
            team=layout.team,
            teams=layout.teams,
            flight=blocks.flight,
            features=layout.features,
            segments=blocks.segments,
            threads=blocks.threads,
            tokens=count,
            size=ceildiv(count, blocks.segments),
            batch_loops=decompose("batch", found.batch, "int"),
            scaling=filled(SCALING),
            query=f"m_{query} + {c_index(where.xreplace(zero))}",
            token=str(symbol),
            place=f"m_{token} + {c_index(at.xreplace(zero))}",
            score_lines=made,
            score=score,
            # Weights that add up to no more than one, as eager's do: a sum by them overflows where its result does.
            # What they add up to has the same power of two.
            least=repr(0.5 ** count.bit_length()),
            top=top,
            mass=mass,
            part=part,
        )
        reads = sorted({token, query, *buffers_of(found.score)[0]})
        parameters = [*parameters_of(self.region, reads, []), *self._pointers("")]
        shared = 4 * (2 * layout.teams + layout.teams * layout.features)
        grid, args = (layout.batches * blocks.segments, 1, 1), (*reads, *self._partial)
        launch = Launch(self.name, grid, (blocks.threads, 1, 1), shared, args)
        return kernel_text(self.name, blocks.threads, parameters, body), launch

    def _joining(self) -> tuple[str, Launch]:
        """The kernel that combines what blocks came to: a thread for each result."""
        found, layout = self.found, self.layout
        top, mass, part = self._partial
        elements, name = layout.batches * layout.features, f"{self.name}_join"
        made, _ = self._printed(found.tail, HIDDEN[1], "total")
        body = filled(
            COMBINING,
            features=layout.features,
            threads=JOINING,
            elements=elements,
            feature=str(found.features[0]),
            batch_loops=decompose("batch", found.batch, "int"),
            scaling=filled(SCALING),
            segments=self.blocks.segments,
            top=top,
            mass=mass,
            part=part,
            tail_lines=made,
        )
        reads, writes = buffers_of(found.tail)
        parameters = [
            *parameters_of(self.region, reads, []),
            *self._pointers("const "),
            *parameters_of(self.region, [], writes),
        ]
        args = (*reads, *self._partial, *writes)
        launch = Launch(name, (ceildiv(elements, JOINING), 1, 1), (JOINING, 1, 1), 0, args)
        return kernel_text(name, JOINING, parameters, body), launch

    def _pointers(self, const: str) -> list[str]:
        return [f"{const}float* __restrict__ {name}" for name in self._partial]
