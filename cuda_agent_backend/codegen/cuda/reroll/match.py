"""Tasks that are a loop over steps: what is computed before it, and the loop as stages over steps and lanes.

A *lane* is an element of the states that steps hand on. All that a step does is done at its lanes, or once for those
that a reduction joins; what goes from stage to stage, and from step to step, is at hand there and goes through no
memory. Whatever is reduced, multiplied as matrices or costly before the loop is computed before it, once.
"""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Graph

from cuda_agent_backend.codegen.cuda.reroll.form import StepLoop
from cuda_agent_backend.codegen.cuda.reroll.graph import rolled
from cuda_agent_backend.codegen.cuda.reroll.split import LoopSplit
from cuda_agent_backend.codegen.ir.failure import Unsupported
from sandbox.graph.build import build_graph
from sandbox.task.task import Task


def step_loop_of(task: Task) -> StepLoop | None:
    """The form that ``task`` is, None where it is no loop.

    Raises:
        Unsupported: a loop that does not go through lanes, with the reason.
    """
    if not any(node.name == "cat" for node in task.nodes):
        return None
    try:
        return _form(task, apart=False)
    except Unsupported:
        return _form(task, apart=True)


def _form(task: Task, *, apart: bool) -> StepLoop | None:
    """apart: whether what reads the loop's results is computed behind it, from memory."""
    graph: Graph = build_graph(replace(task, target="cpu")).graph
    found = rolled(graph)
    return None if found is None else LoopSplit(task, graph, found).form(apart=apart)
