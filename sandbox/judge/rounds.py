"""Take samples: contestants in random order, round by round, on rotating inputs with cold caches."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sandbox.judge.input_sets import InputSet
from sandbox.timing.cold_cache import ColdCache
from sandbox.workers.supervisor import CallTime, Clock, Trouble, WorkerProcess

Samples = dict[str, list[float | None]]


@dataclass(frozen=True)
class RunTime:
    """Seconds of a run by both clocks: of one call on cpu, where they are equal, of a call for each on cuda.

    wall: None where it was not asked for.
    """

    wall: float | None
    device: float


@dataclass(frozen=True)
class Contestant:
    """Something to be timed: a slot of a worker.

    rounds: it sits out all later ones. former: it runs on the values that a round's set had before the round, so that
    what it leaves in memory is of no use to those that come after it.
    """

    name: str
    worker: WorkerProcess
    slot: int
    rounds: int | None = None
    former: bool = False


@dataclass(frozen=True)
class Effort:
    """How long to measure. Rounds stop at `seconds` but not before `min_rounds`."""

    min_rounds: int = 12
    max_rounds: int = 480
    seconds: float = 15.0


@dataclass
class Record:
    """Samples by contestant and round: wall and device seconds (equal on cpu); None where it did not run, or, of wall
    seconds, where the rounds were taken without."""

    wall: Samples = field(default_factory=dict)
    device: Samples = field(default_factory=dict)

    def add(self, results: Mapping[str, RunTime | None]) -> None:
        """One round."""
        for name, result in results.items():
            self.wall.setdefault(name, []).append(result.wall if result else None)
            self.device.setdefault(name, []).append(result.device if result else None)


AfterCall = Callable[[Contestant, InputSet, Clock], Trouble | None]
"""Asked while the outputs of the call that was just timed are there."""
BeforeRound = Callable[[InputSet], Trouble | None]


CALM_SECONDS = 0.0005
"""Between a reply and the next request: by then the threads of the last worker sleep."""


class Stopwatch:
    """Times contestants on input sets."""

    def __init__(
        self,
        sets: Sequence[InputSet],
        timeout_s: float,
        seed: int,
        before_round: BeforeRound | None = None,
    ) -> None:
        """before_round: gives the set that a round will use other values. It is asked for that before a late call is
        made again, too, or the second one would find in memory what the first has worked out."""
        self.sets, self.timeout_s, self.before_round = list(sets), timeout_s, before_round
        self._cold = ColdCache()
        self._random = random.Random(seed)

    def once(
        self,
        contestant: Contestant,
        inputs: InputSet,
        wall: bool = True,
        after: AfterCall | None = None,
    ) -> RunTime | Trouble:
        """One run with cold inputs, of two calls on cuda with `wall`. Outputs stay with the worker until its next call.

        The device's comes first: what a call leaves in memory of its own is of use to the next on the same inputs.
        """
        seconds = dict[Clock, float]()
        clocks: tuple[Clock, ...] = ("device", "wall")
        for clock in clocks if wall and inputs.target == "cuda" else clocks[:1]:
            found = self._in_time(contestant, inputs, clock)
            if not isinstance(found, CallTime):
                return found
            seconds[clock] = found.seconds
            trouble = after(contestant, inputs, clock) if after else None
            if trouble is not None:
                return trouble
        device = seconds["device"]
        return RunTime(device if inputs.target == "cpu" else seconds.get("wall"), device)

    def _in_time(
        self, contestant: Contestant, inputs: InputSet, clock: Clock
    ) -> CallTime | Trouble:
        """A call, and if it was late, another on other values, behind a longer sleep."""
        found = self._call(contestant, inputs, clock)
        if self.before_round is None or not isinstance(found, CallTime) or not found.late:
            return found
        return self.before_round(inputs) or self._call(contestant, inputs, clock)

    def _call(self, contestant: Contestant, inputs: InputSet, clock: Clock) -> CallTime | Trouble:
        contestant.worker.drop()
        calm = time.monotonic() + CALM_SECONDS
        if inputs.target == "cpu":
            self._cold.evict(inputs.tensors)
            time.sleep(max(0.0, calm - time.monotonic()))
        return contestant.worker.run(contestant.slot, inputs.number, self.timeout_s, clock)

    def warm_up(self, contestants: Sequence[Contestant], repeats: int = 2) -> Trouble | None:
        """Every contestant on every set, untimed: page tables, code, allocators and the clock's sleep settle."""
        for contestant in contestants:
            for inputs in self.sets * repeats:
                result = self._call(contestant, inputs, "device")
                if not isinstance(result, CallTime):
                    return result
        return None

    def round(
        self,
        contestants: Sequence[Contestant],
        number: int,
        after: AfterCall | None = None,
        wall: bool = True,
    ) -> dict[str, RunTime | None] | Trouble:
        """All contestants once, in random order, on one set; those of its former values first."""
        inputs = self._random.choice(self.sets)
        results: dict[str, RunTime | None] = {c.name: None for c in contestants}
        order = [c for c in contestants if c.rounds is None or number < c.rounds]
        self._random.shuffle(order)
        for former in (True, False):
            if not former and self.before_round is not None:
                trouble = self.before_round(inputs)
                if trouble is not None:
                    return trouble
            for contestant in order:
                if contestant.former is not former:
                    continue
                result = self.once(contestant, inputs, wall, after)
                if not isinstance(result, RunTime):
                    return result
                results[contestant.name] = result
        return results

    def rounds(
        self,
        contestants: Sequence[Contestant],
        effort: Effort,
        stop: Callable[[Record], bool] | None = None,
        after: AfterCall | None = None,
        wall: bool = True,
    ) -> Record | Trouble:
        """Rounds until the effort is spent, or `stop` says so; it is asked at the least number of rounds and at each
        doubling of it. Neither that nor `after` costs of the effort. Without `wall`, on cuda, only the device's time is
        taken: half of the calls."""
        record, deadline = Record(), time.monotonic() + effort.seconds
        look = effort.min_rounds

        def free(contestant: Contestant, inputs: InputSet, clock: Clock) -> Trouble | None:
            nonlocal deadline
            asked = time.monotonic()
            trouble = after(contestant, inputs, clock) if after else None
            deadline += time.monotonic() - asked
            return trouble

        for number in range(effort.max_rounds):
            results = self.round(contestants, number, free if after else None, wall)
            if not isinstance(results, dict):
                return results
            record.add(results)
            if number + 1 >= effort.min_rounds and time.monotonic() > deadline:
                break
            if number + 1 == look:
                look *= 2
                asked = time.monotonic()
                if stop is not None and stop(record):
                    break
                deadline += time.monotonic() - asked
        return record
