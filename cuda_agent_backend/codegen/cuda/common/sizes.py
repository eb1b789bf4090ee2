"""Numbers of vectors and threads that schedules are made of."""

from __future__ import annotations

WORD_BYTES = 16
"""What a thread loads or stores at once, at most."""


def vectors(item: int, size: int) -> list[int]:
    """Vector widths of up to 16 bytes that divide ``size``, widest first; 1 is always among them.

    item: bytes of an element.
    """
    return [v for v in (16, 8, 4, 2) if v * item <= WORD_BYTES and size % v == 0] + [1]


def powers(low: int, high: int) -> list[int]:
    """Powers of two from ``low`` to ``high``, upwards."""
    return [1 << n for n in range(high.bit_length()) if low <= 1 << n <= high]
