"""The families of attention, in float32 and in half precision."""

from __future__ import annotations

import torch

from cuda_agent_backend.codegen.analysis.attention import (
    Attention,
    attention_of,
    is_attention,
    written_out_attention_of,
)
from cuda_agent_backend.codegen.cuda.attention.float32.schedules import AttentionBlocks
from cuda_agent_backend.codegen.cuda.attention.float32.writer import CudaAttention
from cuda_agent_backend.codegen.cuda.attention.half.schedules import HalfBlocks
from cuda_agent_backend.codegen.cuda.attention.half.writer import CudaHalfAttention
from cuda_agent_backend.codegen.family import Generator, TaskFamily
from cuda_agent_backend.codegen.ir.failure import NotCovered
from sandbox.task.task import Task


class Float32Attention(TaskFamily[AttentionBlocks]):
    name = "attention"
    is_named = False
    title = "Attention"
    docs = ""
    params = AttentionBlocks
    precedes_rewrites = True

    def analyse(self, task: Task, generator: Generator) -> CudaAttention | NotCovered | None:
        form = _form_of(task)
        if isinstance(form, NotCovered):
            return form
        return CudaAttention(task, form) if form and form.dtype == torch.float32 else None


class HalfAttention(TaskFamily[HalfBlocks]):
    name = "attention in half precision"
    is_named = False
    title = "Attention in half precision"
    docs = ""
    params = HalfBlocks

    def analyse(self, task: Task, generator: Generator) -> CudaHalfAttention | NotCovered | None:
        form = _form_of(task)
        if isinstance(form, NotCovered):
            return form
        return CudaHalfAttention(task, form) if form and form.dtype != torch.float32 else None


def _form_of(task: Task) -> Attention | NotCovered | None:
    """As torch's operator or written out; None where a task is neither."""
    return attention_of(task) if is_attention(task) else written_out_attention_of(task)
