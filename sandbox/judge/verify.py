"""Is the loaded candidate right? Runs it on drawn and recorded inputs and compares (contract C3)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sandbox.accuracy.finiteness import is_finite
from sandbox.accuracy.inputs import BEYOND, DISTRIBUTIONS
from sandbox.accuracy.reference import draws_per_distribution
from sandbox.accuracy.report import AccuracyReport
from sandbox.accuracy.rule import Comparison
from sandbox.failures import Failed
from sandbox.judge.input_sets import InputSet, Source
from sandbox.judge.session import CANDIDATE, Session
from sandbox.verdict import Correct, Outcome, Wrong
from sandbox.workers.supervisor import CallTime, WorkerProcess

if TYPE_CHECKING:
    import torch

Turn = Callable[[], AbstractContextManager[None]]
POISONS = (0xFF, 0x33)
"""Bytes that outputs and temporaries hold before a run: NaN, and a small positive number."""
CALLS = 2
"""Through the operator, one after the other on the same inputs."""
SCRATCH_SET, FIRST_KEPT_SET = 15, 16


@dataclass(frozen=True)
class Check:
    """How much to check. `keep`: the same inputs for every candidate of the task, drawn once."""

    distributions: tuple[str, ...]
    poisons: int
    keep: bool


QUICK = Check(("normal", "edges", "sparse"), 1, True)
THOROUGH = Check(DISTRIBUTIONS, 2, False)


@dataclass(frozen=True)
class Checked:
    """The outcome, and what was drawn with the errors found, as JSON for the evidence."""

    outcome: Outcome
    draws: list[dict[str, Any]] = field(default_factory=list)


def check_candidate(
    session: Session,
    worker: WorkerProcess,
    check: Check,
    recorded: Sequence[Sequence[torch.Tensor]],
    turn: Turn = nullcontext,
) -> Checked:
    """Check the candidate that `worker` has loaded. `Correct` carries the worst report of all.

    turn: in which draws that are pooled are looked at; the next ones may have another, so that nobody waits for all.

    In a frugal session the worker gives up the inputs of races before it, and those of the check after it.
    """
    if session.frugal:
        session.shed(worker)  # what goes wrong comes up again when it is asked next
    try:
        return _checked(session, worker, check, recorded, turn)
    finally:  # not after each draw: the next one needs the memory again, and a device is slow to take it back
        if session.frugal:
            session.shed(worker)
            session.release()


def _checked(
    session: Session,
    worker: WorkerProcess,
    check: Check,
    recorded: Sequence[Sequence[torch.Tensor]],
    turn: Turn,
) -> Checked:
    draws: list[dict[str, Any]] = []
    worst: AccuracyReport | None = None
    for sources in _plan(session, check, recorded):
        session.timeouts.go_on()
        with turn():
            report = _check_group(session, worker, check, sources, len(draws))
        draws.append({"sources": [source.to_dict() for source in sources]})
        if not isinstance(report, AccuracyReport):
            return Checked(report, draws)
        draws[-1] |= report.to_dict()
        if not report.passes:
            where = f"{sources[0].distribution} inputs"
            return Checked(Wrong(where, report.reason, report), draws)
        if worst is None or report.error_ratio > worst.error_ratio:
            worst = report
    assert worst is not None
    return Checked(Correct(worst), draws)


def _plan(
    session: Session, check: Check, recorded: Sequence[Sequence[torch.Tensor]]
) -> Iterator[list[Source]]:
    """Groups of draws to be pooled."""
    for distribution in check.distributions:
        count = draws_per_distribution(session.task, distribution)
        yield [Source(distribution, secrets.randbits(63)) for _ in range(count)]
    for number, tensors in enumerate(recorded):
        yield [Source(f"recorded {number}", 0, tensors)]


def _check_group(
    session: Session, worker: WorkerProcess, check: Check, sources: list[Source], group: int
) -> AccuracyReport | Outcome:
    comparison = Comparison()
    for index, source in enumerate(sources):
        inputs = _input_set(session, check, source, group * 8 + index)
        last = index == len(sources) - 1
        drawing = session.begin_sharing(worker, inputs)  # on cuda, while this process draws
        try:
            expected = session.reference(inputs)
        finally:  # an answer left waiting would be taken for a forged one when the worker is asked next
            trouble = drawing()
        if isinstance(expected, Failed):
            return expected
        if trouble is not None:
            return trouble
        first = group == 0 and index == 0
        poisons = POISONS[: check.poisons] if first else (POISONS[group % check.poisons],)
        for outputs in _runs(session, worker, inputs, poisons, through=first):
            if not isinstance(outputs, list):
                return outputs
            draw = expected.draw(outputs, _are_beyond(inputs))
            failed = session.compare(comparison, draw, last)
            if failed is not None:
                return failed
        if inputs.number == SCRATCH_SET:
            session.forget_reference(inputs)
    del draw, expected, outputs
    return _report(session, worker, comparison, inputs)


def _runs(
    session: Session,
    worker: WorkerProcess,
    inputs: InputSet,
    poisons: Sequence[int],
    through: bool,
) -> Iterator[list[torch.Tensor] | Outcome]:
    """Outputs of guarded runs, and, with `through`, of calls through the operator. After what went wrong nothing more
    is to be asked for."""
    for poison in poisons:
        yield session.run_guarded(worker, inputs, poison)
    if through:
        yield from run_through_operator(session, worker, inputs)


def _report(
    session: Session, worker: WorkerProcess, comparison: Comparison, inputs: InputSet
) -> AccuracyReport | Failed:
    """What a comparison comes to, whose last draw was on these inputs."""
    import torch

    def fresh() -> list[torch.Tensor]:
        session.shed(worker)  # what goes wrong comes up again when it is asked next
        session.release()
        return inputs.tensors

    again = session.frugal and session.task.target == "cuda"
    try:
        return comparison.report(session.nearby(fresh if again else inputs.tensors))
    except torch.OutOfMemoryError as error:
        return Failed("the comparison", f"OutOfMemoryError: {error}")


def _are_beyond(inputs: InputSet) -> bool:
    """Whether they hold infinities or NaN."""
    may_be = inputs.source.distribution in BEYOND or inputs.source.recorded is not None
    return may_be and not all(is_finite(tensor) for tensor in inputs.tensors)


def run_through_operator(
    session: Session, worker: WorkerProcess, inputs: InputSet
) -> Iterator[list[torch.Tensor] | Outcome]:
    """Outputs of each of two calls in a row through the compiled wrapper, as in a model: what the first left in memory,
    the second may find. What goes wrong is the last that comes.
    """
    trouble = session.share(worker, inputs)
    if trouble is not None:
        yield trouble
        return
    for _ in range(CALLS):
        result = worker.run(CANDIDATE, inputs.number, session.timeouts.run)
        if not isinstance(result, CallTime):
            yield result
            return
        outputs = session.fetch(worker)
        if session.task.target == "cuda":
            worker.drop()  # overwritten, and not held beside the next call's
        if isinstance(outputs, str):
            yield Wrong(f"{inputs.source.distribution} inputs", outputs)
            return
        yield outputs
        if not isinstance(outputs, list):
            return


def _input_set(session: Session, check: Check, source: Source, position: int) -> InputSet:
    """The scratch set with new values, or, in a check that keeps its inputs, the one kept."""
    if not (check.keep and session.keeps(check.distributions)) or source.recorded is not None:
        return session.input_set(SCRATCH_SET, source)
    number = FIRST_KEPT_SET + position
    known = session.sets.get(number)
    return known if known is not None else session.input_set(number, source)
