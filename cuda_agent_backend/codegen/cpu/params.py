"""The parameters of schedules for processors."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent_backend.codegen.ir.parameters import integer, string, switch

MAX_WRITTEN_OUT = 64
"""Of a width and of vectors in flight: each is written out, so a huge number would be a source of megabytes."""
WIDTHS = "lanes of one vector: 8 floats with AVX2, 16 with AVX-512"


@dataclass(frozen=True)
class LoopNestParams:
    """Of a kernel made of loop nests."""

    lanes: str = string(
        '"inner": lanes run along the innermost loop of each stage, and a row\'s reduction ends across lanes; "outer": '
        "lanes run along the last row dimension, one row in each lane (rows next to each other in memory)",
        among=("inner", "outer"),
        default="inner",
    )
    width: int = integer(WIDTHS, most=MAX_WRITTEN_OUT, default=8, fixed=True)
    unroll: int = integer(
        'vectors in flight: accumulators ("inner"), or neighbouring vectors of rows ("outer")',
        most=MAX_WRITTEN_OUT,
        default=1,
    )
    ahead: int = integer(
        'elements ahead of a row\'s first reading that are fetched into the cache ("inner"; 0: none). Rows end where '
        "pages do, and there the processor's own prefetcher stops",
        least=0,
        default=0,
    )
    stream: int = switch(
        "1: outputs that the kernel does not read back go past the caches",
        default=0,
        flips=True,
    )
    threads: int = switch(
        "0: one thread runs everything, where starting the others costs more than the work (all kernels alike)",
        default=1,
    )
    chunk: int = integer(
        "longest piece of the innermost loop handed to one thread (maps only)", default=16384
    )


@dataclass(frozen=True)
class ProductParams:
    """Of a matrix product with its pointwise tail."""

    rows: int = integer(
        "rows of A that a thread takes at a time (its share of A should stay in the second cache)",
        default=96,
    )
    width: int = integer(WIDTHS, most=MAX_WRITTEN_OUT, default=8, fixed=True)
    threads: int = switch("as loop nests have it", default=1)


@dataclass(frozen=True)
class AttentionParams:
    """Of an attention."""

    rows: int = integer("queries that a thread takes at a time", default=128)
    keys: int = integer("keys of a block", default=256)
    width: int = integer(WIDTHS, most=MAX_WRITTEN_OUT, default=8, fixed=True)
