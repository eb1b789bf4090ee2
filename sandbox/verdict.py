"""What the sandbox can say about a candidate. Every expected failure is a value with its reason.

`Outcome` is the answer of one step (verify, profile), `Verdict` that of the whole judgement, with
the evidence for it.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from sandbox.accuracy.report import AccuracyReport
from sandbox.failures import Failed, Failure, Noisy, NoMemory
from sandbox.timing.decision import THRESHOLD, SpeedReport
from sandbox.timing.roofline import Achieved

VERIFIER_VERSION = "23"
"""Changes whenever a judgement could come out differently; a record with another one is judged again."""


@dataclass(frozen=True)
class Correct:
    """The candidate is accurate; with `speed`, and what rates that amounts to, if it was timed too."""

    status: ClassVar[str] = "correct"
    accuracy: AccuracyReport
    speed: SpeedReport | None = None
    achieved: Achieved | None = None

    @property
    def reason(self) -> str:
        """One line."""
        return "correct" if self.speed is None else f"{self.speed.speedup.median:.2f}x"


@dataclass(frozen=True)
class Wrong:
    """The candidate computes something else. `where` names draw and output, `how_much` the size."""

    status: ClassVar[str] = "wrong"
    where: str
    how_much: str
    accuracy: AccuracyReport | None = None

    @property
    def reason(self) -> str:
        """One line."""
        return f"wrong on {self.where}: {self.how_much}"


@dataclass(frozen=True)
class TooSlow:
    """Correct, but not proven to be faster by the threshold than every baseline."""

    status: ClassVar[str] = "too_slow"
    accuracy: AccuracyReport
    speed: SpeedReport

    @property
    def reason(self) -> str:
        """One line, of the baseline or the clock that is least overcome."""
        name, over = min(self.speed.over.items(), key=lambda item: item[1].low)
        text = f"{over.median:.2f}x ({over.low:.2f} to {over.high:.2f}) over {name}"
        wall = self.speed.wall
        return f"{text}, {wall.median:.2f}x by the wall clock" if wall else text


@dataclass(frozen=True)
class Unchecked:
    """Timed, but too slow for its results to matter: nothing is known of them."""

    status: ClassVar[str] = "unchecked"
    speed: SpeedReport
    achieved: Achieved | None = None

    @property
    def reason(self) -> str:
        """One line."""
        over = self.speed.speedup
        return f"{over.median:.2f}x over {self.speed.baseline}, and so not checked"


Outcome = Correct | Wrong | TooSlow | Unchecked | Failure


@dataclass(frozen=True)
class Baselines:
    """Median seconds of one call, through the same wrapper as candidates are timed in.

    `overhead_seconds` is what the harness itself adds to every call. `floor_seconds` is what moving
    the task's bytes takes at the measured rates (see `roofline.reachable_seconds`).
    """

    eager_seconds: float
    inductor_seconds: float
    overhead_seconds: float
    floor_seconds: float

    @property
    def best_seconds(self) -> float:
        """Of the faster baseline."""
        return min(self.eager_seconds, self.inductor_seconds)

    @property
    def room(self) -> float:
        """How many times faster than the faster baseline a perfect kernel could be, at most."""
        return self.best_seconds / max(self.floor_seconds + self.overhead_seconds, 1e-9)


@dataclass(frozen=True)
class Verdict:
    """The full judgement. `status`: that of the outcome, or "wins" when it is to be promoted."""

    status: str
    reason: str
    reward: float | None
    accuracy: AccuracyReport | None = None
    speed: SpeedReport | None = None
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def wins(self) -> bool:
        """Whether the candidate may be promoted."""
        return self.status == "wins"

    def to_json(self) -> str:
        """All of it as JSON text."""
        return json.dumps(asdict(self), sort_keys=True)


OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA error: out of memory|CUDA out of memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED"
    r"|bytes of the device's memory: [-\d,]+ of"
)
"""What torch, the driver and the libraries say, and `NoMemory` of what others hold."""


def lacks_memory(outcome: Outcome) -> bool:
    """Whether the device had no memory left for it, which says nothing of the candidate."""
    told = outcome.message if isinstance(outcome, Failed) else outcome.reason
    return bool(OUT_OF_MEMORY.search(told))


def reward(outcome: Outcome) -> float | None:
    """-1 wrong, 1 correct, 2 also 5 % over eager, 3 also 5 % over Inductor; None: not known.

    3 is given to what is promoted only: a clock that forbids, or too few pairs to be sure, leave it at 2.
    """
    match outcome:
        case Noisy() | Failed() | NoMemory() | Unchecked():
            return None
        case Correct(speed=SpeedReport() as speed) | TooSlow(speed=speed):
            if not _beats(speed, "eager"):
                return 1.0
            return 3.0 if speed.wins and _beats(speed, "inductor") else 2.0
        case Correct():
            return 1.0
        case _:
            return -1.0


def _beats(speed: SpeedReport, baseline: str) -> bool:
    """Wherever that baseline ran: on cuda perhaps in the candidate's process too."""
    where = [name for name in speed.over if name == baseline or name.startswith(f"{baseline} (")]
    return bool(where) and all(speed.beats(name, THRESHOLD) for name in where)
