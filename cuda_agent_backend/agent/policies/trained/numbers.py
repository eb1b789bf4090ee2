"""Numbers as words: on a logarithmic scale, as a kernel's worth hangs on ratios."""

from __future__ import annotations

import math

STEPS_AN_OCTAVE = 8
"""Of sizes and times: one word for each 9 %. Powers of two are exact."""
SIZES = range(8 * 40)
TIMES = range(-8 * 8, 8 * 24)
"""Of microseconds: 4 ns to 16 s."""
SPEED_STEP = math.log(1.02)
SPEEDS = range(-60, 121)
"""Of speed-ups, in steps of 2 %: 0.3 to 11."""
SHARES = range(21)
"""In steps of 5 %."""
MOST_ZEROS = 6


def size_words(value: int) -> list[str]:
    """A dimension: how large, and by which power of two it can be divided."""
    if value <= 0:
        return ["d:none"]
    zeros = min(MOST_ZEROS, (value & -value).bit_length() - 1)
    return [f"d:{within(round(STEPS_AN_OCTAVE * math.log2(value)), SIZES)}", f"z:{zeros}"]


def amount_word(value: float) -> str:
    """Bytes, registers and the like."""
    return (
        f"d:{within(round(STEPS_AN_OCTAVE * math.log2(value)), SIZES)}" if value >= 1 else "d:none"
    )


def time_word(microseconds: object) -> str:
    """A time."""
    if not isinstance(microseconds, int | float) or not 0 < microseconds < math.inf:
        return "t:none"
    return f"t:{within(round(STEPS_AN_OCTAVE * math.log2(microseconds)), TIMES)}"


def speed_word(ratio: object) -> str:
    """A speed-up, or the room that there is."""
    if not isinstance(ratio, int | float) or not 0 < ratio < math.inf:
        return "x:none"
    return f"x:{within(round(math.log(ratio) / SPEED_STEP), SPEEDS)}"


def share_word(share: object) -> str:
    """A part of a whole."""
    if not isinstance(share, int | float) or not 0 <= share < math.inf:
        return "q:none"
    return f"q:{within(round(20 * share), SHARES)}"


def within(value: int, among: range) -> int:
    """The nearest number of a range."""
    return max(among.start, min(among.stop - 1, value))


NUMBER_WORDS = [
    "d:none",
    "t:none",
    "x:none",
    "q:none",
    *(f"d:{n}" for n in SIZES),
    *(f"z:{n}" for n in range(MOST_ZEROS + 1)),
    *(f"t:{n}" for n in TIMES),
    *(f"x:{n}" for n in SPEEDS),
    *(f"q:{n}" for n in SHARES),
]
"""All that this module gives."""
