"""What a task should compute: outputs of eager mode and of the oracle. They stay in the judge's process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sandbox.accuracy.finiteness import is_finite
from sandbox.accuracy.oracle import (
    exact_operands,
    position_rules,
    run_eager,
    run_oracle,
    run_written_out,
)
from sandbox.accuracy.pieces import Piece
from sandbox.accuracy.positions import PositionCheck
from sandbox.accuracy.rule import Draw
from sandbox.accuracy.sliced_oracle import SlicedOracle
from sandbox.failures import Failed
from sandbox.task import flags
from sandbox.task.task import Task

if TYPE_CHECKING:
    import torch

SMALL_OUTPUT = 64
"""Outputs of fewer elements are pooled over several draws."""
MAX_DRAWS = 8
LARGE_INPUT = 1 << 24
"""Elements of input beyond which at most `LARGE_DRAWS` are pooled."""
LARGE_DRAWS = 3


@dataclass(frozen=True)
class Reference:
    """Eager's and the oracle's outputs on one input set."""

    eager: list[torch.Tensor]
    oracle: list[torch.Tensor]
    positions: dict[int, PositionCheck] = field(default_factory=dict)
    narrow: tuple[str, ...] = ()
    written_out: list[torch.Tensor] = field(default_factory=list)
    """The oracle's outputs by operators of their own (see `written_out`), where inputs are not finite and they are
    others."""
    pieces: Callable[[], Iterator[Piece]] | None = None
    """Computes the oracle's outputs, piece by piece, from the inputs as they are then; `oracle` and `written_out` are
    empty. Raises whatever torch raises."""

    def draw(self, outputs: Sequence[torch.Tensor], beyond: bool = False) -> Draw:
        """A candidate's outputs beside these."""
        eager, oracle, other = self.eager, self.oracle, self.written_out
        return Draw(outputs, eager, oracle, self.positions, beyond, other, self.pieces)


def run_reference(
    task: Task,
    module: torch.fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    user_flags: Mapping[str, Any],
    sliced: SlicedOracle | None = None,
    again: Callable[[], Sequence[torch.Tensor]] | None = None,
) -> Reference | Failed:
    """Run eager under the user's flags and the oracle. What torch raises is a value. sliced: computes the oracle in
    slices, when it is asked for. It is of no use where outputs are positions among values that are computed, which are
    needed whole. again: gives the inputs then, so that nobody has to keep them."""
    with flags.applied(user_flags):
        try:
            eager = run_eager(module, inputs)
            operands = exact_operands(task, module, inputs) if sliced is not None else None
            if sliced is not None and operands is not None:
                finite = all(is_finite(tensor) for tensor in inputs)
                given = again or (lambda: inputs)
                pieces = functools.partial(_pieces, sliced, given, not finite)
                return Reference(eager, [], _checks(task, operands), pieces=pieces)
            oracle = run_oracle(task, module, inputs)
            other = run_written_out(module, inputs)
        except Exception as error:  # whatever torch raises is about the task
            return Failed("eager mode", f"{type(error).__name__}: {error}")
    positions = _checks(task, oracle.operands)
    return Reference(eager, oracle.outputs, positions, oracle.narrow, other)


def _pieces(
    sliced: SlicedOracle, inputs: Callable[[], Sequence[torch.Tensor]], written_out: bool
) -> Iterator[Piece]:
    return sliced.pieces(inputs(), written_out)


def _checks(task: Task, operands: Mapping[int, torch.Tensor]) -> dict[int, PositionCheck]:
    rules = position_rules(task).items()
    return {number: rule.check(operands[number]) for number, rule in rules}


def draws_per_distribution(task: Task, distribution: str) -> int:
    """How many draws to pool so that an error estimate rests on enough elements."""
    floats = [s.numel for s in task.output_specs if s.dtype.startswith(("float", "bfloat"))]
    if not floats or distribution in ("constant", "zeros"):
        return 1
    wanted = -(-SMALL_OUTPUT // max(1, min(floats)))
    elements = sum(spec.numel for spec in task.inputs)
    return max(1, min(wanted, LARGE_DRAWS if elements > LARGE_INPUT else MAX_DRAWS))


def draws_of(task: Task, distributions: Sequence[str]) -> int:
    """How many draws of all these there are."""
    return sum(draws_per_distribution(task, distribution) for distribution in distributions)
