"""The form of a task that is a loop over steps: its stages over lanes, its states, and what is computed beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import sympy
import torch

from cuda_agent_backend.codegen.ir.kernel import Dim
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Store
from cuda_agent_backend.codegen.ir.ssa import Body
from sandbox.task.specs import TensorSpec
from sandbox.task.task import Task

Load = tuple[str, sympy.Expr]
"""Buffer and index."""
STEP = sympy.Symbol("t", integer=True, nonnegative=True)
"""The number of the step."""


@dataclass(frozen=True)
class LaneStage:
    """A map or a reduction over steps and lanes.

    wide: whether a map is done at all lanes. Otherwise it is done once for all lanes that a reduction joins.
    """

    kind: str
    combine: str
    dtype: torch.dtype
    body: Body
    stores: tuple[Store, ...]
    wide: bool


@dataclass(frozen=True)
class StepState:
    """What a step hands on to the next one.

    given, made: buffers of the state before and after a step. initial: its value before the first step, a number or the
    name of what it is read from.
    """

    given: str
    made: str
    dtype: torch.dtype
    initial: str | float
    spec: TensorSpec


@dataclass(frozen=True)
class Part:
    """What is computed beside the loop, and what its inputs and outputs are called."""

    task: Task
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class StepLoop:
    """A task that is a loop.

    Attributes:
        lanes, reduced: loops over the elements of a state; those of ``reduced`` are joined by reductions.
        before, after: what is computed first and last.
        names: of the buffers of ``region`` in memory. Those of the plan are ``in0``, ``out0`` and so on, and others are
            kept between.
        kept: what is between, by name.
    """

    task: Task
    steps: int
    backward: bool
    lanes: tuple[Dim, ...]
    reduced: tuple[Dim, ...]
    stages: tuple[LaneStage, ...]
    states: tuple[StepState, ...]
    region: LoweredRegion
    names: Mapping[str, str]
    before: Part | None
    after: Part | None
    kept: Mapping[str, TensorSpec]

    @cached_property
    def early(self) -> tuple[Load, ...]:
        """What the steps read that is another thing at each step, and does not depend on the one before."""
        found: dict[Load, None] = {}
        for stage in self.stages:
            for i in stage.body.instructions:
                if i.op == "load" and i.buffer and i.index is not None and i.index.has(STEP):
                    found[i.buffer, i.index] = None
        return tuple(found)

    def is_wide(self, index: sympy.Expr) -> bool:
        """Whether lanes that are reduced together read different elements."""
        return not index.free_symbols.isdisjoint(s for s, _ in self.reduced)
