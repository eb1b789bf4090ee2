"""The families of kernels for processors."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent_backend.codegen.analysis.attention import attention_of, is_attention
from cuda_agent_backend.codegen.cpu.attention import CpuAttention
from cuda_agent_backend.codegen.family import Family, Generator, TaskFamily
from cuda_agent_backend.codegen.ir.parameters import integer, string, switch
from sandbox.task.task import Task

WIDTHS = "lanes of one vector: 8 floats with AVX2, 16 with AVX-512"


@dataclass(frozen=True)
class LoopNestParams:
    lanes: str = string(
        '"inner": lanes run along the innermost loop of each stage, and a row\'s reduction ends across lanes; "outer": '
        "lanes run along the last row dimension, one row in each lane (rows next to each other in memory)",
        among=("inner", "outer"),
        default="inner",
    )
    width: int = integer(WIDTHS, default=8)
    unroll: int = integer(
        'vectors in flight: accumulators ("inner"), or neighbouring vectors of rows ("outer")',
        default=1,
    )
    ahead: int = integer(
        'elements ahead of a row\'s first reading that are fetched into the cache ("inner"; 0: none). Rows end where '
        "pages do, and there the processor's own prefetcher stops",
        least=0,
        default=0,
    )
    stream: int = switch(
        "1: outputs that the kernel does not read back go past the caches", default=0
    )
    threads: int = switch(
        "0: one thread runs everything, where starting the others costs more than the work (all kernels alike)",
        default=1,
    )
    chunk: int = integer(
        "longest piece of the innermost loop handed to one thread (maps only)", default=1
    )


@dataclass(frozen=True)
class ProductParams:
    rows: int = integer(
        "rows of A that a thread takes at a time (its share of A should stay in the second cache)"
    )
    width: int = integer(WIDTHS, default=8)
    threads: int = switch("as loop nests have it", default=1)


@dataclass(frozen=True)
class AttentionParams:
    rows: int = integer("queries that a thread takes at a time", default=128)
    keys: int = integer("keys of a block", default=256)
    width: int = integer(WIDTHS, default=8)


class LoopNestsOfProcessors(Family[LoopNestParams]):
    name = "loop nests"
    is_named = False
    title = "Loop nests"
    docs = ""
    params = LoopNestParams


class ProductOfProcessors(Family[ProductParams]):
    name = "product"
    is_named = False
    title = "Matrix products"
    docs = ""
    params = ProductParams


class AttentionOfProcessors(TaskFamily[AttentionParams]):
    name = "attention"
    is_named = False
    title = "Attention"
    docs = ""
    params = AttentionParams
    precedes_rewrites = False

    def analyse(self, task: Task, generator: Generator) -> CpuAttention | None:
        return CpuAttention(task, attention_of(task)) if is_attention(task) else None
