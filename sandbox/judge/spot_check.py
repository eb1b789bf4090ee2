"""Outputs of timed runs, looked at by surprise: a candidate must be right while it is timed, too.

Whether a call is looked at is drawn for each by itself, after it: a candidate can notice that its outputs were fetched,
and must not learn from it that it is safe for a while. On cuda a run has a call for each clock, and the candidate may
tell them apart. The one whose time decides is looked at as often as the only one on cpu.

There a worker's inputs are its own, too: a candidate that leaves results in them would find them in the next round. So
they are looked at with the outputs, by a seed that is drawn after the call. On cpu they cannot be written to.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sandbox.accuracy.fingerprint import fingerprints
from sandbox.accuracy.rule import Comparison
from sandbox.failures import Failed
from sandbox.judge.input_sets import InputSet, Moment
from sandbox.judge.session import Session
from sandbox.verdict import Wrong, lacks_memory
from sandbox.workers.supervisor import Clock, Trouble, WorkerProcess

if TYPE_CHECKING:
    import torch

Aside = Callable[[InputSet, Callable[[], None]], Trouble | None]
"""Does something with memory for it, and sees to it that the race on these inputs can go on."""
FIRST, LATER = 6, 3
"""Calls by the device's clock looked at on average: of the first rounds, and of those between any two looks at the
samples after them. Who leaves out half of the work, the least that a median shows, passes once in a hundred times (with
the last run, which is always looked at); who begins with it later has to leave out more to move the median."""
BY_WALL = 0.5
"""How often, next to those, calls by wall time are looked at, which can refuse a candidate and makes none a winner."""
HELD_BYTES = 1 << 30
"""Inputs and outputs that may wait for their comparison, which follows the race, as it needs no device of its own. On
cuda inputs are drawn again for it."""
KEPT_BYTES, KEPT_LOOKS = 4 << 30, 16
"""Where there is an `Aside`, copies of outputs wait in memory of the host for their comparison, if those of so many
looks take no more than that: what is compared at once keeps others from the device for as long."""
SETTLE_SECONDS = 0.005
"""Lets threads of this process, which spin a while after their work, go to sleep."""


@dataclass(frozen=True)
class _Taken:
    """Outputs of a call that wait for their comparison."""

    worker: WorkerProcess
    clock: Clock
    inputs: Moment
    outputs: list[torch.Tensor]
    seed: int
    held: list[int] | None
    """Fingerprints by that seed of what the candidate's inputs held after the call; None where it cannot write them."""

    @property
    def bytes(self) -> int:
        """What it keeps until it is compared."""
        outputs = sum(tensor.numel() * tensor.itemsize for tensor in self.outputs)
        return self.inputs.held_bytes + outputs


class SpotCheck:
    """Of one race. `wrong` is what was found, `checked` how many calls were compared, `checked_by` by what clock."""

    def __init__(self, session: Session, first_rounds: int, aside: Aside | None = None) -> None:
        """aside: makes room for a comparison of outputs that are too large to wait, which then follows the call that is
        looked at. Those that can wait are in memory of the host."""
        self._session, self._aside = session, aside
        self._random = secrets.SystemRandom()
        self._share = FIRST / max(1, first_rounds)
        self._fetched: list[_Taken] = []
        self._runs = self._held = 0
        self.checked_by: Counter[Clock] = Counter()
        self.wrong: Wrong | Failed | None = None

    @property
    def checked(self) -> int:
        """Calls that were compared."""
        return self.checked_by.total()

    def after_call(
        self, worker: WorkerProcess, inputs: InputSet, clock: Clock = "device"
    ) -> Trouble | None:
        """Perhaps take the outputs of the call that was just timed."""
        self._runs += clock == "device"
        share = self._share * (BY_WALL if clock == "wall" else 1)
        return self.take(worker, inputs, clock) if self._random.random() < share else None

    def take(
        self, worker: WorkerProcess, inputs: InputSet, clock: Clock = "device"
    ) -> Trouble | None:
        """Take the outputs of the last call. They are compared later, while nothing is timed, or else at once."""
        outputs = self._session.fetch(worker)
        if isinstance(outputs, str):
            return Failed("fetch", outputs)
        if not isinstance(outputs, list):
            return outputs
        seed = secrets.randbits(62)
        held: list[int] | Trouble | None = None
        if inputs.target == "cpu":
            time.sleep(SETTLE_SECONDS)
        else:
            held = self._session.fingerprints(worker, inputs, seed)
        if not (held is None or isinstance(held, list)):
            return held
        one = _Taken(worker, clock, inputs.moment(), outputs, seed, held)
        if self._aside is None:
            self._keep(one)
        elif self._can_wait(one):  # what was fetched is where the next outputs will be
            self._keep(replace(one, outputs=[tensor.clone() for tensor in outputs]))
        else:
            return self._aside(inputs, lambda: self._compare_at_once(one))
        return None

    def _can_wait(self, one: _Taken) -> bool:
        return max(KEPT_LOOKS * one.bytes, self._held + one.bytes) <= KEPT_BYTES

    def _compare_at_once(self, one: _Taken) -> None:
        """The outputs are not there for another time; what there was no memory for stays untold."""
        found = self._compare(one)
        if not isinstance(self.wrong, Wrong):
            self.wrong = found or self.wrong
        self.checked_by[one.clock] += not isinstance(found, Failed)
        self._session.release()

    def look(self) -> None:
        """Between rounds: compare what was taken, once it is much. The next look is at twice as many rounds."""
        self._share = LATER / max(1, self._runs)
        if self._aside is None and self._held > HELD_BYTES:
            self.compare()
            time.sleep(SETTLE_SECONDS)

    def compare(self) -> None:
        """Compare all that was taken, and give it up. Wrong outputs count for more than a comparison that failed.

        What there was no memory to compare is kept for another time; until then `wrong` says so.
        """
        if self._fetched and isinstance(self.wrong, Failed) and lacks_memory(self.wrong):
            self.wrong = None
        taken, self._fetched, self._held = self._fetched, [], 0
        for one in taken:
            found = self._compare(one)
            if self._aside is not None:  # the device's memory has room for one set of inputs
                self._session.release()
            if not isinstance(self.wrong, Wrong):
                self.wrong = found or self.wrong
            if isinstance(found, Failed) and lacks_memory(found):
                self._keep(one)
            else:
                self.checked_by[one.clock] += 1

    def _keep(self, one: _Taken) -> None:
        self._fetched.append(one)
        self._held += one.bytes

    def _compare(self, one: _Taken) -> Wrong | Failed | None:
        import torch

        try:
            values = one.inputs.tensors()
            changed = _changed(one, values)
            if changed is not None:
                return changed
            expected = self._session.reference_of(values, one.inputs.tensors)
            if isinstance(expected, Failed):
                return expected
            comparison = Comparison()
            failed = self._session.compare(comparison, expected.draw(one.outputs))
            if failed is not None:
                return failed
            near: Any = values
            if self._aside is not None and one.held is not None:  # on a device
                del values, expected
                near = self._again(one)
            report = comparison.report(self._session.nearby(near))
        except torch.OutOfMemoryError as error:
            return Failed("a timed run", f"OutOfMemoryError: {error}")
        return None if report.passes else Wrong("a timed run", report.reason, report)

    def _again(self, one: _Taken) -> Callable[[], list[torch.Tensor]]:
        """The inputs once more, to be changed in place, in memory that nobody else holds for the task meanwhile."""

        def fresh() -> list[torch.Tensor]:
            self._session.shed(one.worker)  # what goes wrong comes up again when it is asked next
            self._session.release()
            return one.inputs.tensors()

        return fresh


def _changed(one: _Taken, values: list[torch.Tensor]) -> Wrong | None:
    """Whether the candidate wrote to an input, whose values these are."""
    if one.held is None:
        return None
    for number, (held, known) in enumerate(
        zip(one.held, fingerprints(values, one.seed), strict=True)
    ):
        if held != known:
            return Wrong("a timed run", f"wrote to input {number}")
    return None
