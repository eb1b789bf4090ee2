"""A task's schedules as rows of numbers: what is known of them before anything is compiled.

Columns are those that the training tables have; what a task or a schedule lacks is NaN. Words (a sketch's name, a way
to go) are places of 0 and 1, numbers are base-2 logarithms, since parameters and sizes are powers of two or nearly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sandbox.task.specs import TensorSpec
from sandbox.task.task import Task
from trainer.rivals.protocol import View

Array = np.ndarray[Any, np.dtype[np.float32]]

KERNELS = 3
"""Of a schedule whose parameters are columns; those of further kernels are not."""
EXTENTS = 3
"""Last sizes of a tensor that are columns."""
MOST_OPERATORS, MOST_PARAMETERS = 64, 256
LEAST_TASKS = 2
"""In which an operator or a parameter must occur to be a column."""


@dataclass(frozen=True)
class Vocabulary:
    """The columns. operators: names; sketches: what tasks' kernels are called; numbers, words: parameters of a kernel
    by its place, words with their value."""

    operators: tuple[str, ...]
    sketches: tuple[str, ...]
    numbers: tuple[tuple[int, str], ...]
    words: tuple[tuple[int, str, str], ...]

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Vocabulary:
        """From `dataclasses.asdict`, after JSON. Raises KeyError or TypeError on anything else."""
        return Vocabulary(
            tuple(value["operators"]),
            tuple(value["sketches"]),
            tuple((int(k), str(name)) for k, name in value["numbers"]),
            tuple((int(k), str(name), str(word)) for k, name, word in value["words"]),
        )

    @property
    def width(self) -> int:
        """Columns in all."""
        own = len(self.operators) + len(self.sketches) + len(self.words) + 2 * len(self.numbers)
        return len(_SCALARS) + 3 * EXTENTS + 3 + own

    def rows(self, view: View) -> Array:
        """(candidates, width)."""
        about = self._about_task(view)
        rows = [[*about, *self._about_schedule(view, row)] for row in range(len(view.names))]
        return np.array(rows, dtype=np.float32).reshape(len(view.names), self.width)

    def _about_task(self, view: View) -> list[float]:
        task = view.task
        counts = Counter(node.name for node in task.nodes)
        return [
            *(scalar(view) for scalar in _SCALARS),
            *_extents(_largest(task.inputs)),
            *_extents(_largest(task.output_specs)),
            *_extents(min(task.inputs, key=_size, default=None)),
            *(float(counts[name]) for name in self.operators),
            *(float(view.sketch == name) for name in self.sketches),
        ]

    def _about_schedule(self, view: View, row: int) -> list[float]:
        kernels = view.schedules[row].kernels
        given = {(k, n): v for k, own in enumerate(kernels[:KERNELS]) for n, v in own}
        numbers = [_log(given.get(key)) for key in self.numbers]
        across = _log(_last(view.task))
        return [
            math.log2(1 + view.ranks[row]),
            float(view.proposed[row]),
            float(len(kernels)),
            *(float(given.get((k, n)) == word) for k, n, word in self.words),
            *numbers,
            *(value - across for value in numbers),
        ]


def vocabulary_of(views: Sequence[View]) -> Vocabulary:
    """The columns that tell tasks and schedules of some tables apart."""
    operators: Counter[str] = Counter()
    numbers: Counter[tuple[int, str]] = Counter()
    words: Counter[tuple[int, str, str]] = Counter()
    for view in views:
        operators.update({node.name for node in view.task.nodes})
        seen = {
            (k, name, value)
            for schedule in view.schedules
            for k, kernel in enumerate(schedule.kernels[:KERNELS])
            for name, value in kernel
        }
        numbers.update({(k, name) for k, name, value in seen if isinstance(value, int)})
        words.update({(k, n, v) for k, n, v in seen if isinstance(v, str)})
    return Vocabulary(
        _frequent(operators, MOST_OPERATORS),
        tuple(sorted({view.sketch for view in views})),
        _frequent(numbers, MOST_PARAMETERS),
        _frequent(words, MOST_PARAMETERS),
    )


def _frequent(counts: Counter[Any], most: int) -> tuple[Any, ...]:
    """The most frequent, in an order that depends on the counts alone."""
    kept = [(-count, name) for name, count in counts.items() if count >= LEAST_TASKS]
    return tuple(sorted(name for _, name in sorted(kept)[:most]))


def _size(spec: TensorSpec) -> int:
    return spec.numel * spec.itemsize


def _largest(specs: Iterable[TensorSpec]) -> TensorSpec | None:
    return max(specs, key=_size, default=None)


def _extents(spec: TensorSpec | None) -> list[float]:
    """The last sizes, the very last first."""
    shape = spec.shape[::-1][:EXTENTS] if spec else ()
    return [*(math.log2(max(1, n)) for n in shape), *[math.nan] * (EXTENTS - len(shape))]


def _last(task: Task) -> int | None:
    largest = _largest(task.inputs)
    return largest.shape[-1] if largest and largest.shape else None


def _log(value: Any) -> float:
    return math.log2(1 + value) if isinstance(value, int) else math.nan


def _us(seconds: float) -> float:
    """A logarithm of microseconds."""
    return math.log2(max(seconds, 1e-9) * 1e6)


_SCALARS: tuple[Callable[[View], float], ...] = (
    lambda v: _us(v.eager_s),
    lambda v: _us(v.inductor_s),
    lambda v: _us(v.floor_s),
    lambda v: math.log2(max(1e-3, min(v.room, 1e6))),
    lambda v: math.log2(1 + v.operations),
    lambda v: math.log2(1 + sum(map(_size, v.task.inputs))),
    lambda v: math.log2(1 + sum(map(_size, v.task.output_specs))),
    lambda v: float(len(v.task.inputs)),
    lambda v: float(len(v.task.output_specs)),
    lambda v: float(len(v.task.nodes)),
    lambda v: float(max((s.itemsize for s in v.task.inputs), default=0)),
    lambda v: float(any("bfloat16" in s.dtype for s in v.task.inputs)),
)
