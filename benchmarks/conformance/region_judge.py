"""The judge's own rule on each region that ran: where positions may differ, as of equal values, it knows.

A result with other positions than eager's is looked at here: kernels' real inputs and outputs are kept as they run, and
each is compared as the judge would, with float64 and with the rule for positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from cuda_agent_backend.hook import forced
from sandbox.accuracy.finiteness import is_finite
from sandbox.accuracy.oracle import position_rules
from sandbox.accuracy.reference import run_reference
from sandbox.accuracy.rule import Draw, compare_draws
from sandbox.failures import Failed
from sandbox.graph.build import build_graph
from sandbox.launcher import Program, ops
from sandbox.task import flags

Launch = Callable[[Program, list[Tensor], list[Tensor], torch.device], None]


@dataclass(frozen=True)
class Launched:
    """A kernel that ran, on what, and what it made."""

    program: Program
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@contextmanager
def _launched_by(around: Callable[[Launch], Launch]) -> Iterator[None]:
    """Within it kernels are launched by what is made of the launch as it is."""
    launch = ops._launch
    ops._launch = around(launch)
    try:
        yield
    finally:
        ops._launch = launch


@contextmanager
def kept() -> Iterator[list[Launched]]:
    """What kernels run within, each once it has run."""
    found: list[Launched] = []

    def keeping(launch: Launch) -> Launch:
        def kept_launch(
            program: Program, inputs: list[Tensor], outputs: list[Tensor], device: torch.device
        ) -> None:
            before = tuple(x.clone() for x in inputs)
            launch(program, inputs, outputs, device)
            found.append(Launched(program, before, tuple(x.clone() for x in outputs)))

        return kept_launch

    with _launched_by(keeping):
        yield found


@contextmanager
def kernels_on(count: int) -> Iterator[None]:
    """Within it kernels run on so many threads, whatever the rest of a graph does: Dynamo compiles a graph again for
    each number of threads, which no kernel of ours is made for."""
    with _launched_by(flags.threads(count)):
        yield


def why_wrong(launched: Sequence[Launched]) -> str:
    """What the judge says against the regions that ran, "" where nothing. Not "" either where none makes positions."""
    tasks = {id(a.program): o.task for o in forced.outcomes() for a in o.usable}
    positions = False
    for one in launched:
        task = tasks[id(one.program)]
        positions |= bool(position_rules(task))
        wanted = run_reference(task, build_graph(task), one.inputs, flags.current())
        if isinstance(wanted, Failed):
            return f"no reference: {wanted}"
        beyond = not all(is_finite(x) for x in one.inputs)
        draw = Draw(
            one.outputs, wanted.eager, wanted.oracle, wanted.positions, beyond, wanted.written_out
        )
        report = compare_draws([draw])
        if not report.passes:
            return report.reason
    return "" if positions else "no region makes positions"
