"""When quick timings have seen enough: decisions on the samples taken so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sandbox.judge.rounds import Record
from sandbox.timing import decision as timing

GLANCES, HOPELESS = 4, 0.9
"""Rounds after which a glance may end where the candidate stayed below this share of what is worth it in all."""


FIRST_GLANCES, FAR_BELOW = 2, 0.6
"""The same after fewer rounds: less than what a baseline of two speeds, of which one is half as fast again, makes of a
candidate that is worth it."""


MOST_GLANCES = 12
"""Rounds of a glance that never sees enough."""


AGREE, ALMOST = 1.02, 1.03
"""Largest over least ratio at which a glance has seen enough, after `GLANCES` rounds and after more. Of pairs of 229
tasks on H100s four within 2 % had a median within 0.7 % of that of sixty (19 times of 20), eight in 3 % within 0.5."""


SURE = 1.05
"""Upper over lower bound of a baseline's median time at which it is known well enough: it chooses the rival of a glance
and says how much room there is, and no verdict rests on it."""


def first_look(target: str) -> int:
    """Rounds after which `is_enough` is asked for the first time. On cpu others' work makes any two rounds slow."""
    return FIRST_GLANCES if target == "cuda" else GLANCES


def is_enough(ratios: Sequence[float], worth: float) -> bool:
    """Whether a glance may end: see `is_hopeless` and `agree`."""
    return is_hopeless(ratios, worth) or agree(ratios)


def looks(target: str) -> tuple[int, ...]:
    """Rounds after which `is_enough` is asked, as `Stopwatch.rounds` doubles them; then `MOST_GLANCES` end it."""
    doublings = (first_look(target) << n for n in range(MOST_GLANCES))
    return tuple(count for count in doublings if count < MOST_GLANCES)


def rounds_of(ratios: Sequence[float], looks: Iterable[int], worth: float = 0.0) -> int:
    """How many rounds a glance takes that sees these ratios one after the other."""
    return next((count for count in looks if is_enough(ratios[:count], worth)), MOST_GLANCES)


def is_hopeless(ratios: Sequence[float], worth: float) -> bool:
    """Whether more pairs of a glance are not needed: the baseline's times over the candidate's, which is worth a
    judgement from a median of `worth` on."""
    share = HOPELESS if len(ratios) >= GLANCES else FAR_BELOW
    return max(ratios) < share * worth


def agree(ratios: Sequence[float]) -> bool:
    """Whether more pairs of a glance would hardly change their median."""
    if len(ratios) < GLANCES:
        return False
    return max(ratios) <= (AGREE if len(ratios) == GLANCES else ALMOST) * min(ratios)


def are_sure(record: Record) -> bool:
    """Whether the times of both baselines are known well enough."""
    for name in ("eager", "inductor"):
        seconds = [sample for sample in record.device[name] if sample is not None]
        found = timing.interval(seconds)
        if found.high > SURE * found.low:
            return False
    return True
