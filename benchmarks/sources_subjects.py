"""What `benchmarks.sources` makes a list of: tasks, on which targets, in which dtypes, and with which gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import cases, products, rewrites
from benchmarks.sketch_cuda_subjects import probes
from benchmarks.tracing import PRACTICE, Make, task_of

TARGETS = ("cuda", "cpu")
DTYPES: dict[str, torch.dtype | None] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "own": None,
}
"""Of floating tensors, by name; "own": as the task has them."""
TRAINED_EVERY = 5
"""Of the practice tasks in float32, one of so many has its backward graphs in the list too."""
HALF_ON_CPU_EVERY = 3
"""Of the practice tasks, one of so many is there in half precision on the cpu, too."""
LEFT_OUT = {
    "practice/networks/fourier_operator cuda float16": "the cpu's Fourier transforms have no half precision",
}
"""Entries that are not in the list, and why."""


@dataclass(frozen=True)
class Subject:
    """One entry: a task by name, as one target has it."""

    task: str
    target: str
    dtype: str
    training: bool = False

    @property
    def name(self) -> str:
        """Such as "practice/fused/circulant_product cuda float32"."""
        return f"{self.task} {self.target} {self.dtype}{' training' if self.training else ''}"


def subjects(tasks: Sequence[str]) -> list[Subject]:
    """All entries of these tasks."""
    found = [subject for task in tasks for subject in _of_task(task)]
    return [subject for subject in found if subject.name not in LEFT_OUT]


def _of_task(task: str) -> list[Subject]:
    kind, *_ = task.split("/")
    if kind != "practice":
        dtypes = {"products": ("float32", "float16"), "probes": ("own",)}.get(kind, ("float32",))
        only = {"cases", "rewrites"} & {kind}
        targets = (task.split("/")[1],) if only else TARGETS
        return [Subject(task, target, dtype) for target in targets for dtype in dtypes]
    number = practice().index(task)
    half = ("float16", "bfloat16")[number % 2]
    found = [Subject(task, target, "float32") for target in TARGETS]
    found.append(Subject(task, "cuda", half))
    if number % HALF_ON_CPU_EVERY == 0:
        found.append(Subject(task, "cpu", half))
    if number % TRAINED_EVERY == 0:
        found += [Subject(task, target, "float32", True) for target in TARGETS]
    return found


@functools.cache
def practice() -> tuple[str, ...]:
    """Names of the practice tasks, in order."""
    files = sorted(PRACTICE.rglob("*.py"))
    return tuple(f"practice/{path.parent.name}/{path.stem}" for path in files)


@functools.cache
def _others() -> dict[str, Make]:
    """Makers of the cases of other benchmarks, by name."""
    found: dict[str, Make] = {}
    for kind, cases_of in (("cases", cases.cases), ("rewrites", rewrites.cases)):
        for case in (case for target in TARGETS for case in cases_of(target)):
            name = f"{kind}/{case.target}/{case.name}"
            found[name] = _maker(case.family.function, functools.partial(_drawn, case.shapes))
    for product in products.products():
        found[f"products/{product.name}"] = _maker(product.function, product.make)
    for probe in probes():
        found[f"probes/{probe.name}"] = _maker(probe.function, probe.make)
    return found


def _drawn(shapes: Sequence[tuple[int, ...]], device: str) -> Sequence[Tensor]:
    return [torch.randn(shape, device=device) for shape in shapes]


def _maker(function: Callable[..., Any], inputs: Callable[[str], Sequence[Tensor]]) -> Make:
    def make() -> tuple[nn.Module, Sequence[Tensor]]:
        return cases.Function(function), inputs("cpu")

    return make


def tasks() -> list[str]:
    """Names of all tasks, in order."""
    return [*practice(), *_others()]


def make_of(task: str) -> Make:
    """What makes a task's model and inputs."""
    if not task.startswith("practice/"):
        return _others()[task]
    path = PRACTICE / Path(task).relative_to("practice")
    return task_of(path.with_name(path.name + ".py"))


def spread(every: Sequence[str], number: int) -> list[str]:
    """So many of them, evenly from the first to the last, so that each group has its share."""
    number = min(number, len(every))
    return [every[i * len(every) // number] for i in range(number)]
