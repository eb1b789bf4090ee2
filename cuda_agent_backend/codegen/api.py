"""What the rest of the backend asks of sketches: analyse a task, propose schedules, generate a candidate."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from cuda_agent_backend.codegen.alternatives import Alternatives
from cuda_agent_backend.codegen.analysis.attention import (
    Attention,
    attention_of,
    composed_of,
    is_attention,
)
from cuda_agent_backend.codegen.bugs import attempt_for
from cuda_agent_backend.codegen.covered_task import Analysis, offered
from cuda_agent_backend.codegen.cpu.attention import CpuAttention
from cuda_agent_backend.codegen.cuda.attention.float32 import CudaAttention
from cuda_agent_backend.codegen.cuda.attention.half import CudaHalfAttention
from cuda_agent_backend.codegen.cuda.attention.linear.match import mixing_of
from cuda_agent_backend.codegen.cuda.attention.linear.writer import CudaMixing
from cuda_agent_backend.codegen.cuda.common.dependent_launch import chained
from cuda_agent_backend.codegen.cuda.recurrent.match import is_recurrent, recurrent_of
from cuda_agent_backend.codegen.cuda.recurrent.writer import CudaRecurrent
from cuda_agent_backend.codegen.cuda.reroll.match import rolled_of
from cuda_agent_backend.codegen.cuda.reroll.writer import CudaRolled
from cuda_agent_backend.codegen.cuda.scatter.match import has_scatter, scatter_of
from cuda_agent_backend.codegen.cuda.scatter.writer import CudaScatter
from cuda_agent_backend.codegen.cuda.sort.match import is_sorting, sorting_of
from cuda_agent_backend.codegen.cuda.sort.select import CudaSelection
from cuda_agent_backend.codegen.cuda.sort.writer import CudaSort
from cuda_agent_backend.codegen.guarded import Guarded
from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts, gpu_facts
from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.loop_nests import LOWERING, LoopNests, loop_nests_of, nests_of
from cuda_agent_backend.rewrite.forms import Form, forms
from sandbox.plan.candidate import Candidate, Language
from sandbox.plan.plan import PlanError
from sandbox.task.task import Task, TaskError

APART = "apart"
"""What schedules are marked with whose products do not store across their loops, where others do."""


@lru_cache(maxsize=256)
def _analyse(text: str) -> Analysis | NotCovered:
    task = Task.from_json(text)
    found = as_it_stands(task)
    rewritten = forms(task)
    # a kernel for all of it, which no rewritten form has that needs its products
    if isinstance(found, CudaAttention | CudaMixing) and not any(f.guards for f in rewritten):
        return found
    tried = [(form.name, _rewritten(task, form)) for form in rewritten]
    ways = [(name, way) for name, way in tried if not isinstance(way, NotCovered)]
    own = () if isinstance(found, NotCovered) else (("", found),)
    apart = found.without_stored_products() if isinstance(found, LoopNests) else None
    every = (*ways, *own, *(((APART, apart),) if apart else ()))
    return Alternatives(task, every) if len(every) > len(own) else found


def _rewritten(task: Task, form: Form) -> Analysis | NotCovered:
    if not form.guards:
        return as_it_stands(form.task)
    try:
        return Guarded(task, loop_nests_of(form.task), loop_nests_of(task), form.guards)
    except Unsupported as error:
        return NotCovered(str(error))


def as_it_stands(task: Task) -> Analysis | NotCovered:
    """The form in which a sketch covers ``task``, without rewriting it."""
    try:
        if is_attention(task):
            return _attention(task, attention_of(task))
        if (composed := composed_of(task)) is not None:
            return _attention(task, composed)
        if (mixing := mixing_of(task)) is not None:
            return CudaMixing(task, mixing)
        if has_scatter(task):
            return CudaScatter.of(task, scatter_of(task), nests_of)
        if is_sorting(task) and task.target == "cuda":
            form = sorting_of(task)
            return CudaSelection(task, form) if form.selects else CudaSort(task, form)
        if is_recurrent(task) and task.target == "cuda":
            return CudaRecurrent(task, recurrent_of(task))
        if task.target == "cuda" and (loop := _loop(task)) is not None:
            return loop
        return loop_nests_of(task)
    except Unsupported as error:
        return NotCovered(str(error))


def _loop(task: Task) -> CudaRolled | None:
    """The task as a loop over steps; None where it is none, or is left to kernels that have it written out.

    That is so for whatever reason its graph could not be rewritten.
    """
    try:
        form = rolled_of(task)
        return None if form is None else CudaRolled.of(task, form, nests_of)
    except (Unsupported, TaskError, RuntimeError, ValueError):
        return None


def _attention(task: Task, form: Attention) -> Analysis:
    if task.target == "cpu":
        return CpuAttention(task, form)
    kind = CudaAttention if form.dtype == torch.float32 else CudaHalfAttention
    return kind(task, form)


def analyse(task: Task) -> Analysis | NotCovered:
    """The forms in which sketches cover ``task``, rewritten ones included; the reason where none does."""
    if any(math.prod(s.shape) == 0 for s in (*task.inputs, *task.output_specs)):
        return NotCovered("a tensor without elements")
    with LOWERING:
        return _analyse(task.to_json())


def schedules(analysis: Analysis, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
    """Schedules worth trying for this machine (or ``device``), best guess first; none where that fails."""
    return offered(analysis, device)


def generate(
    analysis: Analysis, schedule: Schedule, device: DeviceFacts | None = None
) -> Candidate | NotCovered:
    """The candidate that ``schedule`` stands for.

    A schedule that does not fit, or whose plan the launcher would not take, gives the reason. Whatever else goes wrong
    is a bug, and gives a `bugs.Bug`.
    """

    def written() -> Candidate | NotCovered:
        try:
            source, plan = analysis.emit(schedule, device)
            if plan.target == "cuda":
                source, plan = chained(source, plan, gpu_facts(device))
        except PlanError as error:
            return NotCovered(str(error))
        language: Language = "cuda" if plan.target == "cuda" else "c++"
        return Candidate(plan.target, language, source, plan, "sketch", schedule.to_json())

    return attempt_for(analysis.task, "writing a kernel for", written, schedule)
