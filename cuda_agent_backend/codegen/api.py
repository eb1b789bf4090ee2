"""What the rest of the backend asks of the code generator: analyse a task, propose schedules, write a candidate.

This is its edge: nothing is raised. `ir.failure` says how early exits and bugs below become values here.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import Any

from cuda_agent_backend.codegen.alternatives import Alternatives
from cuda_agent_backend.codegen.bugs import attempt_for
from cuda_agent_backend.codegen.covered_task import Analysis, offered
from cuda_agent_backend.codegen.cuda.common.dependent_launch import chain_launches
from cuda_agent_backend.codegen.family import TaskFamily
from cuda_agent_backend.codegen.guarded import Guarded
from cuda_agent_backend.codegen.ir import special_functions as special
from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts, gpu_facts
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.operand_types import SAFE_MARK, SAFE_PREFIX
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.loop_nests import GENERATOR, LOWERING, LoopNests, loop_nests_of
from cuda_agent_backend.codegen.registry import TASKS
from cuda_agent_backend.rewrite.forms import Form, forms
from sandbox.plan.candidate import Candidate, Language
from sandbox.plan.plan import PlanError
from sandbox.task.task import Task

APART = "apart"
"""What schedules are marked with whose products do not store across their loops, where others do."""
_RARE = ((special.PREFIX, special.MARK), (SAFE_PREFIX, SAFE_MARK))
"""What functions that few kernels have begin with, and what is in their headers."""


def analyse(task: Task) -> Analysis | NotCovered:
    """The forms in which kernel families cover ``task``, rewritten ones included; the reason where none does."""
    if any(math.prod(s.shape) == 0 for s in (*task.inputs, *task.output_specs)):
        return NotCovered("a tensor without elements")
    with LOWERING:
        return _analyse(task.to_json())


@lru_cache(maxsize=256)
def _analyse(text: str) -> Analysis | NotCovered:
    task = Task.from_json(text)
    family, found = _with_family(task)
    rewritten = attempt_for(task, "rewriting", partial(forms, task))
    rewritten = () if isinstance(rewritten, NotCovered) else rewritten
    # a kernel for all of it, which no rewritten form has that needs its products
    if family and family.precedes_rewrites and not any(f.guards for f in rewritten):
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

    def guarded() -> Guarded:
        return Guarded(task, loop_nests_of(form.task), loop_nests_of(task), form.guards)

    return attempt_for(task, f"rewriting by {form.name}", guarded)


def as_it_stands(task: Task) -> Analysis | NotCovered:
    """The form in which a family covers ``task``, without rewriting it."""
    return _with_family(task)[1]


def _with_family(task: Task) -> tuple[TaskFamily[Any] | None, Analysis | NotCovered]:
    """The same with the family that takes the whole task, where one does; else the task is loop nests."""
    for family in TASKS[task.target]:
        found = attempt_for(
            task, f"matching {family.name}", partial(family.analyse, task, GENERATOR)
        )
        if isinstance(found, NotCovered):
            return None, found
        if found is not None:
            return family, found
    return None, attempt_for(task, "making loop nests of", partial(loop_nests_of, task))


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
                source, plan = chain_launches(source, plan, gpu_facts(device))
        except PlanError as error:
            return NotCovered(str(error))
        if any(f"ca::{name}" in source and mark not in source for name, mark in _RARE):
            return NotCovered("a function that this family has no header for")
        language: Language = "cuda" if plan.target == "cuda" else "c++"
        return Candidate(plan.target, language, source, plan, "sketch", schedule.to_json())

    return attempt_for(analysis.task, "writing a kernel for", written, schedule)
