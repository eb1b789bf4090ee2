"""Many candidates of one task, measured together.

One process holds them all. Inputs are drawn once and each candidate is checked on them as a quick profile checks
(contract C3); then they are timed in rounds: in a round every candidate and the faster baseline run in random order, on
other values than in the round before, with a cold cache. After some rounds only those go on that are close to the
fastest. At the end the leaders are timed once more among themselves, since what ran before a kernel moves its time.

This is for tables of many schedules. No promotion rests on it.
"""

from __future__ import annotations

import random
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sandbox.compile.candidate import Compiled
from sandbox.failures import Failed, Failure
from sandbox.judge.checks import check_loaded
from sandbox.judge.input_sets import InputSet
from sandbox.judge.measurements import Measurements
from sandbox.judge.race import Race
from sandbox.judge.rounds import Contestant, RunTime, Stopwatch
from sandbox.judge.session import Session
from sandbox.plan.candidate import Candidate
from sandbox.verdict import Baselines, Correct, Outcome

FIRST = 2
"""Rounds after which candidates that are hopeless are left as they are."""
TURN_S = 1.0
"""Of a turn on the device in which candidates are checked: who wants to time something waits for its end."""
LOOK_S = 0.25
"""How often it is asked, while Inductor compiles, whether anybody still waits."""
PER_BASELINE = 16
"""Candidates of a round for each run of the baseline in it; the round's figure is the median of those runs."""


@dataclass(frozen=True)
class SurveyEffort:
    """rounds: of every candidate that is not `hopeless`, so many times slower than the fastest in the first rounds.
    close: then, step by step, those within a factor of the fastest go on up to so many rounds. leaders: at most so many
    within the factor `leading` are timed once more, in `again` rounds of their own. seconds: no further step begins
    after so many seconds of timing, but all are timed in the first. seed: of orders.
    """

    rounds: int = 4
    close: tuple[tuple[float, int], ...] = ((1.25, 8), (1.06, 20))
    leading: float = 1.15
    leaders: int = 8
    again: int = 16
    hopeless: float = 8.0
    seconds: float = 60.0
    seed: int | None = None


@dataclass
class Found:
    """What is known of one candidate. seconds, baseline: of the rounds that it ran in, one of each; retimed: the same
    among the leaders. check_s, time_s: what checking and timing it took."""

    outcome: Outcome
    seconds: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    retimed: list[float] = field(default_factory=list)
    retimed_baseline: list[float] = field(default_factory=list)
    check_s: float = 0.0
    time_s: float = 0.0

    @property
    def timed(self) -> bool:
        """Whether it is right and ran."""
        return isinstance(self.outcome, Correct) and bool(self.seconds)


@dataclass(frozen=True)
class Surveyed:
    """found: in the order of the candidates. rival: the faster baseline's name. seconds: by step, each with what it
    waited for the device left out; of these, waiting for Inductor's compilation needs no device."""

    baselines: Baselines
    rival: str
    found: list[Found]
    seconds: dict[str, float]


class Survey:
    """Of a session's task. built: candidates, each with what came of compiling it."""

    def __init__(
        self,
        measurements: Measurements,
        session: Session,
        built: Sequence[tuple[Candidate, Compiled | Failure]],
        effort: SurveyEffort,
    ) -> None:
        self.measurements, self.sessions = measurements, measurements.sessions
        self.session, self.effort = session, effort
        self.worker = self.sessions.roles.scratch
        self.race: Race = measurements.race(session, None, self.worker)
        self.built = list(built)
        self.found: list[Found] = []
        self._random = random.Random(secrets.randbits(63) if effort.seed is None else effort.seed)
        self._seconds: dict[str, float] = {}
        self._last = self._now()

    def run(self) -> Surveyed | Failure:
        """Everything. A failure is the task's or the machine's; a candidate's own is its outcome."""
        frugal = self.session.frugal
        if not frugal:  # Inductor compiles meanwhile; a large task's memory is with one at a time
            self._check_all()
        while not self.sessions.is_settled(LOOK_S):
            self.session.timeouts.go_on()
        self._lap("inductor")
        baselines = self.measurements.baselines(self.race)
        if not isinstance(baselines, Baselines):
            return baselines
        self._lap("baselines")
        if frugal:
            self._check_all()
        self.sessions.make_room(self.race.baseline, self.worker)
        with self.sessions.alone():
            rival = self._time_all()
        if not isinstance(rival, str):
            return rival
        return Surveyed(baselines, rival, self.found, self._seconds)

    def _check_all(self) -> None:
        self.sessions.make_room(self.worker)
        self.found = []
        while len(self.found) < len(self.built):
            with self.sessions.device.shared():
                end = time.monotonic() + TURN_S
                while len(self.found) < len(self.built) and time.monotonic() < end:
                    self.found.append(self._checked(len(self.found)))
        share_set_up(self.found)
        self._lap("check")

    def _choose(self, number: int) -> Failure | None:
        candidate, compiled = self.built[number]
        assert isinstance(compiled, Compiled)
        launched = compiled.launched(candidate)
        return self.session.choose(self.worker, number, launched, compiled.path)

    def _checked(self, number: int) -> Found:
        compiled = self.built[number][1]
        if not isinstance(compiled, Compiled):
            return Found(compiled)
        self.session.timeouts.go_on()
        began = time.monotonic()
        outcome: Outcome = self._choose(number) or check_loaded(self.session, self.worker)
        self.sessions.roles.rid(self.worker, outcome)
        return Found(outcome, check_s=time.monotonic() - began)

    def _time_all(self) -> str | Failure:
        """The rival's name, once all samples are taken."""
        self.session.timeouts.go_on()  # others may have had the device for long
        pair = self.race.pair()
        if not isinstance(pair, list):
            return pair
        (rival, mine), watch = pair, self.race.stopwatch()
        effort, done = self.effort, 0
        deadline = time.monotonic() + effort.seconds
        trouble = self._warm_up(rival, mine, watch)
        if trouble is not None:
            return trouble
        first = min(FIRST, effort.rounds)
        steps = [(float("inf"), first), (effort.hopeless, effort.rounds), *effort.close]
        for number, (factor, rounds) in enumerate(steps):
            late = done and time.monotonic() > deadline
            # Two runs that something held up are not enough to give a candidate up.
            live = [] if late else self._within(factor, min if number == 1 else statistics.median)
            trouble = self._rounds(live, rival, mine, watch, rounds - done, again=False)
            if trouble is not None:
                return trouble
            done = rounds
        self._lap("time")
        leaders = self._within(effort.leading)[: effort.leaders]
        trouble = self._rounds(leaders, rival, mine, watch, effort.again, again=True)
        self._lap("retime")
        return rival.name if trouble is None else trouble

    def _warm_up(self, rival: Contestant, mine: Contestant, watch: Stopwatch) -> Failure | None:
        """One run of each: code and page tables."""
        first = self.session.timed[0]
        result = watch.once(rival, first, wall=False)
        if not isinstance(result, RunTime):
            return result
        for number, found in enumerate(self.found):
            if isinstance(found.outcome, Correct):
                self._run(number, mine, first, watch)
        return None

    def _within(
        self, factor: float, middle: Callable[[list[float]], float] = statistics.median
    ) -> list[int]:
        """Numbers of candidates that are right and within a factor of the fastest, fastest first, by what `middle`
        makes of their seconds. Those that were not timed yet count as fastest."""
        right = [n for n, f in enumerate(self.found) if isinstance(f.outcome, Correct)]
        taken = {n: middle(self.found[n].seconds) if self.found[n].seconds else 0.0 for n in right}
        best = min(taken.values(), default=0.0)
        close = [n for n in right if taken[n] <= factor * best or not taken[n]]
        return sorted(close, key=lambda n: taken[n])

    def _rounds(
        self,
        live: Sequence[int],
        rival: Contestant,
        mine: Contestant,
        watch: Stopwatch,
        rounds: int,
        *,
        again: bool,
    ) -> Failure | None:
        """Rounds of some candidates; trouble with the rival ends them."""
        for _ in range(rounds if live else 0):
            self.session.timeouts.go_on()
            inputs = self._random.choice(watch.sets)
            trouble = watch.before_round(inputs) if watch.before_round else None
            if trouble is not None and isinstance(trouble, Failed):
                return trouble
            order: list[int | None] = [*live, *[None] * (1 + len(live) // PER_BASELINE)]
            self._random.shuffle(order)
            times: dict[int, float] = {}
            baseline: list[float] = []
            for number in order:
                if number is not None:
                    seconds = self._run(number, mine, inputs, watch)
                    times |= {} if seconds is None else {number: seconds}
                    continue
                result = watch.once(rival, inputs, wall=False)
                if not isinstance(result, RunTime):
                    return result
                baseline.append(result.device)
            self._keep(times, statistics.median(baseline), again)
        return None

    def _keep(self, times: dict[int, float], baseline: float, again: bool) -> None:
        for number, seconds in times.items():
            found = self.found[number]
            own, other = (
                (found.retimed, found.retimed_baseline)
                if again
                else (found.seconds, found.baseline)
            )
            own.append(seconds)
            other.append(baseline)

    def _run(
        self, number: int, mine: Contestant, inputs: InputSet, watch: Stopwatch
    ) -> float | None:
        """Seconds of one run; None where the candidate did not run, which is then its outcome."""
        found = self.found[number]
        if not isinstance(found.outcome, Correct):
            return None
        began = time.monotonic()
        # a process that another one's crash ended holds neither candidate nor inputs
        trouble = self._choose(number) or self.session.share(self.worker, inputs)
        result = trouble or watch.once(mine, inputs, wall=False)
        found.time_s += time.monotonic() - began
        if isinstance(result, RunTime):
            return result.device
        found.outcome = result
        return None

    def _now(self) -> float:
        """A clock that stands still while other processes have the device."""
        return time.monotonic() - self.sessions.device.waited_s

    def _lap(self, step: str) -> None:
        now = self._now()
        self._seconds[step], self._last = now - self._last, now


def share_set_up(found: Sequence[Found]) -> None:
    """Have the first candidate that was checked pay no more than the others do at the median: it drew the inputs and
    worked out what is expected of all. Changes it in place."""
    checked = [one for one in found if one.check_s]
    if len(checked) > 1:
        usual = statistics.median(one.check_s for one in checked[1:])
        checked[0].check_s = min(checked[0].check_s, usual)
