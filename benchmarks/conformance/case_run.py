"""One case from end to end: eager, float64, forced kernels under each schedule and threads, Inductor if need be."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.conformance.cases import Case
from benchmarks.conformance.compare import EQUAL, WRONG, Finding, Values, Yardsticks, alike, judge
from benchmarks.conformance.database import has_gradient
from benchmarks.conformance.forced_graphs import Forced, Part
from benchmarks.conformance.region_judge import kept, kernels_on, why_wrong
from benchmarks.conformance.samples import Inputs, copied, variants
from benchmarks.conformance.wide import in_float64, widened
from sandbox.accuracy.nearby import several
from sandbox.task.flags import threads

Stage = Callable[[str], None]
"""Is told what begins, so that a crash can be named."""
THREADS = (1, 4)
SLOW_S = 3.0
"""What takes eager longer is run in a smaller size: it is run some twenty times."""
MANY = 1000
"""What eager does in more operators is run in a smaller size too: it is a loop over a dimension, of which a graph has
every round, each with kernels of its own that are no others than those of a few rounds."""


@dataclass
class Row:
    """What came of a case. outcome: see `outcomes`. parts: what became of each region of its graphs. seconds: that it
    took by the clock; cpu_seconds: that this process and its compilers computed."""

    case: str
    outcome: str
    why: str = ""
    parts: tuple[Part, ...] = ()
    size: str = ""
    layout: str = ""
    values: str = ""
    gradients: bool = False
    ratio: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass
class _Call:
    """The case's call and its inputs, ready to be run in several ways."""

    inputs: Inputs
    training: bool
    seed: int = 0
    cotangents: tuple[Tensor, ...] = field(default=())

    def run(
        self, call: Callable[..., list[Tensor]], tensors: Sequence[Tensor], seed: int = 0
    ) -> Values:
        """Outputs and gradients on copies of the tensors. Raises whatever the call raises."""
        given = [self._leaf(copied(x)) for x in tensors]
        before = [copied(x.detach()) for x in given]
        torch.manual_seed(seed)
        with torch.set_grad_enabled(self.training):
            outputs = call(*given)
            named = {f"output {i}": _real(x.detach()) for i, x in enumerate(outputs)}
            if self.training:
                named |= self._gradients(outputs, given)
        pairs = zip(given, before, strict=True)
        changed = tuple(i for i, (a, b) in enumerate(pairs) if not _same(a.detach(), b))
        return Values(named, changed, _shared(outputs, given))

    def _leaf(self, x: Tensor) -> Tensor:
        return x.requires_grad_(self.training and x.is_floating_point())

    def _gradients(self, outputs: Sequence[Tensor], given: Sequence[Tensor]) -> dict[str, Tensor]:
        roots = [x for x in outputs if x.requires_grad]
        leaves = [(i, x) for i, x in enumerate(given) if x.requires_grad]
        if not roots or not leaves:
            return {}
        grads = torch.autograd.grad(
            roots, [x for _, x in leaves], [cotangent(x) for x in roots], allow_unused=True
        )
        pairs = zip(leaves, grads, strict=True)
        return {f"gradient {i}": _real(g.detach()) for (i, _), g in pairs if g is not None}


def _real(x: Tensor) -> Tensor:
    """A complex tensor as its parts, which is how it is compared."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _shared(outputs: Sequence[Tensor], given: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    def place(x: Tensor) -> int:
        return x.untyped_storage().data_ptr() if x.numel() else 0

    return tuple(
        (i, j)
        for i, x in enumerate(outputs)
        for j, y in enumerate(given)
        if place(x) and place(x) == place(y)
    )


def cotangent(output: Tensor) -> Tensor:
    """Fixed normal values, the same in every precision; of a half precision they are exact."""
    source = torch.Generator().manual_seed(1)
    drawn = torch.randn(output.shape, generator=source).bfloat16()
    return drawn.to(output.device, output.dtype)


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) or bool(((a == b) | (a != a) & (b != b)).all())


def run_case(case: Case, device: str, schedules: int, scratch: Path, stage: Stage) -> Row:
    """Run one case. Never raises an `Exception`; what crashes the process is named by the last `stage`."""
    started, computed = time.perf_counter(), _computed()
    stage("eager")
    row = Row(case.name, "not drawn", "the database has no such sample that eager takes")
    for inputs in variants(case, device):
        training = case.round.training and has_gradient(case.cell.operator, case.cell.dtype, device)
        call = _Call(inputs, training and any(x.is_floating_point() for x in inputs.tensors))
        began = time.perf_counter()
        try:
            with threads(1):
                eager = call.run(inputs.call, inputs.tensors)
        except Exception as error:
            end_if_lost(error)
            row.why = _brief(error)
            continue
        if inputs.size != "given" and (
            time.perf_counter() - began > SLOW_S or _has_many_operators(call)
        ):
            continue
        row = _with_eager(case, call, eager, schedules, scratch, stage)
        break
    row.seconds = round(time.perf_counter() - started, 2)
    row.cpu_seconds = round(_computed() - computed, 2)
    return row


class _Counted(TorchDispatchMode):
    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return func(*args, **(kwargs or {}))


def _has_many_operators(call: _Call) -> bool:
    """Whether eager runs more than `MANY`, gradients included; not where it fails to run while they are counted."""
    try:
        with threads(1), _Counted() as counted:
            call.run(call.inputs.call, call.inputs.tensors)
    except Exception as error:
        end_if_lost(error)
        return False
    return counted.number > MANY


def _computed() -> float:
    """Seconds of processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _with_eager(
    case: Case, call: _Call, eager: Values, schedules: int, scratch: Path, stage: Stage
) -> Row:
    inputs = call.inputs
    row = Row(case.name, "", size=inputs.size, layout=inputs.layout, values=inputs.values)
    row.gradients = call.training
    if not inputs.tensors:
        return _ended(row, "no tensors", "the call has no tensor among its inputs")
    if not eager.named:
        return _ended(row, "no tensors", "the call gives no tensor")
    again = [call.run(inputs.call, inputs.tensors, seed) for seed in (0, 1)]
    if not alike(eager, again[0]):
        return _ended(row, "unsettled", "eager gives something else each time")
    random = not alike(eager, again[1])
    stage("float64")
    held = _yardsticks(call, eager, random, stage)
    stage("forced")
    return _forced(case, call, held, row, schedules, scratch, stage)


def _ended(row: Row, outcome: str, why: str) -> Row:
    row.outcome, row.why = outcome, why
    return row


def _yardsticks(call: _Call, eager: Values, random: bool, stage: Stage) -> Yardsticks:
    def wide(tensors: Sequence[Tensor], narrow: Values) -> Values:
        if random:
            return widened(narrow, None)
        try:
            with in_float64() as convert:
                return widened(narrow, call.run(call.inputs.call, [convert(x) for x in tensors]))
        except Exception:  # there is no kernel for float64: eager's own result is the yardstick
            return widened(narrow, None)

    def nearby() -> Iterator[tuple[Values, Values]]:
        for tensors in several(call.inputs.tensors):
            own = call.run(call.inputs.call, tensors)
            yield own, wide(tensors, own)

    known: list[Values | None] = []

    def inductor() -> Values | None:
        if not known:
            stage("inductor")
            known.append(_by_inductor(call))
            stage("forced")
        return known[0]

    tensors = call.inputs.tensors
    return Yardsticks(
        eager, wide(tensors, eager), inductor, None if random else nearby, not call.inputs.finite
    )


def _by_inductor(call: _Call) -> Values | None:
    torch._dynamo.reset()
    compiled = torch.compile(call.inputs.call, dynamic=False, options={"fallback_random": True})
    try:
        with threads(1):
            return call.run(compiled, call.inputs.tensors)
    except Exception as error:
        end_if_lost(error)
        return None


def _forced(
    case: Case,
    call: _Call,
    held: Yardsticks,
    row: Row,
    schedules: int,
    scratch: Path,
    stage: Stage,
) -> Row:
    torch._dynamo.reset()
    with Forced(call.inputs.call, schedules, scratch) as forced:
        try:
            found = _results(case, call, forced, stage)
            row.parts, row.notes = forced.parts(), forced.said()
            findings = _judged(call, forced, held, found)
        except Exception as error:
            end_if_lost(error)
            row.parts = forced.parts()
            if held.inductor() is None:
                return _ended(row, "inductor fails", _brief(error))
            return _ended(row, "raises", _brief(error))
    return _concluded(row, findings)


def _judged(
    call: _Call, forced: Forced, held: Yardsticks, found: dict[str, Values]
) -> dict[str, Finding]:
    """What is found of each result. Raises what the graph raises where it has to run once more."""
    findings = {name: judge(values, held) for name, values in found.items()}
    if not forced.any_kernel() and any(f.verdict != EQUAL for f in findings.values()):
        with threads(1):  # as eager ran: libraries alone give other bits with other threads
            values = call.run(forced.call, call.inputs.tensors)
        findings = {"no kernel": judge(values, held)}
    if any(finding.whole_numbers for finding in findings.values()):
        findings = _with_positions(call, forced, findings)
    return findings


def _with_positions(
    call: _Call, forced: Forced, findings: dict[str, Finding]
) -> dict[str, Finding]:
    """The findings without those that say positions are wrong which the judge lets pass, of the first schedule."""
    forced.turn_to(0)
    with kept() as launched:
        call.run(forced.call, call.inputs.tensors)
    if why_wrong(launched):
        return findings
    other = Finding("other positions", "those of equal values")
    return {name: other if f.whole_numbers else f for name, f in findings.items()}


def _results(case: Case, call: _Call, forced: Forced, stage: Stage) -> dict[str, Values]:
    """By schedule and number of threads."""
    own = case.round.threads
    tensors = call.inputs.tensors
    on_cpu = all(x.device.type == "cpu" for x in tensors)
    with threads(own):
        found = {f"schedule 1, {own} threads": call.run(forced.call, tensors)}
    if not forced.any_kernel():
        return {"no kernel": next(iter(found.values()))}
    for other in THREADS:
        if other != own and on_cpu:
            with threads(own), kernels_on(other):
                found[f"schedule 1, {other} threads"] = call.run(forced.call, tensors)
    number = 1
    while forced.turn_to(number):
        stage(f"forced, schedule {number + 1}")
        with threads(own):
            found[f"schedule {number + 1}, {own} threads"] = call.run(forced.call, tensors)
        number += 1
    forced.turn_to(0)
    return found


def _concluded(row: Row, findings: dict[str, Finding]) -> Row:
    row.ratio = round(max(f.ratio for f in findings.values()), 3)
    for verdict in (WRONG, "unsettled", "as inductor", "other positions"):
        for name, finding in findings.items():
            if finding.verdict == verdict:
                said = f"{name}: {finding.reason}"
                if verdict == WRONG:
                    return _ended(row, WRONG, said)
                row.notes = (*row.notes, f"{verdict}: {said}"[:300])
                break
    return _by_parts(row)


def _by_parts(row: Row) -> Row:
    """What its regions say, the worst first."""
    for status in ("does not compile", "bug"):
        for part in row.parts:
            if part.status == status:
                return _ended(row, status, part.reason)
    if any("left to Inductor" in note for note in row.notes):
        return _ended(row, "bug", next(n for n in row.notes if "left to Inductor" in n))
    statuses = {part.status for part in row.parts}
    if not row.parts:
        return _ended(row, "no region", "")
    if statuses == {"covered"}:
        return _ended(row, "covered", "")
    reasons = [f"{p.status}: {p.reason}" for p in row.parts if p.status != "covered"]
    outcome = "partly covered" if "covered" in statuses else "left"
    return _ended(row, "refused" if "refused" in statuses else outcome, reasons[0])


def end_if_lost(error: Exception) -> None:
    """End the process where its CUDA context is lost, after which nothing that fails says anything."""
    if "CUDA error" in str(error) or "device-side assert" in str(error):
        raise SystemExit(_brief(error)) from error


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def quiet() -> None:
    """Nothing of torch's own warnings among the rows."""
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.NOTSET)
    for name in ("torch._dynamo", "torch._inductor", "torch"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
