"""The family of loops over steps that tracing wrote out."""

from __future__ import annotations

from cuda_agent_backend.codegen.cuda.reroll.match import step_loop_of
from cuda_agent_backend.codegen.cuda.reroll.writer import SKETCH, CudaStepLoop, LoopParams
from cuda_agent_backend.codegen.family import Generator, TaskFamily
from cuda_agent_backend.codegen.ir.failure import Unsupported
from sandbox.task.task import Task, TaskError


class Reroll(TaskFamily[LoopParams]):
    name = SKETCH
    title = "Loops over steps that tracing wrote out"
    docs = (
        "The first entry of a schedule is the loop's; those of the kernels before it, `before` of them, and of those "
        "behind it follow."
    )
    params = LoopParams

    def analyse(self, task: Task, generator: Generator) -> CudaStepLoop | None:
        """None too where the task is left to kernels that have the loop written out, for whatever reason its graph
        could not be rewritten."""
        try:
            form = step_loop_of(task)
            return None if form is None else CudaStepLoop.of(task, form, generator)
        except (Unsupported, TaskError, RuntimeError, ValueError):
            return None
