"""The family of recurrent layers."""

from __future__ import annotations

from cuda_agent_backend.codegen.cuda.recurrent.match import is_recurrent, recurrent_of
from cuda_agent_backend.codegen.cuda.recurrent.schedules import RecurrentBlocks
from cuda_agent_backend.codegen.cuda.recurrent.writer import CudaRecurrent
from cuda_agent_backend.codegen.family import Generator, TaskFamily
from sandbox.task.task import Task


class RecurrentLayers(TaskFamily[RecurrentBlocks]):
    name = "recurrent layers"
    is_named = False
    title = "Recurrent layers"
    docs = ""
    params = RecurrentBlocks

    def analyse(self, task: Task, generator: Generator) -> CudaRecurrent | None:
        return CudaRecurrent(task, recurrent_of(task)) if is_recurrent(task) else None
