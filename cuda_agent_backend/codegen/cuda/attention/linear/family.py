"""The family of rows mixed by scores: attention without its softmax."""

from __future__ import annotations

from cuda_agent_backend.codegen.cuda.attention.linear.match import linear_attention_of
from cuda_agent_backend.codegen.cuda.attention.linear.schedules import LinearBlocks
from cuda_agent_backend.codegen.cuda.attention.linear.writer import CudaLinearAttention
from cuda_agent_backend.codegen.family import Generator, TaskFamily
from sandbox.task.task import Task


class LinearAttention(TaskFamily[LinearBlocks]):
    name = "mixing by scores"
    is_named = False
    title = "Rows mixed by scores, without a softmax"
    docs = "A second kernel adds up what the parts of a row's keys came to, always in one order."
    params = LinearBlocks
    like = "attention"
    precedes_rewrites = True

    def analyse(self, task: Task, generator: Generator) -> CudaLinearAttention | None:
        form = linear_attention_of(task)
        return None if form is None else CudaLinearAttention(task, form)
