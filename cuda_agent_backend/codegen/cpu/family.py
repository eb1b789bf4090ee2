"""The families of kernels for processors."""

from __future__ import annotations

from cuda_agent_backend.codegen.analysis.attention import attention_of, is_attention
from cuda_agent_backend.codegen.cpu.attention import CpuAttention
from cuda_agent_backend.codegen.cpu.params import AttentionParams, LoopNestParams, ProductParams
from cuda_agent_backend.codegen.family import Family, Generator, TaskFamily
from cuda_agent_backend.codegen.ir.failure import NotCovered
from sandbox.task.task import Task


class CpuLoopNests(Family[LoopNestParams]):
    name = "loop nests"
    is_named = False
    title = "Loop nests"
    docs = ""
    params = LoopNestParams


class CpuGemm(Family[ProductParams]):
    name = "product"
    is_named = False
    title = "Matrix products"
    docs = ""
    params = ProductParams


class CpuAttentionFamily(TaskFamily[AttentionParams]):
    name = "attention"
    is_named = False
    title = "Attention"
    docs = ""
    params = AttentionParams
    precedes_rewrites = False

    def analyse(self, task: Task, generator: Generator) -> CpuAttention | NotCovered | None:
        if not is_attention(task):
            return None
        form = attention_of(task)
        return form if isinstance(form, NotCovered) else CpuAttention(task, form)
