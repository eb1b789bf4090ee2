"""The family of scatters."""

from __future__ import annotations

from cuda_agent_backend.codegen.cuda.scatter.match import has_scatter, scatter_of
from cuda_agent_backend.codegen.cuda.scatter.schedules import ScatterParams
from cuda_agent_backend.codegen.cuda.scatter.writer import CudaScatter
from cuda_agent_backend.codegen.family import Generator, TaskFamily
from sandbox.task.task import Task


class ScatterFamily(TaskFamily[ScatterParams]):
    name = "scatter"
    is_named = False
    title = "Scatters"
    docs = "Values that are made for the scatter alone are made where they are joined."
    params = ScatterParams

    def analyse(self, task: Task, generator: Generator) -> CudaScatter | None:
        if not has_scatter(task):
            return None
        return CudaScatter.of(task, scatter_of(task), generator.nests)
