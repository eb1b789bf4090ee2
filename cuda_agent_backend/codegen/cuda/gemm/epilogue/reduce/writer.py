"""GEMMs -> CUDA on tensor cores, reduced in the tile that a block has summed up (see `match`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.common.text import indented
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.directions import (
    Direction,
    shape_of,
    vector_of,
)
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.line_reductions import LineReductions
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.match import ReduceMatch
from cuda_agent_backend.codegen.cuda.gemm.operands import Output
from cuda_agent_backend.codegen.cuda.gemm.tiles import Tiles, read_tiles
from cuda_agent_backend.codegen.cuda.gemm.tma_boxes import in_batches
from cuda_agent_backend.codegen.cuda.gemm.writer import GemmWriter
from cuda_agent_backend.codegen.ir.banded import ALL
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Parameter

SKETCH = "contract_reduce"


@dataclass
class ReduceEpilogueWriter(GemmWriter):
    """Writes a GEMM that ends in reductions, in one direction or one after the other in both."""

    directions: tuple[Direction, ...] = ()

    def __post_init__(self) -> None:
        if self.tiles.uses_tma and in_batches(self.gemm) != self.gemm:
            raise Unsupported("boxes of an operand whose reduced loops lie apart")
        if self.tiles.split != 1 or self.tiles.last_wave:
            raise Unsupported("a split sum that is reduced in its tile")
        if self.tiles.banded:
            raise Unsupported("terms left out of a sum that is reduced in its tile")
        super().__post_init__()
        if self._scales and self.gemm.is_quantized:
            raise Unsupported("a sum of scaled codes that is reduced in its tile")
        self.needed = ALL

    def _output(self) -> Output:
        """The first direction's lines lie in shared memory as they are reduced."""
        first = self.directions[0]
        return Output(first.by_rows, vector_of(first))

    def store_tail(self) -> list[str]:
        """The reductions of a block's tile of results."""
        lines = [LineReductions(self, one) for one in self.directions]
        out = [*self._kept(), *self._exact()]
        out.append("const int own = threadIdx.x - first_thread;")
        for number, one in enumerate(lines):
            if number and self._anew:  # the next reads what the one before worked out anew
                out.append(self.meeting)
            # scopes of their own, as directions name the same things
            text = one.text(anew=self._anew and not number)
            out += text if len(lines) == 1 else ["{", *indented(text), "}"]
        return out

    def _kept(self) -> list[str]:
        """The results to memory, where something else needs them."""
        stages = [s for n, s in enumerate(self.kernel.stages) if s.kind == "map" or not n]
        if not any(s.stores for s in stages):
            return []
        product = replace(self.kernel, stages=tuple(stages))
        plain = GemmWriter(product, self.gemm, self.region, self.tiles, self.name, self.device)
        plain.output = self.output
        # a thread that works a sum out anew must not overtake one that stores it
        meeting = [self.meeting] if self._anew else []
        return ["{", *indented(plain.store_tail()), "}", *meeting]


def reduce_epilogue_writer(
    reducing: ReduceMatch, tiles: Tiles, device: DeviceFacts, name: str = "k"
) -> ReduceEpilogueWriter:
    """Of the product's kernel under these tiles. Raises Unsupported where they do not fit."""
    region, kernels = reducing.in_tiles(shape_of(tiles))
    kernel, c = kernels[reducing.number], reducing.gemm
    return ReduceEpilogueWriter(kernel, c, region, tiles, name, device, reducing.directions)


def emit_reduce_epilogue(
    reducing: ReduceMatch, parameters: Mapping[str, Parameter], name: str, device: DeviceFacts
) -> Emitted:
    """The product of ``reducing``. Raises Unsupported where the schedule does not fit."""
    return reduce_epilogue_writer(reducing, read_tiles(parameters), device, name).emit()
