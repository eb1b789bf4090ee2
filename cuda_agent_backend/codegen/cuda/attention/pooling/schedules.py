"""How tokens are laid over threads and blocks, and which ways are worth trying, best guess first."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent_backend.codegen.analysis.gemm import points
from cuda_agent_backend.codegen.cuda.attention.pooling.match import PoolingMatch
from cuda_agent_backend.codegen.cuda.common.parts import buffers_of
from cuda_agent_backend.codegen.cuda.gemm.operands import in_vectors
from cuda_agent_backend.codegen.ir.device import WARP, DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.parameters import integer
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter
from cuda_agent_backend.codegen.ir.value_types import WIDE

SKETCH = "weighed"
HELD = 32
"""Features of a token that a thread holds: as many numbers of it, of the query and of the sums."""
IN_FLIGHT = 64
"""Numbers of tokens that a thread has under way."""
MOST_SEGMENTS = 1024
LEAST_TOKENS = 16
"""Of a block."""
CHOICES = (
    (256, 8, 4), (256, 4, 4), (256, 2, 4), (256, 2, 2), (256, 1, 4), (128, 2, 4), (256, 1, 2), (512, 1, 1),
)  # fmt: skip
"""Threads, tokens of a team at a time, and blocks of each multiprocessor; best first."""


@dataclass(frozen=True)
class PoolingBlocks:
    """The schedule's parameters."""

    threads: int = integer("threads of a block", among=(128, 256, 512))
    flight: int = integer("tokens of a thread at a time")
    segments: int = integer("blocks that share the tokens of a batch", most=MOST_SEGMENTS)


@dataclass(frozen=True)
class TokenLayout:
    """Where the features of tokens are. A *team* of neighbouring threads holds a token, each thread some vectors."""

    found: PoolingMatch
    blocks: PoolingBlocks

    @property
    def features(self) -> int:
        return self.found.features[1]

    @property
    def batches(self) -> int:
        return points(self.found.batch)

    @property
    def vector(self) -> int:
        """Features that a thread loads at a time."""
        places = [index for _, index in (self.found.token, self.found.query)]
        return next((v for v in (4, 2) if in_vectors(self.found.features, places, v)), 1)

    @property
    def team(self) -> int:
        """Threads of a token."""
        vectors = ceildiv(self.features, self.vector)
        return min(WARP, 1 << (vectors - 1).bit_length())

    @property
    def chunks(self) -> int:
        """Vectors of a thread."""
        return ceildiv(self.features, self.team * self.vector)

    @property
    def teams(self) -> int:
        """Of a block."""
        return self.blocks.threads // self.team

    def check(self, region: LoweredRegion) -> None:
        """Raise Unsupported where the parameters do not fit the tokens, or there are too many elements."""
        held = self.chunks * self.vector
        if not 1 <= self.blocks.flight <= max(1, IN_FLIGHT // held):
            raise Unsupported(f"{self.blocks.flight} tokens under way")
        if held > HELD:
            raise Unsupported(f"tokens of {self.features} features")
        reads, writes = buffers_of(self.found.tail)
        reads += [*buffers_of(self.found.score)[0], self.found.token[0], self.found.query[0]]
        if max(region.buffers[b].extent for b in (*reads, *writes)) >= WIDE:
            raise Unsupported("tensors of so many elements")


def attention_pooling_schedules(
    found: PoolingMatch, region: LoweredRegion, device: DeviceFacts, most: int
) -> list[dict[str, Parameter]]:
    """Up to ``most`` schedules that fit, best guess first: blocks that are at work at once, or a few times as many."""
    chosen: list[dict[str, Parameter]] = []
    for threads, flight, resident in CHOICES:
        segments = max(1, resident * device.sm_count // points(found.batch))
        segments = min(segments, ceildiv(found.tokens[1], LEAST_TOKENS))
        if segments > MOST_SEGMENTS:
            continue
        try:
            TokenLayout(found, PoolingBlocks(threads, flight, segments)).check(region)
        except Unsupported:
            continue
        one: dict[str, Parameter] = {"sketch": SKETCH, "threads": threads, "flight": flight}
        one["segments"] = segments
        if one not in chosen:
            chosen.append(one)
    return chosen[:most]
