"""The families of sorts and of selections from rows."""

from __future__ import annotations

from cuda_agent_backend.codegen.cuda.sort.match import Sorting, is_sorting, sorting_of
from cuda_agent_backend.codegen.cuda.sort.select import CudaSelection, SelectionBlock
from cuda_agent_backend.codegen.cuda.sort.writer import CudaSort, SortTeam
from cuda_agent_backend.codegen.family import Generator, TaskFamily
from sandbox.task.task import Task


class Sort(TaskFamily[SortTeam]):
    name = "sort"
    is_named = False
    title = "Sorts"
    docs = ""
    params = SortTeam

    def analyse(self, task: Task, generator: Generator) -> CudaSort | None:
        form = _form_of(task)
        return None if form is None or form.selects else CudaSort(task, form)


class Selection(TaskFamily[SelectionBlock]):
    name = "selection"
    is_named = False
    title = "Selections (topk)"
    docs = ""
    params = SelectionBlock

    def analyse(self, task: Task, generator: Generator) -> CudaSelection | None:
        form = _form_of(task)
        return None if form is None or not form.selects else CudaSelection(task, form)


def _form_of(task: Task) -> Sorting | None:
    return sorting_of(task) if is_sorting(task) else None
